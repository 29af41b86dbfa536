"""Chat completions: the same answers as the library's, in OpenAI's shapes, whole and streamed."""

import asyncio
import gc
import json

import pytest
from tests.api.asking import idle
from tests.serve.conftest import Site, png, url
from tests.serve.test_door import called

import gapless
from gapless.serve.events import TORN
from gapless.serve.limits import RequestLimits

CHAT = "/v1/chat/completions"
WARM = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 12, "seed": 5}
PICTURE = {"type": "image_url", "image_url": {"url": url(png(1))}}


def asks(*parts):
    parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": parts}]


def chat(site, messages, **fields):
    said = site.post(CHAT, {"messages": messages} | fields)
    assert said.status_code == 200, said.text
    return said.json()


def chunks(site, messages, **fields):
    """The chunks of a stream, whose last event is [DONE] with an empty line behind it (S-STR-08)."""
    said = site.post(CHAT, {"messages": messages, "stream": True} | fields)
    assert said.status_code == 200 and said.headers["content-type"].startswith("text/event-stream"), said.text
    *events, done, rest = said.text.split("\n\n")
    assert done == "data: [DONE]" and rest == ""
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    found = [json.loads(event.removeprefix("data: ")) for event in events]
    assert len({(one["id"], one["created"], one["model"]) for one in found}) == 1
    assert {one["object"] for one in found} == {"chat.completion.chunk"}
    return found


def joined(found, index=0):
    """Content, finish reasons and logprobs of one choice."""
    own = [choice for one in found for choice in one["choices"] if choice["index"] == index]
    text = "".join(choice["delta"].get("content", "") for choice in own)
    reasons = [choice["finish_reason"] for choice in own if choice["finish_reason"]]
    scores = [score for choice in own if choice["logprobs"] for score in choice["logprobs"]["content"]]
    assert own[0]["delta"] == {"role": "assistant", "content": ""} and own[-1]["delta"] == {}
    return text, reasons, scores


@pytest.fixture(scope="module")
def endless(endless_folder):
    with gapless.load(endless_folder, max_rows=4) as vlm:
        yield vlm


def test_one_turn_is_the_librarys_query(site, vlm):
    expected = vlm.query(png(1), "Why?", settings=WARM)
    said = chat(site, asks(PICTURE, "Why?"), **WARM)
    (choice,) = said["choices"]
    assert expected["answer"]
    assert choice["message"] == {"role": "assistant", "content": expected["answer"], "refusal": None}
    assert choice["finish_reason"] == expected["finish_reason"] and choice["logprobs"] is None
    prompt, generated = (expected["metrics"][name] for name in ("input_tokens", "output_tokens"))
    assert said["usage"]["prompt_tokens"] == prompt and said["usage"]["completion_tokens"] == generated
    assert said["usage"]["total_tokens"] == prompt + generated
    assert said["object"] == "chat.completion" and said["model"] == vlm.desk.context.name


