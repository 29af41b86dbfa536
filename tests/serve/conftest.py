"""A served micro model without a socket: the application is called in the test's own event loop."""

import asyncio
import base64
import io
import json
import socket

import httpx
import numpy as np
import pytest
from PIL import Image
from tests.api.conftest import endless_folder, micro_folder, one_thread  # noqa: F401 - fixtures
from tests.serve.serving import Served

import gapless
from gapless.serve.app import make_app
from gapless.serve.engine import Engine
from gapless.serve.limits import Gate, RequestLimits

LIMITS = RequestLimits(max_body_bytes=2 * 2**20, body_timeout=5.0, request_timeout=60.0, send_timeout=5.0)
SMALL = {"temperature": 0, "max_tokens": 4}


class Silent:
    def show(self, doing, done, total):
        pass

    def say(self, line):
        pass

    def ready(self, line):
        pass


class Site:
    """A model behind routes, with what a test looks at."""

    def __init__(self, vlm, limits=LIMITS, keys=(), places=64):
        self.vlm = vlm
        self.engine = Engine(lambda progress: vlm, Silent())
        if vlm is not None:
            self.engine.adopt(vlm)
        self.gate = Gate(places)
        self.app = make_app(self.engine, self.gate, limits, keys)

    def client(self):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)

    def ask(self, method, path, **options):
        async def once():
            async with self.client() as client:
                return await client.request(method, path, **options)

        return asyncio.run(once())

    def post(self, path, body):
        return self.ask("POST", path, json=body)

    def raw(self, path, data):
        return self.ask("POST", path, content=data, headers={"content-type": "application/json"})


def png(seed=0, height=60, width=80):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels), "PNG")


def encoded(image, kind):
    data = io.BytesIO()
    image.save(data, kind)
    return data.getvalue()


def url(data, head="data:image/png;base64,"):
    return head + base64.b64encode(data).decode()


def events(text):
    """The events of a stream, each of which must end with an empty line."""
    assert text.endswith("\n\n")
    parts = text.removesuffix("\n\n").split("\n\n")
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.fixture(scope="module")
def vlm(micro_folder):  # noqa: F811
    with gapless.load(micro_folder, page_size=16) as vlm:
        yield vlm


@pytest.fixture(scope="module")
def site(vlm):
    return Site(vlm)


@pytest.fixture
def free_port():
    """For a server whose log cannot be read."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    """A running server with the bundled model."""
    server = Served("glint", tmp_path_factory.mktemp("served") / "log")
    try:
        server.said("curl http://")
        yield f"http://127.0.0.1:{server.port}/v1"
    finally:
        assert server.end() == 0
