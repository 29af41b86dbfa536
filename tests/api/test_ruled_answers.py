"""Rules for answers through a real engine, here and in a process of its own: each answer is as its rule says."""

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pydantic
import pytest

import gapless
from gapless.api.aio import AsyncVLM
from gapless.errors import InvalidRequest

BOLD = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 60}


class Thing(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=6)
    parts: list[int] = pydantic.Field(max_length=2)
    right: bool


def schema_of(n):
    members = {f"p{n}": {"type": "integer", "minimum": 0, "maximum": n}, "q": {"enum": ["a", "b", None]}}
    return {"type": "object", "properties": members, "required": ["q", f"p{n}"]}


def check_rules(vlm, pictures, seeds=1):
    for seed in range(seeds):
        settings = BOLD | {"seed": seed}
        assert vlm.query(pictures[0], "What?", settings=settings | {"choice": ["red", "reddish"]})["answer"] in (
            "red",
            "reddish",
        )
        told = vlm.caption(pictures[1], settings=settings | {"regex": "[A-C]{2,5}-[0-9]+"})
        assert re.fullmatch("[A-C]{2,5}-[0-9]+", told["caption"]) and told["finish_reason"] == "stop"
        thing = vlm.query(None, "What?", schema=Thing, settings=settings)
        assert thing["object"] == Thing.model_validate_json(thing["answer"])
        thought = vlm.query(pictures[2], "Why?", schema=schema_of(9), settings=settings, reasoning=True)
        jsonschema.validate(thought["object"], schema_of(9))
        assert isinstance(thought["reasoning"]["text"], str)
        streamed = vlm.query(pictures[0], "What?", schema=Thing, settings=settings, stream=True)["answer"]
        text = "".join(streamed)
        assert streamed.result()["object"] == Thing.model_validate_json(text)
        assert isinstance(json.loads(vlm.query(None, "a", settings=settings | {"json_object": True})["answer"]), dict)


def test_answers_of_a_random_model_follow_their_rules(vlm, pictures):
    check_rules(vlm, pictures)


def test_an_answer_is_whole_within_its_tokens_however_few_there_are(vlm):
    with pytest.raises(InvalidRequest, match="shortest answer") as told:
        vlm.query(None, "What?", schema=Thing, settings={"max_tokens": 5})
    fewest = int(re.search(r"takes (\d+) tokens", str(told.value))[1])
    assert told.value.param == "max_tokens" and 20 < fewest < 60
    for most in range(fewest, fewest + 8):
        whole = vlm.query(None, "What?", schema=Thing, settings=BOLD | {"max_tokens": most, "seed": most})
        assert whole["finish_reason"] == "stop" and whole["metrics"]["output_tokens"] <= most


def test_thirty_rules_and_free_answers_run_side_by_side(vlm, pictures):
    def ask(n):
        return vlm.query(pictures[n % 4], "What?", schema=schema_of(n), settings=BOLD | {"seed": n})

    alone = [vlm.query(pictures[n % 4], "What?", settings=BOLD | {"seed": n})["answer"] for n in range(4)]
    with ThreadPoolExecutor(34) as pool:
        ruled = [pool.submit(ask, n) for n in range(30)]
        free = [pool.submit(vlm.query, pictures[n % 4], "What?", False, BOLD | {"seed": n}) for n in range(4)]
        for n, answer in enumerate(ruled):
            jsonschema.validate(answer.result(60)["object"], schema_of(n))
        assert [answer.result(60)["answer"] for answer in free] == alone
        assert ask(29)["answer"] == ruled[29].result()["answer"]


def test_who_leaves_in_the_middle_of_a_rule_leaves_nothing_behind(vlm, pictures):
    for n in range(5):
        stream = vlm.query(pictures[0], "What?", stream=True, settings=BOLD | {"regex": "(ab ){1,15}", "seed": n})[
            "answer"
        ]
        next(stream)
        stream.close()
    jsonschema.validate(vlm.query(None, "What?", schema=schema_of(1))["object"], schema_of(1))


def test_a_list_of_pictures_shares_one_table(vlm, pictures):
    before = vlm.stats()["rules_compiled"]
    found = vlm.query(pictures * 3, "What?", schema=schema_of(77), settings=BOLD)
    for answer in found:
        jsonschema.validate(answer["object"], schema_of(77))
    assert vlm.stats()["rules_compiled"] == before + 1


@pytest.mark.slow
def test_in_a_process_of_its_own_too_and_after_it_was_loaded_again(micro_folder, pictures):
    for seeds in (2, 1):
        with gapless.load(micro_folder, process=True) as vlm:
            check_rules(vlm, pictures, seeds)

            async def ask(n, vlm=vlm):
                settings = BOLD | {"seed": n}
                found = await AsyncVLM(vlm).query(None, "What?", schema=schema_of(n % 7), settings=settings)
                jsonschema.validate(found["object"], schema_of(n % 7))

            async def all_of_them(ask=ask):
                await asyncio.gather(*(ask(n) for n in range(40)))

            asyncio.run(all_of_them())
            assert vlm.stats()["rules_kept"] >= 7
