"""Troubles reported of other servers that take more than one request to see, and bodies of every shape."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.asking import idle
from tests.serve.conftest import SMALL, png, url
from tests.serve.test_door import called

from gapless.images.cache import PictureCache
from gapless.images.data_url import picture_bytes
from gapless.serve import moondream

ROUTES = ("query", "caption", "detect", "point", "segment")
WARM = {"temperature": 1.5, "top_p": 1.0, "max_tokens": 12, "seed": 5}


def test_s_con_08_and_18_answers_are_those_of_their_own_picture(site, vlm):
    """Sizes, texts without a picture and one picture twice, all at once, whole and streamed."""
    pictures = [png(1, 10, 10), png(2, 30, 200), png(3, 75, 75), None, png(1, 10, 10), png(4, 200, 30)]
    bodies = [
        {"question": "What?", "settings": WARM, "stream": stream} | ({"image_url": url(one)} if one else {})
        for one in pictures
        for stream in (False, True)
    ]
    expected = [vlm.query(one, "What?", settings=WARM)["answer"] for one in pictures for _ in range(2)]

    async def together():
        async with site.client() as client:
            return await asyncio.gather(*(client.post("/v1/query", json=body) for body in bodies * 3))

    found = asyncio.run(together())
    assert [answer_of(said) for said in found] == expected * 3
    assert len({said.headers["x-request-id"] for said in found}) == len(found)


def answer_of(said):
    if said.headers["content-type"] == "application/json":
        return said.json()["answer"]
    events = [json.loads(line.removeprefix("data: ")) for line in said.text.split("\n\n") if line]
    return "".join(event["chunk"] for event in events)


@pytest.fixture
def held_decoding(monkeypatch):
    """Pictures whose decoding waits; `reached` says that one does."""
    reached, go_on = threading.Event(), threading.Event()

    def slowly(image_url):
        reached.set()
        assert go_on.wait(20)
        return picture_bytes(image_url)

    monkeypatch.setattr(moondream, "picture_bytes", slowly)
    yield reached, go_on
    go_on.set()


def test_s_con_13_health_does_not_wait_for_a_picture(site, held_decoding):
    reached, go_on = held_decoding

    async def asking():
        async with site.client() as client:
            body = {"image_url": url(png(1)), "question": "What?", "settings": SMALL}
            slow = asyncio.create_task(client.post("/v1/query", json=body))
            await asyncio.to_thread(reached.wait, 20)
            health = await client.get("/health")
            text = await client.post("/v1/query", json={"question": "Who?", "settings": SMALL})
            assert not slow.done()
            go_on.set()
            return health, text, await slow

    assert [said.status_code for said in asyncio.run(asking())] == [200, 200, 200]


@pytest.mark.parametrize("stream", [False, True])
def test_s_con_04_a_client_that_leaves_while_its_picture_is_decoded_leaves_no_orphan(site, vlm, monkeypatch, stream):
    reached, go_on, decoded = threading.Event(), threading.Event(), threading.Event()
    prepare = PictureCache.prepare

    def slowly(cache, image):
        reached.set()
        assert go_on.wait(20)
        try:
            return prepare(cache, image)
        finally:
            decoded.set()

    monkeypatch.setattr("gapless.api.desk.PictureCache.prepare", slowly)
    before = vlm.accounting().counters.prefill_steps
    body = {"image_url": url(png(1)), "question": "What?", "settings": SMALL, "stream": stream}

    async def leaving():
        leave = asyncio.Event()
        asking = asyncio.create_task(called(site, body, leave))
        await asyncio.to_thread(reached.wait, 20)
        assert site.gate.held == 1
        leave.set()
        messages = await asking
        go_on.set()
        await asyncio.to_thread(decoded.wait, 20)
        return messages

    assert asyncio.run(leaving())[0]["status"] == 499
    assert site.gate.held == 0
    idle(vlm)
    assert vlm.accounting().counters.prefill_steps == before


def test_s_det_07_a_skill_that_the_model_does_not_have_is_told_501(site, vlm, monkeypatch):
    context = vlm.desk.context
    monkeypatch.setattr(vlm.desk, "context", replace(context, templates=replace(context.templates, segment=None)))
    for stream in (False, True):
        said = site.post("/v1/segment", {"image_url": url(png(1)), "object": "dog", "stream": stream})
        assert said.status_code == 501 and said.json()["error"]["type"] == "unsupported_skill"
        assert "has no skill 'segment'" in said.json()["error"]["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
PICTURES = st.sampled_from(
    [url(png(1, 8, 8)), "", "data:,", "data:image/png;base64,AAAA", "http://a/b", "AAAA", "\ud800"]
)
FIELDS = {
    "image_url": PICTURES | JSON,
    "question": st.sampled_from(["What?", "", "\x00", "\ud800"]) | JSON,
    "object": st.sampled_from(["dog", "\ufeff", "a" * 500]) | JSON,
    "length": st.sampled_from(["short", "x"]) | JSON,
    "reasoning": st.booleans() | JSON,
    "stream": st.booleans() | JSON,
    "spatial_refs": st.just([[0.5, 0.5]]) | JSON,
    "settings": st.fixed_dictionaries({"max_tokens": st.just(2)}, optional={"temperature": JSON, "x": JSON}) | JSON,
    "model": st.just("micro") | JSON,
    "extra": JSON,
}
BODIES = st.fixed_dictionaries({}, optional=FIELDS) | JSON


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(route=st.sampled_from(ROUTES), body=BODIES)
def test_no_body_is_a_failure_of_the_server(site, route, body):
    said = site.raw(f"/v1/{route}", json.dumps(body).encode())
    assert said.status_code in (200, 400, 404), (said.status_code, said.text)
    assert said.status_code == 200 or said.json()["error"]["message"]
    assert site.gate.held == 0
