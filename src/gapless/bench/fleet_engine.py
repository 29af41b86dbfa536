"""One engine of the fleet benchmark: a process with a GPU of its own, asked through a pipe.

In: `Ask`s. Out: a `Done` each, in any order, and at the end what the engine says of itself. Requests run as tasks of
one event loop, so that the engine's thread shares the interpreter with little else.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from time import perf_counter
from typing import Any

from gapless.api.aio import AsyncVLM
from gapless.api.vlm import VLM
from gapless.bench.clients import QUESTION

PAGE_SIZE = 16
PAGES_EACH = 192
"""Pages for each row on a GPU: a running request has about 50, the rest keeps pictures for those who ask again."""
CPU = "cpu"
_MIX = 2654435761
"""Knuth's multiplier: neighbours get lengths far apart."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an engine is made of. `tokens`: of an answer on average, see `length`."""

    model: str
    device: str
    rows: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """One question about a picture's file; it has `number`."""

    number: int
    picture: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it. `cached`: tokens of the prompt that were there already; `error`: "" if there was none."""

    number: int
    tokens: int
    cached: int
    error: str = ""


def run_engine(pipe: Connection, sizes: Sizes, compiled: Event) -> None:
    """The process: says ("ready", seconds) or ("failed", why), answers until it is sent None, and says what it spent
    whenever it is sent "spent". `compiled`: see `open_engine`."""
    began = perf_counter()
    try:
        vlm = open_engine(sizes, compiled)
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
        raise
    with vlm:
        pipe.send(("ready", perf_counter() - began))
        asyncio.run(_answer(pipe, AsyncVLM(vlm), sizes))


def open_engine(sizes: Sizes, compiled: Event) -> VLM:
    """A bundled or local model on the CPU; on a GPU one of random weights and full size, whose kernels are compiled or
    looked up when `compiled` is set."""
    if sizes.device == CPU:
        import gapless

        return gapless.load(sizes.model, device=CPU, max_rows=sizes.rows, threads=1)
    from gapless.api.load import assemble
    from gapless.api.opening import MAX_STEP_MS
    from gapless.bench.cuda_rig import open_device
    from gapless.config import EngineConfig, ImageLimits
    from gapless.constrain.table import build_table
    from gapless.device.graphs import buckets_for
    from gapless.models.moondream.model import Moondream
    from gapless.models.moondream.templates import Templates
    from gapless.models.registry import random_model

    loaded = random_model(sizes.model, sizes.device, "bfloat16")
    table = build_table(Templates.of(loaded.config).rules())
    limit = MAX_STEP_MS["cuda"]
    config = EngineConfig(max_rows=sizes.rows, page_size=PAGE_SIZE, pages=PAGES_EACH * sizes.rows, max_step_ms=limit)
    compiled.wait()
    if isinstance(loaded.model, Moondream):
        loaded.model.compile_ahead(buckets_for(sizes.rows), PAGE_SIZE)
    device = open_device(loaded.model, table, config)
    return assemble(loaded, device, table, config, ImageLimits(), getattr(device, "plan", None))


def length(number: int, mean: int) -> int:
    """Tokens of the answer to request `number`: half to one and a half times as many as on average. Answers of one
    length would end together, and so would those that take their places."""
    return max(1, mean // 2 + number * _MIX % 2**32 % (mean + 1))


async def _answer(pipe: Connection, vlm: AsyncVLM, sizes: Sizes) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Queue[Any]()

    def listen() -> None:
        wanted = True
        while wanted:
            try:
                message = pipe.recv()
            except EOFError:
                message = None
            wanted = message is not None
            loop.call_soon_threadsafe(asked.put_nowait, message)

    threading.Thread(target=listen, name="gapless-fleet-pipe", daemon=True).start()
    running: set[asyncio.Task[None]] = set()
    while (message := await asked.get()) is not None:
        if isinstance(message, Ask):
            task = asyncio.ensure_future(_one(pipe, vlm, message, length(message.number, sizes.tokens)))
            running.add(task)
            task.add_done_callback(running.discard)
        else:
            pipe.send(("spent", vlm.stats()))
    await asyncio.gather(*running)


async def _one(pipe: Connection, vlm: AsyncVLM, ask: Ask, tokens: int) -> None:
    settings = {"max_tokens": tokens, "temperature": 0}
    try:
        answer = await vlm.query(ask.picture, QUESTION, settings=settings)
    except Exception as error:
        pipe.send(Done(ask.number, 0, 0, f"{type(error).__name__}: {error}"[:300]))
        return
    metrics = answer["metrics"]
    pipe.send(Done(ask.number, metrics["output_tokens"], metrics["cached_tokens"]))
