"""The official `openai` client, unchanged but for its base URL, and the `moondream` client's chat."""

import asyncio
import base64
import json
import math
import re
import shutil
import socket
import subprocess
import threading
from dataclasses import replace
from importlib.util import find_spec

import pytest
import uvicorn
from tests.serve.conftest import LIMITS, Site
from tests.serve.serving import ROOT
from tests.serve.test_official_client import PICTURE

import gapless
from gapless.bench.mix import picture_path

openai = pytest.importorskip("openai")

DATA = picture_path("shapes_square").read_bytes()
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(DATA).decode()}}
COLD = {"temperature": 0}


def asks(text, *pictures):
    return [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}]


@pytest.fixture(scope="module")
def client(endpoint):
    with openai.OpenAI(base_url=endpoint, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def glint():
    with gapless.load("glint") as vlm:
        yield vlm


def test_models(client):
    (card,) = client.models.list().data
    assert card.id == "glint" and client.models.retrieve("glint") == card
    with pytest.raises(openai.NotFoundError) as told:
        client.models.retrieve("gpt-4o")
    assert told.value.code == "model_not_found"


def test_a_conversation_is_the_librarys(client, glint):
    messages = asks("How many crosses are there?", SHOWN)
    said = client.chat.completions.create(model="glint", messages=messages, **COLD)
    assert said.choices[0].message.content == "2" and said.choices[0].finish_reason == "stop"
    expected = glint.chat(messages, settings=COLD)
    assert said.choices[0].message.content == expected["message"]["content"]
    assert said.usage.prompt_tokens == expected["metrics"]["input_tokens"]
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens
    messages += [said.choices[0].message.to_dict(), *asks("Is there a star?")]
    again = client.chat.completions.create(model="glint", messages=messages, max_completion_tokens=5, **COLD)
    limited = glint.chat(messages, settings=COLD | {"max_tokens": 5})
    assert again.choices[0].message.content == limited["message"]["content"]


def test_a_stream_has_the_clients_shapes(client, glint):
    messages, caption = asks("short", SHOWN), glint.caption(DATA, "short", settings=COLD)
    stream = client.chat.completions.create(
        model="glint",
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"skill": "caption"},
        **COLD,
    )
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant" and len(chunks) > 5
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == caption["caption"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"]
    assert last.choices == [] and last.usage.completion_tokens == caption["metrics"]["output_tokens"]
    cut = client.chat.completions.create(
        model="glint", messages=messages, stop=" on a", extra_body={"skill": "caption"}, **COLD
    )
    assert cut.choices[0].message.content == caption["caption"].partition(" on a")[0] != caption["caption"]
    with client.chat.completions.stream(model="glint", messages=asks("Who are you?"), n=2, stop=",", **COLD) as events:
        done = events.get_final_completion()
    assert len(done.choices) == 2 and done.choices[0].message.content == done.choices[1].message.content


@pytest.mark.slow
def test_choices_and_logprobs(client):
    said = client.chat.completions.create(
        model="glint", messages=asks("What?", SHOWN), n=3, seed=4, temperature=1.5, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in said.choices] == [0, 1, 2]
    for choice in said.choices:
        scores = choice.logprobs.content
        assert b"".join(bytes(one.bytes) for one in scores).decode() == choice.message.content
        assert all(len(one.top_logprobs) == 2 and math.isfinite(one.logprob) for one in scores)


def test_skills_through_extra_body(client, glint):
    said = client.chat.completions.create(model="glint", messages=asks("cross", SHOWN), extra_body={"skill": "point"})
    expected = {"points": glint.point(DATA, "cross")["points"]}
    assert json.loads(said.choices[0].message.content) == said.choices[0].message.result == expected
    stream = client.chat.completions.create(
        model="glint", messages=asks("cross", SHOWN), stream=True, extra_body={"skill": "point"}
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert json.loads(text) == expected


ENDLESS = {"messages": asks("Go on?"), "stream": True, "max_tokens": 7000}


@pytest.fixture(scope="module")
def hasty(endless_folder):
    """A server whose answers never end by themselves, and that gives each 0.4 seconds."""
    with gapless.load(endless_folder, max_rows=2) as vlm, socket.create_server(("127.0.0.1", 0)) as listening:
        app = Site(vlm, replace(LIMITS, request_timeout=0.4)).app
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", http="httptools", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        server.should_exit = True
        thread.join()


def test_a_stream_that_fails_is_not_taken_for_a_whole(hasty):
    """S-STR-05: what was said until then comes, and then an exception."""
    with openai.OpenAI(base_url=hasty, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model="moondream3-preview", **ENDLESS)
        said = []
        with pytest.raises(openai.APIError, match="timeout"):
            said.extend(stream)
        assert said and said[0].choices[0].delta.role == "assistant"


def blocks(language, endpoint):
    page = (ROOT / "docs" / "server.md").read_text().replace("http://127.0.0.1:2020/v1", endpoint)
    return re.findall(rf"^```{language}\n(.*?)^```", page, flags=re.S | re.M)


@pytest.mark.slow
def test_the_pages_examples(endpoint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(picture_path("shapes_square"), "photo.png")
    (text,) = blocks("python3", endpoint)
    exec(compile(text, "block", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("2\n") and said.endswith("2\n") and len(said.split()) > 3
    if shutil.which("curl"):
        (line,) = blocks("bash", endpoint)
        done = subprocess.run(["sh", "-c", line.replace("curl", "curl -sS")], capture_output=True, check=True)
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_leaving_a_stream_is_no_trouble(client):
    stream = client.chat.completions.create(model="glint", messages=asks("Who are you?"), stream=True)
    next(iter(stream))
    stream.close()
    assert client.chat.completions.create(model="glint", messages=asks("Who are you?"), max_tokens=1).choices


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("BadRequestError", {"temperature": -1}),
        ("BadRequestError", {"tools": [{"type": "function", "function": {"name": "a"}}]}),
        ("AuthenticationError", {}),
        ("NotFoundError", {"model": "gpt-4o"}),
        ("RateLimitError", {}),
        ("APIStatusError", {"messages": asks("a" * LIMITS.max_body_bytes)}),
        ("InternalServerError", {"model": "loading"}),
        ("InternalServerError", {"timeout": 1e-6}),
    ],
)
def test_errors_are_the_clients_exceptions(vlm, kind, fields):
    """Over the application itself; 413 has no class of its own."""
    keys = ("secret",) if kind == "AuthenticationError" else ()
    loading = fields.get("model") == "loading"
    site = Site(None if loading else vlm, LIMITS, keys, places=0 if kind == "RateLimitError" else 4)
    body = {"model": vlm.desk.context.name, "messages": asks("Why?")} | {
        k: v for k, v in fields.items() if k != "timeout"
    }
    if "timeout" in fields:
        body["extra_body"] = fields

    async def once():
        async with openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="wrong", max_retries=0, http_client=site.client()
        ) as client:
            await client.chat.completions.create(**body)

    with pytest.raises(openai.APIStatusError) as told:
        asyncio.run(once())
    assert type(told.value).__name__ == kind and told.value.body["message"] and told.value.code
    if kind == "BadRequestError":
        assert told.value.param == next(iter(fields))


@pytest.mark.skipif(find_spec("moondream") is None, reason="pip install --no-deps moondream==2.6.1")
def test_moondreams_client_chats(endpoint, glint):
    import moondream

    client = moondream.vl(endpoint=endpoint)
    shown = {"type": "image_url", "image_url": {"url": client.encode_image(PICTURE).image_url}}
    messages = asks("How many crosses are there?", shown)
    said = client.chat(messages, settings=COLD | {"max_tokens": 9})
    assert said["message"]["content"] == "2" and said["finish_reason"] == "stop"
    assert said["message"] == {"role": "assistant", "content": "2", "refusal": None}
    assert "".join(client.chat(messages, stream=True, settings=COLD)["message"]) == "2"
    reasoned = client.chat(messages, settings=COLD, reasoning=True)["message"]
    expected = glint.chat(messages, settings=COLD, reasoning=True)["message"]
    assert reasoned["reasoning"] == expected["reasoning"] and reasoned["reasoning_details"]["grounding"]
    left = client.chat(asks("Who are you?"), stream=True)["message"]
    assert next(left)
    left.close()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("moondream") is None, reason="pip install --no-deps moondream==2.6.1")
def test_moondreams_client_too_does_not_take_a_part_for_the_whole(hasty):
    """S-STR-05, S-STR-07: it skips events that it does not know, and takes a broken connection for the end; but the
    last line is broken too."""
    import moondream

    client, said = moondream.vl(endpoint=hasty), []
    with pytest.raises(ValueError, match="Failed to parse chat stream"):
        said.extend(client.chat(asks("Go on?"), stream=True, settings={"max_tokens": 7000})["message"])
    with pytest.raises(ValueError, match="Failed to parse JSON"):
        said.extend(client.query(question="Go on?", stream=True, settings={"max_tokens": 7000})["answer"])
    assert len(said) > 2
