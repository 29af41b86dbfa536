"""The official `moondream` client, unchanged but for its endpoint, against a running server with the bundled model.

It is installed without its dependencies (see CONTRIBUTING.md); where it is not, these tests are skipped.
"""

import json
import time
import urllib.error
import urllib.request
from importlib.metadata import PackageNotFoundError, version

import pytest
from PIL import Image

import gapless
from gapless.bench.mix import picture_path

PICTURE = Image.open(picture_path("shapes_square"))
COLD = {"temperature": 0}

try:
    CLIENT = version("moondream")
except PackageNotFoundError:
    CLIENT = None
pytestmark = pytest.mark.skipif(
    CLIENT is None, reason="the official client is not installed: pip install --no-deps moondream==2.6.1"
)


@pytest.fixture(scope="module")
def client(endpoint):
    import moondream

    return moondream.vl(endpoint=endpoint)


@pytest.fixture(scope="module")
def vlm():
    with gapless.load("glint") as vlm:
        yield vlm


@pytest.fixture(scope="module")
def picture(client):
    """The picture as the client sends it, for the library: JPEG changes pixels."""
    import base64

    return base64.b64decode(client.encode_image(PICTURE).image_url.partition(",")[2])


def plain(result):
    return {key: value for key, value in result.items() if key not in ("finish_reason", "metrics")}


def test_query(client, vlm, picture):
    question = "How many crosses are there?"
    said = client.query(PICTURE, question, settings=COLD)
    assert said == plain(vlm.query(picture, question, settings=COLD))
    assert said["answer"] == "2"
    streamed = client.query(PICTURE, question, stream=True, settings=COLD)["answer"]
    assert "".join(streamed) == said["answer"]
    refs = {"spatial_refs": [[0.73, 0.57]], "settings": COLD}
    assert client.query(PICTURE, "What is this?", **refs) == plain(vlm.query(picture, "What is this?", **refs))
    alone = client.query(question="Who are you?", settings=COLD)
    assert alone == plain(vlm.query(question="Who are you?", settings=COLD))


def test_caption(client, vlm, picture):
    said = client.caption(PICTURE, "short", settings=COLD)
    assert said == plain(vlm.caption(picture, "short", settings=COLD))
    pieces = list(client.caption(PICTURE, "short", stream=True, settings=COLD)["caption"])
    assert len(pieces) > 1 and "".join(pieces) == said["caption"]


def test_point_and_detect(client, vlm, picture):
    said = client.point(PICTURE, "cross")
    assert len(said["points"]) == 2 and said == plain(vlm.point(picture, "cross"))
    said = client.detect(PICTURE, "cross", settings={"max_objects": 1})
    assert len(said["objects"]) == 1 and said == plain(vlm.detect(picture, "cross", settings={"max_objects": 1}))


def test_segment(client, vlm, picture):
    said = client.segment(PICTURE, "star")
    assert said == plain(vlm.segment(picture, "star")) and said["bbox"]
    found = list(client.segment(PICTURE, "star", stream=True))
    assert found[0] == {"bbox": said["bbox"]}
    assert found[-1] == said | {"completed": True}
    assert all(set(piece) == {"chunk"} for piece in found[1:-1])


def test_s_shu_04_a_stream_that_is_dropped_is_cancelled(client, endpoint):
    streams = [client.caption(PICTURE, stream=True)["caption"] for _ in range(2)]
    streams.append(client.segment(PICTURE, "star", stream=True))
    for stream in streams:
        next(stream)
        stream.close()
    health, end = endpoint.removesuffix("/v1") + "/health", time.monotonic() + 30
    while (held := json.loads(urllib.request.urlopen(health).read())["requests"]) and time.monotonic() < end:
        time.sleep(0.02)
    assert held == 0


def test_an_error_is_an_error(client):
    for stream in (False, True):
        with pytest.raises(urllib.error.HTTPError) as told:
            answer = client.query(PICTURE, "What?", stream=stream, settings={"max_tokens": 0})["answer"]
            "".join(answer)
        assert told.value.code == 400
        told.value.close()