def test_turns_and_pictures_are_the_librarys_chat(site, vlm):
    other = {"type": "image_url", "image_url": {"url": url(png(2)), "detail": "high"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        *asks(PICTURE, other, "Which?"),
        {"role": "assistant", "content": "This."},
        *asks("And?", other),
    ]
    expected = vlm.chat(messages, settings=WARM)
    assert chat(site, messages, **WARM)["choices"][0]["message"]["content"] == expected["message"]["content"] != ""
    assert joined(chunks(site, messages, **WARM))[0] == expected["message"]["content"]
    swapped = [messages[0], *asks(other, PICTURE, "Which?"), *messages[2:]]
    assert vlm.chat(swapped, settings=WARM)["message"] != expected["message"]


def test_s_str_03_and_04_usage_is_a_chunk_of_its_own_where_it_was_asked_for(site, endless):
    """S-STR-03, S-STR-04, S-STR-06, S-STR-09: one last chunk without choices; index is the choice's."""
    site = Site(endless)
    whole = chat(site, asks("Why?"), **WARM)
    plain = chunks(site, asks("Why?"), **WARM)
    assert all("usage" not in one and len(one["choices"]) == 1 for one in plain)
    *counted, last = chunks(site, asks("Why?"), stream_options={"include_usage": True}, **WARM)
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    assert all(one["usage"] is None and len(one["choices"]) == 1 for one in counted)
    for found in (plain, counted):
        assert {choice["index"] for one in found for choice in one["choices"]} == {0} and len(found) > 4
        assert joined(found)[:2] == (whole["choices"][0]["message"]["content"], ["length"])


def test_n_choices_have_seeds_of_their_own(site, vlm, endless):
    """S-STR-09: whole and streamed, the same in both; the first does not depend on how many there are."""
    site, shown = Site(endless), asks(PICTURE, "Why?")
    one, three = (chat(site, shown, n=n, **WARM) for n in (1, 3))
    texts = [choice["message"]["content"] for choice in three["choices"]]
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    assert texts[0] == one["choices"][0]["message"]["content"]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 3 * one["usage"]["completion_tokens"]
    found = chunks(site, shown, n=3, stream_options={"include_usage": True}, **WARM)
    assert [joined(found, index)[0] for index in range(3)] == texts
    assert found[-1]["usage"]["completion_tokens"] == three["usage"]["completion_tokens"]
    unseeded = chat(site, shown, n=2, **{name: value for name, value in WARM.items() if name != "seed"})
    assert len({choice["message"]["content"] for choice in unseeded["choices"]}) == 2
    idle(endless)


def test_s_str_02_stop_strings_whole_and_streamed(site, endless):
    """S-STR-02, S-STR-06: nothing of the match is sent; the request ends long before max_tokens."""
    site, hot = Site(endless), WARM | {"max_tokens": 5000}
    free = chat(site, asks("Why?"), **WARM)["choices"][0]["message"]["content"]
    stop = free[len(free) // 2 :][:4]
    for stops in (stop, ["nowhere to be found", stop]):
        whole = chat(site, asks("Why?"), **hot, stop=stops)
        assert whole["choices"][0]["message"]["content"] == free[: free.find(stop)]
        assert whole["choices"][0]["finish_reason"] == "stop" and whole["usage"]["completion_tokens"] <= 12
        *found, last = chunks(site, asks("Why?"), **hot, stop=stops, stream_options={"include_usage": True})
        assert joined(found)[:2] == (free[: free.find(stop)], ["stop"]) and last["usage"] == whole["usage"]
    idle(endless)


def test_s_str_02_each_of_several_choices_ends_before_its_own_stop(site, endless):
    """S-STR-02, S-STR-09: text, reason, logprobs and usage are the same whole and streamed, and of no neighbour."""
    site, hot = Site(endless), WARM | {"max_tokens": 5000, "logprobs": True}
    free = [choice["message"]["content"] for choice in chat(site, asks("Why?"), n=3, **WARM)["choices"]]
    stops = [text[len(text) // (2 + i) :][:4] for i, text in enumerate(free)]
    whole = chat(site, asks("Why?"), n=3, stop=stops, **hot)
    *found, last = chunks(site, asks("Why?"), n=3, stop=stops, stream_options={"include_usage": True}, **hot)
    for i, choice in enumerate(whole["choices"]):
        cut = free[i][: min(at for stop in stops if (at := free[i].find(stop)) >= 0)]
        assert choice["message"]["content"] == cut and choice["finish_reason"] == "stop"
        assert joined(found, i) == (cut, ["stop"], choice["logprobs"]["content"])
        assert (
            b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"])
            .decode(errors="replace")
            .startswith(cut)
        )
    assert last["usage"] == whole["usage"] and 3 <= whole["usage"]["completion_tokens"] <= 36
    alone = chat(site, asks("Why?"), stop=stops, **hot)
    assert alone["choices"][0] == whole["choices"][0]
    idle(endless)


@pytest.mark.parametrize(("fields", "alternatives"), [({"top_logprobs": None}, 0), ({"top_logprobs": 3}, 3)])
def test_s_api_07_and_10_logprobs(site, vlm, endless, fields, alternatives):
    """S-API-07, S-API-10: choices[].logprobs.content, streamed too; true alone gives the chosen tokens' only."""
    site = Site(endless)
    expected = endless.query(question="Why?", settings=WARM | {"logprobs": alternatives})["logprobs"]
    whole = chat(site, asks("Why?"), logprobs=True, **fields, **WARM)["choices"][0]
    assert whole["logprobs"] == {"content": expected, "refusal": None}
    assert {len(score["top_logprobs"]) for score in expected} == {alternatives}
    found = chunks(site, asks("Why?"), logprobs=True, **fields, **WARM)
    text, _, scores = joined(found)
    assert scores == expected and text == whole["message"]["content"]
    assert all(one["choices"][0]["logprobs"] is None for one in chunks(site, asks("Why?"), **WARM))


def test_reasoning(site, vlm):
    expected = vlm.query(png(1), "Why?", reasoning=True, settings=WARM)
    fields = {"reasoning": expected["reasoning"]["text"]}
    fields["reasoning_details"] = {"grounding": expected["reasoning"]["grounding"]}
    for skill in ({}, {"skill": "query"}):
        message = chat(site, asks(PICTURE, "Why?"), reasoning=True, **skill, **WARM)["choices"][0]["message"]
        assert message == fields | {"role": "assistant", "content": expected["answer"], "refusal": None}
        found = chunks(site, asks(PICTURE, "Why?"), reasoning=True, **skill, **WARM)
        assert found[1]["choices"][0]["delta"] == fields and joined(found)[0] == expected["answer"]


REFS = [[0.2, 0.3]]


@pytest.mark.parametrize(
    ("skill", "word", "fields", "ask"),
    [
        ("detect", "dog", {"max_objects": 2}, lambda vlm, picture: vlm.detect(picture, "dog", {"max_objects": 2})),
        (
            "point",
            "dog",
            {"max_objects": 2, "spatial_refs": REFS},
            lambda vlm, picture: vlm.point(picture, "dog", {"max_objects": 2}, REFS),
        ),
        (
            "segment",
            "dog",
            {"max_tokens": 12},
            lambda vlm, picture: vlm.segment(picture, "dog", settings={"max_tokens": 12}),
        ),
    ],
)
def test_skills_answer_in_json_as_text_and_as_a_field(site, vlm, skill, word, fields, ask):
    expected = {k: v for k, v in ask(vlm, png(1)).items() if k not in ("metrics", "finish_reason")}
    earlier = [*asks(PICTURE, "What?"), {"role": "assistant", "content": "A"}]
    for messages in (asks(PICTURE, word), [*earlier, *asks(word)]):
        message = chat(site, messages, skill=skill, **fields)["choices"][0]["message"]
        assert message["result"] == expected == json.loads(message["content"])
    found = chunks(site, asks(PICTURE, word), skill=skill, stream_options={"include_usage": True}, **fields)
    assert len(found) == 4 and found[1]["choices"][0]["delta"]["result"] == expected
    assert json.loads(joined(found[:-1])[0]) == expected and found[-1]["usage"]["completion_tokens"] > 0


def test_captions_and_questions_are_skills_too(site, vlm):
    expected = vlm.caption(png(1), "short", settings=WARM)
    for messages in (
        asks(PICTURE, "Short"),
        [*asks("No."), {"role": "assistant", "content": "A"}, *asks(PICTURE, "short")],
    ):
        assert chat(site, messages, skill="caption", **WARM)["choices"][0]["message"]["content"] == expected["caption"]
    normal = vlm.caption(png(1), settings=WARM)["caption"]
    assert joined(chunks(site, asks(PICTURE), skill="caption", **WARM))[0] == normal
    asked = vlm.query(png(1), "Why?", settings=WARM, spatial_refs=REFS)["answer"]
    assert joined(chunks(site, asks(PICTURE, "Why?"), skill="query", spatial_refs=REFS, **WARM))[0] == asked


def test_s_api_05_a_seed_holds_in_company(site, endless):
    """S-API-05: the same answer again and again, whoever else is asked for beside it."""
    site = Site(endless)
    alone = chat(site, asks("Why?"), **WARM)["choices"][0]["message"]["content"]
    body = {"messages": asks("Why?")} | WARM
    other = {name: value for name, value in body.items() if name != "seed"}

    async def together(bodies):
        async with site.client() as client:
            return await asyncio.gather(*(client.post(CHAT, json=one) for one in bodies))

    for bodies in ([body, other, other], [other, body, other], [other, other, body]):
        said = asyncio.run(together(bodies))
        found = [one.json()["choices"][0]["message"]["content"] for one in said]
        assert found[bodies.index(body)] == alone != ""


@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_s_str_05_a_stream_that_fails_in_its_middle(site, endless, n):
    """S-STR-05: one event with the error in OpenAI's shape, no finish_reason, no [DONE], and the body is broken off."""
    site = Site(endless, RequestLimits(10**6, 5.0, 0.4, 5.0))
    body = {"messages": asks("Go on?"), "stream": True, "max_tokens": 5000, "n": n}
    messages = asyncio.run(called(site, body, path=CHAT))
    *pieces, last = [message["body"] for message in messages[1:]]
    last, _, rest = last.partition(b"\n\n")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert rest == TORN
    assert error["type"] == "server_error" and error["code"] == "request_timeout" and error["param"] is None
    assert messages[-1]["more_body"] and len(pieces) > n and all(b'"error"' not in piece for piece in pieces)
    assert all(b'"finish_reason":null' in piece for piece in pieces)
    idle(endless)


@pytest.mark.parametrize("stream", [False, True])
def test_every_choice_takes_a_place(endless, stream):
    """n=3 is three requests of the engine; what does not fit beside the others is told 429 and holds nothing."""
    site = Site(endless, places=4)
    body = {"messages": asks(PICTURE, "Go on?"), "stream": stream, "max_tokens": 5000, "n": 3}

    async def two_at_once():
        leave = asyncio.Event()
        asking = asyncio.create_task(called(site, body, leave, path=CHAT))
        while len(endless.desk.runner._engine.ledgers.rows.held()) < 3:
            await asyncio.sleep(0.005)
        assert site.gate.held == 3
        async with site.client() as client:
            refused = [await client.post(CHAT, json=body | {"n": n}) for n in (2, 5)]
            fits = await client.post(CHAT, json=body | {"n": 1, "max_tokens": 2, "stream": False})
        assert site.gate.held == 3
        leave.set()
        await asking
        return (*refused, fits)

    full, never, fits = asyncio.run(two_at_once())
    assert (full.status_code, never.status_code, fits.status_code) == (429, 400, 200)
    assert full.headers["retry-after"] and full.json()["error"]["code"] == "rate_limit_exceeded"
    assert never.json()["error"]["param"] == "n" and "4" in never.json()["error"]["message"]
    assert site.gate.held == 0
    idle(endless)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_all_choices(site, endless, stream):
    site = Site(endless)
    body = {"messages": asks(PICTURE, "Go on?"), "stream": stream, "max_tokens": 5000, "n": 3}

    async def leaving():
        leave = asyncio.Event()
        asking = asyncio.create_task(called(site, body, leave, path=CHAT))
        while len(endless.desk.runner._engine.ledgers.rows.held()) < 3:
            await asyncio.sleep(0.005)
        leave.set()
        await asking

    asyncio.run(leaving())
    assert site.gate.held == 0
    idle(endless)


def test_a_client_that_leaves_before_the_first_piece_ends_all_choices(site, endless):
    """They wait for rows that others hold, so nothing but the client's leaving can end them."""
    site, runner = Site(endless), endless.desk.runner
    body = {"messages": asks("Go on?"), "stream": True, "max_tokens": 5000}

    async def leaving():
        leave, hold = asyncio.Event(), asyncio.Event()
        others = [asyncio.create_task(called(site, body, hold, path=CHAT)) for _ in range(4)]
        while len(runner._engine.ledgers.rows.held()) < 4:
            await asyncio.sleep(0.005)
        asking = asyncio.create_task(called(site, body | {"n": 3}, leave, path=CHAT))
        while len(runner._open) < 7:
            await asyncio.sleep(0.005)
        leave.set()
        messages = await asking
        assert messages[0]["status"] == 499
        async with asyncio.timeout(20):
            while len(runner._open) > 4:
                await asyncio.sleep(0.005)
        hold.set()
        await asyncio.gather(*others)

    gc.collect()
    gc.disable()  # which would end forgotten streams too, some day
    try:
        asyncio.run(leaving())
    finally:
        gc.enable()
    assert site.gate.held == 0
    idle(endless)


def test_s_str_01_and_08_eight_streams_at_once_hold_whole_characters(site, vlm, monkeypatch):
    """S-STR-01, S-STR-08: joined they are the whole answers, of which each piece is a part; each ends as it must."""
    tokenizer, parts = vlm.desk.context.tokenizer, "🙂é".encode()
    pieces = {i: bytes(parts[b % 6] if b > 96 else b for b in piece) for i, piece in tokenizer._bytes.items()}
    monkeypatch.setattr(tokenizer, "_bytes", pieces)  # its letters are parts of characters now
    hot = WARM | {"temperature": 10.0, "max_tokens": 40}
    bodies = [
        {"messages": asks("Why?"), "seed": seed} | {k: v for k, v in hot.items() if k != "seed"} for seed in range(8)
    ]
    whole = [chat(site, **body)["choices"][0]["message"]["content"] for body in bodies]

    async def together():
        async with site.client() as client:
            return await asyncio.gather(*(client.post(CHAT, json=body | {"stream": True}) for body in bodies))

    for said, text in zip(asyncio.run(together()), whole, strict=True):
        assert said.text.endswith("\n\ndata: [DONE]\n\n")
        found = [json.loads(event.removeprefix("data: ")) for event in said.text.split("\n\n")[:-2]]
        pieces = [one["choices"][0]["delta"].get("content", "") for one in found]
        assert "".join(pieces) == text and all(piece in text for piece in pieces)
    assert len(set(whole)) == 8 and any("é" in text for text in whole)


def test_the_model_has_a_card(site, vlm):
    name = vlm.desk.context.name
    (card,) = site.ask("GET", "/v1/models").json()["data"]
    assert card["id"] == name and site.ask("GET", f"/v1/models/{name}").json() == card
    for model in (None, name, "moondream3-preview"):
        assert chat(site, asks("Why?"), model=model, max_tokens=1)["model"] == name
