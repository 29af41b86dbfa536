"""Rules for answers at a running server with the bundled model: OpenAI's official client, the page's example, both
processes, clients that leave, and many rules at once."""

import asyncio
import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import openai
import pydantic
import pytest
from tests.serve.serving import ROOT, Served
from tests.serve.test_openai_client import SHOWN, asks
from tests.serve.test_server_process import children

pytestmark = pytest.mark.slow
COLD = {"temperature": 0}


class Shape(pydantic.BaseModel):
    colour: str = pydantic.Field(pattern="^(red|green|blue|yellow)$")
    kind: str = pydantic.Field(max_length=8)


class Picture(pydantic.BaseModel):
    shapes: list[Shape] = pydantic.Field(min_length=1, max_length=2)
    number: int = pydantic.Field(ge=100, le=999)


@pytest.fixture(scope="module")
def client(endpoint):
    with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_parse_makes_an_object_of_what_a_picture_shows(client):
    messages = asks("What is in the picture?", SHOWN)
    parsed = client.chat.completions.parse(model="glint", messages=messages, response_format=Picture, **COLD)
    (choice,) = parsed.choices
    assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Picture)
    assert Picture.model_validate_json(choice.message.content) == choice.message.parsed
    with client.chat.completions.stream(model="glint", messages=messages, response_format=Picture, **COLD) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == choice.message.parsed
    with pytest.raises(openai.BadRequestError) as told:
        client.chat.completions.parse(model="glint", messages=messages, response_format=Picture, max_tokens=9)
    assert told.value.param == "max_tokens"


def test_rules_of_vllms_users_and_what_the_model_sees(client):
    def said(question, **rule):
        found = client.chat.completions.create(
            model="glint", messages=asks(question, SHOWN), extra_body=rule, logprobs=True, **COLD
        )
        return found.choices[0].message.content

    assert said("Is there a heart?", guided_choice=["yes", "no"]) == "no"
    assert said("What number is in the picture?", guided_regex="[0-9]{3}") == "416"
    assert json.loads(said("What number is in the picture?", guided_json={"type": "integer"})) == 416
    thought = client.chat.completions.create(
        model="glint",
        messages=asks("Is there a star?", SHOWN),
        extra_body={"choice": ["yes"], "reasoning": True},
        **COLD,
    )
    message = thought.choices[0].message
    assert message.content == "yes" and message.reasoning


def test_the_pages_example(endpoint, capsys):
    page = (ROOT / "docs" / "structured.md").read_text().replace("http://127.0.0.1:2020/v1", endpoint)
    (text,) = re.findall(r"^```python3\n(.*?)^```", page, flags=re.S | re.M)
    exec(compile(text, "block", "exec", dont_inherit=True), {"__name__": "__main__"})
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"shape='.*' count=-?\d+", first) and second in ("none", "one", "some")


SCHEMAS = [
    {"type": "array", "items": {"enum": [f"{n}", n, None]}, "minItems": n % 5, "maxItems": 5} for n in range(1, 31)
]


@pytest.mark.parametrize("process", ["off", "on"])
def test_thirty_rules_leaving_clients_and_a_server_that_starts_again(tmp_path, process):
    for turn in range(2):
        server = Served("glint", tmp_path / f"log{turn}", "--process", process)
        try:
            server.said("curl http://")
            url = f"http://127.0.0.1:{server.port}/v1"
            with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:

                def ask(schema, client=client):
                    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
                    found = client.chat.completions.create(
                        model="glint", messages=asks("What?"), response_format=form, temperature=1.5, max_tokens=60
                    )
                    jsonschema.validate(json.loads(found.choices[0].message.content), schema)
                    return found.choices[0].finish_reason

                def leave(n, client=client):
                    patience = client.with_options(timeout=0.01 * (n + 1))
                    try:
                        patience.chat.completions.create(
                            model="glint", messages=asks("What?"), extra_body={"regex": f".*a.{{8}}{n}"}
                        )
                    except openai.APITimeoutError:
                        return

                with ThreadPoolExecutor(36) as pool:
                    leaving = [pool.submit(leave, n) for n in range(6)]
                    assert [*pool.map(ask, SCHEMAS)] == ["stop"] * 30
                    for one in leaving:
                        one.result(60)
                end = time.monotonic() + 30
                while json.loads(server.ask("GET", "/health")[1])["requests"] and time.monotonic() < end:
                    time.sleep(0.02)
                assert ask(SCHEMAS[0]) == "stop"
                counted = server.metrics()
                assert counted["gapless:rules_total",] >= 31 and counted["gapless:rule_tables_kept",] >= 30
                assert counted["gapless:rules_compiled_total",] <= 36
        finally:
            assert server.end() == 0
        assert "Traceback" not in server.log.read_text()


def compilers(pid):
    """Processes of a server that compile rules."""
    return [one for one in children(pid) if b"gapless.constrain." in Path(f"/proc/{one}/cmdline").read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="asks Linux for a process's children")
def test_a_server_that_is_stopped_while_it_compiles_ends_at_once(tmp_path):
    server = Served("glint", tmp_path / "log", "--drain-timeout", "0.1")
    try:
        server.said("curl http://")
        url = f"http://127.0.0.1:{server.port}/v1"

        async def ask():
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:

                async def ruled(regex):
                    await client.chat.completions.create(
                        model="glint", messages=asks("What?"), extra_body={"regex": regex}
                    )

                await ruled("[abc]{1,3}")
                (compiler,) = compilers(server.process.pid)
                os.kill(compiler, signal.SIGSTOP)  # a rule that takes for ever
                asking = asyncio.create_task(ruled("[xyz]{1,5}"))
                await asyncio.sleep(1.0)
                assert not asking.done()
                server.process.terminate()
                with pytest.raises(openai.APIError):
                    await asking

        began = time.monotonic()
        asyncio.run(ask())
        assert server.process.wait(30) == 0 and time.monotonic() - began < 30
    finally:
        server.end()
