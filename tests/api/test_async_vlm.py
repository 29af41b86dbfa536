"""`AsyncVLM`: the same answers with `await`, a free event loop, and cancelled tasks that cancel their requests."""

import asyncio
import threading

import pytest
from tests.api.asking import calls, idle, told
from tests.api.engine_room import PATIENCE
from tests.api.test_streams import HOT, LONG

import gapless
from gapless import errors


def run(main):
    """Run a coroutine; a hang fails."""
    return asyncio.run(asyncio.wait_for(main, PATIENCE), debug=True)


def test_every_method_answers_as_the_blocking_one(vlm, pictures):
    alone = {name: told(call()) for name, call in calls(vlm, pictures[0], 1).items()}

    async def main():
        pending = calls(gapless.AsyncVLM(vlm), pictures[0], 1)
        results = await asyncio.gather(*(call() for call in pending.values()))
        return dict(zip(pending, map(told, results), strict=True))

    assert run(main()) == alone


def test_streams_lists_and_encoded_images(vlm, endless, pictures):
    settings = HOT | {"max_tokens": 60, "seed": 1}
    whole = endless.caption(pictures[0], settings=settings)
    reasoned = endless.query(pictures[0], "Why?", reasoning=True, settings=settings)
    many = [told(r) for r in endless.point(list(pictures), "x", settings={"max_objects": 2})]

    async def main():
        a = gapless.AsyncVLM(endless)
        image = await a.encode_image(pictures[0])
        stream = (await a.caption(image, stream=True, settings=settings))["caption"]
        pieces = [await anext(stream)] + [piece async for piece in stream]
        assert len(pieces) > 1 and "".join(pieces) == whole["caption"]
        assert told(await stream.result()) == told(whole) and stream.finish_reason == "length"
        result = await a.query(image, "Why?", reasoning=True, stream=True, settings=settings)
        assert result["reasoning"] == reasoned["reasoning"]
        assert "".join([piece async for piece in result["answer"]]) == reasoned["answer"]
        last = [piece async for piece in await a.segment(image, "x", stream=True, settings={"max_tokens": 9})][-1]
        assert last["completed"] is True
        assert [told(r) for r in await a.point(list(pictures), "x", settings={"max_objects": 2})] == many
        kept = await a.caption([b"", pictures[0]], settings={"max_tokens": 2}, on_error="return")
        assert isinstance(kept[0], errors.InvalidImage) and "caption" in kept[1]
        with pytest.raises(errors.InvalidImage):
            await a.caption([pictures[0], b""], settings=LONG)
        late = await a.chat([{"role": "user", "content": "Why?"}], True, {"timeout": 1e-6}, reasoning=True)
        for _ in range(2):
            with pytest.raises(errors.RequestTimeout):
                await late["message"].reasoning()

    run(main())
    idle(endless)


def test_pictures_are_prepared_off_the_event_loop(vlm, pictures, monkeypatch):
    threads = []
    right = vlm.desk.ask

    def ask(image, asking):
        threads.append(threading.current_thread())
        return right(image, asking)

    monkeypatch.setattr(vlm.desk, "ask", ask)

    async def main():
        await gapless.AsyncVLM(vlm).caption(pictures[0], settings={"max_tokens": 2})

    run(main())
    assert threads and threading.main_thread() not in threads


@pytest.mark.parametrize("how", ["call", "list", "stream"])
def test_a_cancelled_task_cancels_its_request(endless, pictures, how):
    async def ask(a):
        if how == "stream":
            async for _ in (await a.caption(pictures[0], stream=True, settings=LONG))["caption"]:
                pass
        else:
            await a.caption(list(pictures) if how == "list" else pictures[0], settings=LONG)

    async def main():
        task = asyncio.create_task(ask(gapless.AsyncVLM(endless)))
        while not len(endless.desk.runner._engine.roster):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    idle(endless)
    assert endless.stats()["tokens"] < 6000
    assert "caption" in endless.caption(pictures[0], settings={"max_tokens": 2})


def test_leaving_a_loop_closing_or_dropping_a_stream_cancels(endless, pictures):
    async def main():
        a = gapless.AsyncVLM(endless)
        left, closed, dropped = [
            (await a.caption(picture, stream=True, settings=LONG))["caption"] for picture in pictures[:3]
        ]
        async for _ in left:
            break
        with pytest.raises(errors.RequestCancelled):
            async for _ in left:
                pass
        await anext(closed)
        await closed.aclose()
        assert [piece async for piece in closed] == []
        await anext(dropped)
        del dropped
        while len(endless.desk.runner._engine.roster):
            await asyncio.sleep(0.01)

    run(main())
    idle(endless)
    assert endless.stats()["failed"] == 3


def test_a_timeout_and_wait_for(endless, pictures):
    async def main():
        a = gapless.AsyncVLM(endless)
        with pytest.raises(errors.RequestTimeout):
            await a.caption(pictures[0], settings=LONG | {"timeout": 0.2})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(a.caption(pictures[0], settings=LONG), 0.2)

    run(main())
    idle(endless)


def test_a_block_closes_the_engine(micro_folder, pictures):
    async def main():
        async with gapless.AsyncVLM(gapless.load(micro_folder)) as a:
            assert "caption" in await a.caption(pictures[0], settings={"max_tokens": 2})
            assert a.stats()["finished"] == a.stats()["pictures_decoded"] == 1
        with pytest.raises(errors.EngineClosed):
            await a.caption(pictures[0])

    run(main())


def test_an_event_loop_that_ends_cancels_what_it_waited_for(endless, pictures):
    async def main():
        task = asyncio.create_task(gapless.AsyncVLM(endless).caption(pictures[0], settings=LONG))
        while not len(endless.desk.runner._engine.roster):
            await asyncio.sleep(0.01)
        assert not task.done()

    run(main())
    idle(endless)
