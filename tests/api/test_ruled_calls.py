"""Rules for answers as callers of the library meet them: set, refused, waited for, given up, and made into objects."""

import asyncio
import json
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from types import SimpleNamespace

import jsonschema
import numpy as np
import pydantic
import pytest
from tests.api.walking import walking

from gapless.api import rules
from gapless.api.aio import AsyncVLM
from gapless.api.rules import Rules
from gapless.constrain import compiler
from gapless.constrain.compiler import CompilerGone
from gapless.errors import EngineClosed, InvalidRequest, RequestTimeout, UnreadableAnswer
from gapless.records import HostGrammar, Sampling
from gapless.skills.rules import MOST_BYTES

SLOW = ".*a.{9}"
"""A pattern whose automaton has thousands of states: some tenths of a second."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}}, "required": ["n", "s"]}


class Shapes(pydantic.BaseModel):
    count: int
    colour: str = pydantic.Field(pattern="^(red|blue)$")


@pytest.fixture(scope="module")
def vlm():
    with walking() as vlm:
        yield vlm


def says(vlm, question="What?", **options):
    return vlm.query(None, question, **options)


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"regex": r"[A-Z]{2}-\d{4}"}, re.compile(r"[A-Z]{2}-\d{4}").fullmatch),
        ({"json_schema": SCHEMA}, lambda text: jsonschema.validate(json.loads(text), SCHEMA) is None),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
        ({"json_object": False}, lambda text: text == "free"),
        ({"choice": None, "regex": "x+"}, re.compile("x+").fullmatch),
    ],
    ids=["choice", "regex", "schema", "object", "no object", "only one"],
)
@pytest.mark.parametrize("reasoning", [False, True])
def test_every_answer_is_as_its_rule_says(vlm, settings, fits, reasoning):
    whole = says(vlm, settings=settings, reasoning=reasoning)
    assert fits(whole["answer"]) and whole["finish_reason"] == "stop"
    assert ("reasoning" in whole) == reasoning
    streamed = says(vlm, settings=settings, reasoning=reasoning, stream=True)["answer"]
    assert fits("".join(streamed))
    told = vlm.chat([{"role": "user", "content": "Why?"}], settings=settings, reasoning=reasoning)
    assert fits(told["message"]["content"])

    async def asked():
        one = await AsyncVLM(vlm).query(None, "What?", settings=settings, reasoning=reasoning)
        growing = await AsyncVLM(vlm).query(None, "What?", True, settings, reasoning)
        return one["answer"], "".join([piece async for piece in growing["answer"]])

    assert all(fits(text) for text in asyncio.run(asked()))


def test_a_table_is_told_in_numbers(vlm):
    told = says(vlm, settings={"regex": "[ab]{3}"})["metrics"]["rule"]
    assert told["states"] == 4 and told["classes"] >= 3 and told["bytes"] > 0 and told["compile_ms"] > 0
    assert "rule" not in says(vlm)["metrics"]
    before = asdict(vlm.desk.rules.counts())
    says(vlm, settings={"regex": "[ab]{3}"})
    says(vlm, settings={"regex": "[ab]{4}"})
    after = asdict(vlm.desk.rules.counts())
    grown = {name: after[name] - before[name] for name in ("asked", "compiled", "kept", "refused")}
    assert grown == {"asked": 2, "compiled": 1, "kept": 1, "refused": 0}


@pytest.mark.parametrize(
    ("settings", "param", "words"),
    [
        ({"choice": "red"}, "choice", "list of 1"),
        ({"choice": []}, "choice", "list of 1"),
        ({"choice": [""]}, "choice", "not empty"),
        ({"choice": ["a", 1]}, "choice", "not empty"),
        ({"choice": ["a"] * 5000}, "choice", "list of 1"),
        ({"choice": {"a": 1}}, "choice", "list of 1"),
        ({"choice": ["\ud800"]}, "choice", "surrogate"),
        ({"regex": 5}, "regex", "pattern"),
        ({"regex": ""}, "regex", "pattern"),
        ({"regex": "("}, "regex", "position"),
        ({"regex": "(?=a)b"}, "regex", "position"),
        ({"regex": "a" * (MOST_BYTES + 1)}, "regex", "at most"),
        ({"json_schema": "{}"}, "json_schema", "dict"),
        ({"json_schema": [1]}, "json_schema", "dict"),
        ({"json_schema": {"type": "dog"}}, "json_schema", '"type" at #/type'),
        ({"json_schema": {"not": {}}}, "json_schema", '"not" at #/not'),
        ({"json_schema": {"a": float("nan")}}, "json_schema", "no JSON"),
        ({"json_schema": {"$ref": "https://example.com/a.json"}}, "json_schema", "same schema"),
        ({"json_schema": {"enum": ["x" * 1000] * 200}}, "json_schema", "at most"),
        ({"json_schema": {"$ref": "#"}}, "json_schema", "recursive"),
        ({"json_object": "yes"}, "json_object", "true or false"),
        ({"json_object": 1}, "json_object", "true or false"),
        ({"choice": ["a"], "regex": "a"}, "regex", "choice and regex"),
        ({"json_object": True, "json_schema": {}}, "json_object", "json_schema and json_object"),
        ({"regex": "[0-9]{40}", "max_tokens": 3}, "max_tokens", "shortest answer"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_with_a_rule_is_told_by_name_and_harms_nobody(vlm, settings, param, words):
    with pytest.raises(InvalidRequest, match=words) as told:
        says(vlm, settings=settings)
    assert told.value.param == param and len(str(told.value)) < 600
    with pytest.raises(InvalidRequest):
        asyncio.run(AsyncVLM(vlm).query(None, "What?", settings=settings))
    assert says(vlm, settings={"choice": ["red"]})["answer"] == "red"


@pytest.mark.parametrize("skill", ["point", "detect", "segment"])
@pytest.mark.parametrize(
    "rule", [{"choice": ["a"]}, {"regex": "a"}, {"json_schema": {}}, {"json_object": True}], ids=str
)
def test_answers_in_places_take_no_rule(vlm, skill, rule):
    (name,) = rule
    picture = np.zeros((30, 30, 3), np.uint8)
    with pytest.raises(InvalidRequest, match=f"^{name} is for answers in words") as told:
        getattr(vlm, skill)(picture, "star", settings=rule)
    assert told.value.param == name


def test_a_class_makes_an_object_of_the_answer(vlm):
    found = says(vlm, schema=Shapes)
    assert isinstance(found["object"], Shapes) and found["object"] == Shapes.model_validate_json(found["answer"])
    stream = says(vlm, schema=Shapes, stream=True)["answer"]
    assert Shapes.model_validate_json("".join(stream)) == stream.result()["object"]
    said = vlm.chat([{"role": "user", "content": "Why?"}], schema=Shapes)
    assert isinstance(said["object"], Shapes)

    async def asked():
        whole = await AsyncVLM(vlm).query(None, "What?", schema=Shapes, reasoning=True)
        growing = (await AsyncVLM(vlm).query(None, "What?", True, schema=SCHEMA))["answer"]
        text = "".join([piece async for piece in growing])
        return whole["object"], text, (await growing.result())["object"]

    one, text, other = asyncio.run(asked())
    assert isinstance(one, Shapes) and json.loads(text) == other


def test_a_schema_makes_a_value_of_it(vlm):
    found = says(vlm, schema=SCHEMA)
    jsonschema.validate(found["object"], SCHEMA)
    assert found["object"] == json.loads(found["answer"])
    assert says(vlm, schema={"const": 7})["object"] == 7


@pytest.mark.parametrize(
    ("schema", "settings", "param"),
    [
        (int, None, "schema"),
        ("{}", None, "schema"),
        (Shapes(count=1, colour="red"), None, "schema"),
        (Shapes, {"choice": ["a"]}, "choice"),
        (SCHEMA, {"json_object": True}, "json_object"),
        (SCHEMA, {"stop": ["a"]}, "stop"),
        ({"not": {}}, None, "json_schema"),
        (SCHEMA, "fast", "settings"),
    ],
    ids=str,
)
def test_what_makes_no_object_is_told(vlm, schema, settings, param):
    with pytest.raises(InvalidRequest) as told:
        says(vlm, schema=schema, settings=settings)
    assert told.value.param == param


class Picky(pydantic.BaseModel):
    count: int

    @pydantic.field_validator("count")
    @classmethod
    def never(cls, value):
        raise ValueError("too picky")


class Opaque(pydantic.BaseModel, arbitrary_types_allowed=True):
    lock: threading.Event


def test_an_object_that_its_class_refuses_is_told_and_so_is_a_class_without_a_schema(vlm):
    with pytest.raises(UnreadableAnswer, match="Picky") as told:
        says(vlm, schema=Picky)
    assert json.loads(told.value.answer)["count"] is not None
    with pytest.raises(InvalidRequest, match="Opaque has no JSON schema"):
        says(vlm, schema=Opaque)


@pytest.mark.parametrize("schema", [Shapes, SCHEMA, {"type": "integer"}], ids=["class", "object", "number"])
def test_an_answer_that_was_cut_off_is_never_an_object(schema):
    """The number 12 may have been 123."""
    with walking(short=1) as vlm:
        with pytest.raises(UnreadableAnswer, match="cut off") as told:
            says(vlm, schema=schema)
        assert told.value.answer
        stream = says(vlm, schema=schema, stream=True)["answer"]
        assert "".join(stream) == told.value.answer or stream.finish_reason == "length"
        with pytest.raises(UnreadableAnswer):
            stream.result()
        plain = says(vlm, settings={"json_schema": SCHEMA})
        assert plain["finish_reason"] == "length" and "object" not in plain


def test_thirty_schemas_at_once_and_an_event_loop_that_goes_on(vlm):
    schemas = [
        {"type": "object", "properties": {f"p{n}": {"type": "string", "maxLength": n + 1}}, "required": [f"p{n}"]}
        for n in range(30)
    ]

    async def all_of_them():
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                await asyncio.sleep(0.002)
                beats += 1

        beating = asyncio.create_task(beat())
        asks = [AsyncVLM(vlm).query(None, "What?", schema=schema) for schema in schemas]
        found = await asyncio.gather(*asks)
        free = await AsyncVLM(vlm).query(None, "What?")
        beating.cancel()
        return found, free, beats

    found, free, beats = asyncio.run(all_of_them())
    for schema, answer in zip(schemas, found, strict=True):
        jsonschema.validate(answer["object"], schema)
    assert free["answer"] == "free" and beats > 3


def test_who_needs_no_table_does_not_wait_for_one(vlm):
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(says, vlm, settings={"regex": SLOW + "b"})
        answers = [says(vlm)["answer"] for _ in range(20)]
        waits = not slow.done()
        assert answers == ["free"] * 20 and waits
        assert re.fullmatch(SLOW + "b", slow.result(60)["answer"], re.S)


def test_a_wait_that_is_given_up_leaves_nothing_behind(vlm):
    async def given_up():
        task = asyncio.create_task(AsyncVLM(vlm).query(None, "What?", settings={"regex": SLOW + "c"}))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    count = len(vlm.desk.runner.tables)
    asyncio.run(given_up())
    assert len(vlm.desk.runner.tables) == count
    assert says(vlm, settings={"choice": ["red"]})["answer"] == "red"


def test_a_timeout_counts_the_wait_for_a_table(vlm):
    with pytest.raises(RequestTimeout, match="while its rule was compiled"):
        says(vlm, settings={"regex": SLOW + "d", "timeout": 1e-3})
    with pytest.raises(RequestTimeout, match="while its rule was compiled"):
        asyncio.run(AsyncVLM(vlm).query(None, "What?", settings={"regex": SLOW + "e", "timeout": 1e-3}))


def test_nothing_is_started_for_who_asks_for_nothing_and_all_ends_with_the_engine():
    with walking() as vlm:
        says(vlm)
        assert vlm.desk.rules._compiler is None
        says(vlm, settings={"choice": ["a", "b"]})
        compiler = vlm.desk.rules._compiler
        child, thread = compiler._child, compiler._thread
        assert child._process.poll() is None and thread.is_alive()
    assert child._process.poll() is not None and not thread.is_alive()
    with pytest.raises(EngineClosed):
        says(vlm, settings={"choice": ["a", "b"]})


def test_closing_ends_a_wait(vlm):
    with walking() as other, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(says, other, settings={"regex": SLOW})
        while other.desk.rules._compiler is None:
            time.sleep(0.001)
        other.close(drain=False)
        with pytest.raises(EngineClosed):
            waiting.result(30)


def test_a_model_that_is_dropped_takes_its_compiler_with_it():
    vlm = walking()
    says(vlm, settings={"choice": ["a", "b"]})
    compiler = vlm.desk.rules._compiler
    child, thread = compiler._child, compiler._thread
    del vlm
    thread.join(30)
    assert not thread.is_alive() and child._process.wait(30) is not None


def test_who_gives_up_takes_its_wish_back_and_the_shortest_answer_must_just_fit(vlm):
    ask, late = SimpleNamespace(timeout=0.0, sampling=Sampling(max_tokens=4)), Future()
    with pytest.raises(RequestTimeout, match="while its rule was compiled"):
        rules.wait(late, ask, 0.0)
    assert late.cancelled()
    table = SimpleNamespace(fewest=4)
    assert rules.fitting(table, ask) is table
    table.fewest = 5
    with pytest.raises(InvalidRequest, match="takes 5 tokens with its end, and max_tokens is 4"):
        rules.fitting(table, ask)


def test_a_compiler_that_is_killed_is_told_to_who_waits_and_the_next_one_works(vlm, monkeypatch):
    says(vlm, settings={"choice": ["a", "b"]})
    child = vlm.desk.rules._compiler._child
    ask = type(child).ask

    def killed(child, *arguments, **options):
        child.kill()
        return ask(child, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(child), "ask", killed)
        with pytest.raises(CompilerGone, match="ask again") as told:
            says(vlm, settings={"choice": ["c", "d"]})
    assert told.value.status == 503
    assert says(vlm, settings={"choice": ["c", "d"]})["answer"] in ("c", "d")
    vlm.desk.rules._compiler._child.kill()  # nobody waits for it
    assert says(vlm, settings={"choice": ["e", "f"]})["answer"] in ("e", "f")


def test_a_rule_that_takes_too_long_has_no_table(monkeypatch):
    monkeypatch.setattr(compiler, "installed", bool)  # no: nothing leads it then
    with walking() as vlm:
        vlm.desk.rules = Rules(vlm.desk.context, timeout=0.05)
        with pytest.raises(InvalidRequest, match=r"more than 0\.05 s to compile.*structured") as told:
            says(vlm, settings={"regex": SLOW})
        assert told.value.param == "regex" and vlm.desk.rules.counts().refused == 1
        vlm.desk.rules.close()


def test_what_has_no_table_is_led_on_the_host(vlm):
    tree = {"type": "object", "properties": {"of": {"type": "array", "items": {"$ref": "#"}}}, "required": ["of"]}
    for number in range(3):
        told = says(vlm, settings={"json_schema": tree}, reasoning=number > 1)
        jsonschema.validate(json.loads(told["answer"]), tree)
        rule = told["metrics"]["rule"]
        assert rule["host"] and rule["bytes"] > 0 and rule["compile_ms"] > 0
    assert isinstance(vlm.desk.runner.tables[-1], HostGrammar)
