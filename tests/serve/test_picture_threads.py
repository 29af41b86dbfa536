"""Few threads read pictures and text, and neither they nor an engine that hangs keep the server from ending."""

import asyncio
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from tests.api.engine_room import PATIENCE
from tests.serve.conftest import LIMITS, SMALL, Silent, Site, png, url

import gapless
from gapless.api import desk
from gapless.serve import engine as serving
from gapless.serve.app import make_app
from gapless.serve.engine import Engine

THREADS = 2


@asynccontextmanager
async def begun(site):
    """The application between its start and its end, with the threads that belong to it."""
    site.app = make_app(site.engine, site.gate, LIMITS, (), threads=THREADS)
    inner = site.app._app
    async with inner.router.lifespan_context(inner):
        while not site.engine.ready:
            await asyncio.sleep(0.005)
        yield


@pytest.fixture
def slow_pictures(monkeypatch):
    """Decoding waits until it is let go; who does it, and how many at once, is noted."""
    seen = SimpleNamespace(now=0, most=0, names=set(), go=threading.Event(), lock=threading.Lock())
    real = desk.PictureCache.prepare

    def slow(*arguments):
        with seen.lock:
            seen.now += 1
            seen.most = max(seen.most, seen.now)
            seen.names.add(threading.current_thread().name.rpartition("_")[0])
        assert seen.go.wait(PATIENCE)
        with seen.lock:
            seen.now -= 1
        return real(*arguments)

    monkeypatch.setattr(desk.PictureCache, "prepare", slow)
    yield seen
    seen.go.set()


def test_s_mem_05_and_s_con_13_few_pictures_are_decoded_at_once_and_health_does_not_wait(micro_folder, slow_pictures):
    site = Site(gapless.load(micro_folder))
    body = {"image_url": url(png(1)), "question": "What?", "settings": SMALL}

    async def crowd():
        async with begun(site), site.client() as client:
            asking = [asyncio.create_task(client.post("/v1/query", json=body)) for _ in range(12)]
            while slow_pictures.now < THREADS or site.gate.held < 12:
                await asyncio.sleep(0.005)
            health, scrape = await client.get("/health"), await client.get("/metrics")
            slow_pictures.go.set()
            return health, scrape, await asyncio.gather(*asking)

    health, scrape, answers = asyncio.run(crowd())
    assert health.json()["requests"] == 12 and scrape.status_code == 200
    assert {one.status_code for one in answers} == {200}
    assert slow_pictures.most == THREADS and slow_pictures.names == {"gapless-picture"}


def test_s_tok_08_a_long_text_is_read_beside_the_loop(micro_folder, monkeypatch):
    """Whatever a long body costs, it costs one of those threads."""
    site = Site(gapless.load(micro_folder))
    names, real = set(), desk.Desk.ask

    def noted(*arguments):
        names.add(threading.current_thread().name.rpartition("_")[0])
        return real(*arguments)

    monkeypatch.setattr(desk.Desk, "ask", noted)

    async def once():
        async with begun(site), site.client() as client:
            return await client.post("/v1/query", json={"question": "a " * 100_000, "settings": SMALL})

    assert asyncio.run(once()).status_code == 400 and names == {"gapless-picture"}


def test_an_engine_that_does_not_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(serving, "CLOSE_WITHIN", 0.05)
    forever, asked = threading.Event(), []

    def close(drain, within):
        asked.append((drain, within))
        forever.wait()

    async def end():
        engine = Engine(lambda progress: None, Silent())
        engine.adopt(SimpleNamespace(desk=SimpleNamespace(close=close)))
        await asyncio.wait_for(engine.close(), PATIENCE)
        await asyncio.wait_for(engine.close(), PATIENCE)

    asyncio.run(end())
    forever.set()
    assert asked == [(False, 0.05)]
