"""Stop strings, logprobs and conversations on a running engine."""

import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image
from tests.api.asking import idle, told
from tests.api.conftest import noise

import gapless
from gapless import errors

HOT = {"temperature": 4.0, "top_p": 1.0, "seed": 3}
LONG = HOT | {"max_tokens": 24}


def stop_of(text):
    """A piece from the middle of an answer, and what stands before it."""
    words = text.split(" ")
    stop = " ".join(words[len(words) // 2 :][:3])
    assert stop
    return stop, text[: text.find(stop)]


def streamed(stream):
    return "".join(stream)


def test_s_str_02_whole_and_streamed_answers_end_before_the_stop(endless, pictures):
    """S-STR-02, S-STR-06: text, finish_reason and tokens are the same either way; the request ends on the engine."""
    free = endless.caption(pictures[0], settings=LONG)
    stop, before = stop_of(free["caption"])
    settings = HOT | {"max_tokens": 7000, "stop": ["nowhere to be found", stop]}
    whole = endless.caption(pictures[0], settings=settings)
    stream = endless.caption(pictures[0], stream=True, settings=settings)["caption"]
    assert streamed(stream) == before == whole["caption"]
    assert stream.finish_reason == "stop" == whole["finish_reason"]
    assert told(stream.result()) == told(whole)
    tokens = whole["metrics"]["output_tokens"]
    assert 1 <= tokens <= free["metrics"]["output_tokens"] and stream.metrics["output_tokens"] == tokens
    assert whole["metrics"]["input_tokens"] == free["metrics"]["input_tokens"]
    assert endless.stats()["tokens"] < 1000
    idle(endless)
    ended = endless.desk.runner.snapshot().endings.ended
    assert ended["stop"] == 2 and ended["abort"] == 0, "nobody gave these up"


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_s_str_02_depth_changes_nothing(endless, endless_folder, pictures, depth):
    """S-STR-02: how many tokens were computed in vain depends on the moment; what is told does not."""
    query = {"image": pictures[1], "question": "Why?"}
    stop, before = stop_of(endless.query(**query, settings=LONG)["answer"])
    settings = LONG | {"stop": stop, "logprobs": 1}
    expected = endless.query(**query, settings=settings)
    assert expected["answer"] == before
    with gapless.load(endless_folder, max_rows=2, depth=depth) as other:
        found = other.query(**query, settings=settings)
    assert told(found) == told(expected)
    assert found["metrics"]["output_tokens"] == expected["metrics"]["output_tokens"]


def test_a_stop_that_never_comes_changes_nothing(vlm, pictures):
    free = vlm.caption(pictures[2], settings=LONG)
    assert told(vlm.caption(pictures[2], settings=LONG | {"stop": "nowhere to be found"})) == told(free)
    few = vlm.caption(pictures[2], settings=LONG | {"stop": "nowhere to be found", "max_tokens": 3})
    assert few["metrics"]["output_tokens"] <= 3


def test_a_stop_is_for_the_answer_and_not_for_the_reasoning(endless, pictures):
    settings = HOT | {"max_tokens": 30}
    free = endless.query(pictures[0], "Why?", reasoning=True, settings=settings)
    stop, before = stop_of(free["answer"])
    found = endless.query(pictures[0], "Why?", reasoning=True, settings=settings | {"stop": stop})
    assert found["reasoning"] == free["reasoning"] and found["answer"] == before
    idle(endless)


def test_a_stop_in_a_stream_that_is_left(endless, pictures):
    stream = endless.caption(pictures[0], stream=True, settings=HOT | {"max_tokens": 7000, "stop": "nowhere"})
    next(stream["caption"])
    stream["caption"].close()
    idle(endless)


def test_an_engine_that_is_closed_is_told_and_not_taken_for_a_stop(endless_folder, pictures):
    vlm = gapless.load(endless_folder, max_rows=1)
    stream = vlm.caption(pictures[0], stream=True, settings=HOT | {"max_tokens": 7000, "stop": "nowhere"})["caption"]
    next(stream)
    vlm.close(drain=False)
    with pytest.raises(errors.EngineClosed):
        list(stream)


def test_logprobs_of_pieces_are_those_of_the_whole(endless, pictures):
    settings = LONG | {"logprobs": 2}
    whole = endless.caption(pictures[0], settings=settings)
    stream, said, scores = endless.caption(pictures[0], stream=True, settings=settings)["caption"], "", []
    for piece in stream:
        said += piece
        scores += stream.logprobs()
        assert b"".join(bytes(one["bytes"]) for one in scores).decode(errors="ignore").startswith(said[:-1])
    assert scores == whole["logprobs"] and said == whole["caption"]
    for one in scores:
        best = [other["logprob"] for other in one["top_logprobs"]]
        assert len(best) == 2 and best == sorted(best, reverse=True) and one["logprob"] <= best[0] <= 0
    plain = endless.caption(pictures[0], settings=LONG)
    assert "logprobs" not in plain and plain["caption"] == whole["caption"]


def shown(image):
    return {"type": "image", "image": image}


def as_url(image):
    data = io.BytesIO()
    Image.fromarray(image).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def text(words):
    return {"type": "text", "text": words}


def test_one_turn_answers_as_a_query_does(vlm, pictures):
    settings = LONG | {"logprobs": 0}
    asked = vlm.query(pictures[0], "Why?", settings=settings)
    assert asked["answer"]
    for part in (shown(pictures[0]), shown(vlm.encode_image(pictures[0])), as_url(pictures[0])):
        found = vlm.chat([{"role": "user", "content": [part, text("Why?")]}], settings=settings)
        assert found["message"] == {"role": "assistant", "content": asked["answer"]}
        assert found["logprobs"] == asked["logprobs"] and found["finish_reason"] == asked["finish_reason"]
    alone = [{"role": "user", "content": "Why?"}]
    assert vlm.chat(alone, settings=LONG)["message"]["content"] == vlm.query(question="Why?", settings=LONG)["answer"]


def test_a_conversation_goes_on_from_what_came_back(endless, pictures):
    messages = [{"role": "user", "content": [shown(pictures[0]), text("Why?")]}]
    first = endless.chat(messages, settings=LONG)["message"]
    messages += [first, {"role": "user", "content": "And?"}]
    whole = endless.chat(messages, settings=LONG)
    stream = endless.chat(messages, stream=True, settings=LONG)["message"]
    assert streamed(stream) == whole["message"]["content"] and told(stream.result()) == told(whole)


def test_reasoning_in_a_conversation(endless, pictures):
    messages, settings = [{"role": "user", "content": [shown(pictures[0]), text("Why?")]}], HOT | {"max_tokens": 20}
    asked = endless.query(pictures[0], "Why?", reasoning=True, settings=settings)
    message = endless.chat(messages, reasoning=True, settings=settings)["message"]
    assert message["content"] == asked["answer"] and message["reasoning"] == asked["reasoning"]["text"]
    assert message["reasoning_details"] == {"grounding": asked["reasoning"]["grounding"]}
    stream = endless.chat(messages, stream=True, reasoning=True, settings=settings)["message"]
    assert stream.reasoning() == asked["reasoning"] and streamed(stream) == asked["answer"]


def test_tasks_chat_as_threads_do(vlm, pictures):
    messages = [{"role": "user", "content": [shown(pictures[0]), text("Why?")]}]
    expected = vlm.chat(messages, settings=LONG)

    async def tasks():
        tasks = gapless.AsyncVLM(vlm)
        whole = await tasks.chat(messages, settings=LONG)
        stream = (await tasks.chat(messages, stream=True, settings=LONG))["message"]
        return whole, "".join([piece async for piece in stream])

    whole, said = asyncio.run(tasks())
    assert told(whole) == told(expected) and said == expected["message"]["content"]


@pytest.mark.parametrize(
    ("image", "what"),
    [
        (as_url(noise(0))["image_url"]["url"][:60], "truncated"),
        ("http://127.0.0.1/a.png", "nothing is fetched"),
        ("/etc/passwd", "neither a data URL nor base64"),
    ],
)
def test_a_picture_that_is_none_is_named(vlm, image, what):
    part = {"type": "image_url", "image_url": {"url": image}}
    with pytest.raises(errors.InvalidImage) as caught:
        vlm.chat([{"role": "user", "content": [text("Why?"), part]}])
    assert caught.value.param == "messages[0].content[1]"
    with pytest.raises(errors.InvalidRequest, match="reasoning must be"):
        vlm.chat([{"role": "user", "content": "Why?"}], reasoning="yes")
    with pytest.raises(errors.GaplessError):
        vlm.chat([{"role": "user", "content": [shown(np.zeros(3)), text("Why?")]}])
