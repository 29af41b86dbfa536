"""Callers of the library: so many threads, each of which asks about one picture after the other.

In: a `VLM`, pictures as files in memory, a number of threads. Out: a `Slice` with a `Sample` a picture. All begin at
the same moment, and nobody waits between two questions, so about `concurrency` requests are open until the pictures run
out.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING

from gapless.bench.latency import Sample, Slice

if TYPE_CHECKING:
    from gapless.api.vlm import VLM

QUESTION = "What is in this picture?"
Settings = Mapping[str, float | int]


def ask_all(vlm: VLM, pictures: Sequence[bytes], concurrency: int, settings: Settings) -> Slice:
    """Ask about every picture. Raises what a request raises, after all callers have ended."""
    waiting: SimpleQueue[bytes] = SimpleQueue()
    for picture in pictures:
        waiting.put(picture)
    start = threading.Barrier(concurrency + 1)

    def caller() -> list[Sample]:
        start.wait()
        mine: list[Sample] = []
        while True:
            try:
                picture = waiting.get_nowait()
            except Empty:
                return mine
            mine.append(ask(vlm, picture, settings))

    with ThreadPoolExecutor(concurrency) as pool:
        try:
            callers = [pool.submit(caller) for _ in range(concurrency)]
            before = vlm.accounting()
            start.wait()
            began = perf_counter()
            samples = tuple(sample for one in callers for sample in one.result())
            ended = perf_counter()
        except BaseException:  # the pool waits for its callers: let none wait for a start, or begin another question
            start.abort()
            with suppress(Empty):
                while True:
                    waiting.get_nowait()
            raise
    return Slice(samples, ended - began, vlm.accounting() - before)


def ask(vlm: VLM, picture: bytes, settings: Settings) -> Sample:
    """One question, from the picture's bytes to the whole answer."""
    began = perf_counter()
    encoded = vlm.encode_image(picture)
    prepared = perf_counter()
    metrics = vlm.query(encoded, QUESTION, settings=settings)["metrics"]
    ended = perf_counter()
    prepare, tokens = 1e3 * (prepared - began), metrics["output_tokens"]
    return Sample(
        prepare_ms=prepare,
        ttft_ms=prepare + metrics["ttft_ms"],
        latency_ms=1e3 * (ended - began),
        tpot_ms=metrics["decode_time_ms"] / (tokens - 1) if tokens > 1 else None,
        tokens=tokens,
    )


def prompt_ids(vlm: VLM) -> int:
    """How many ids the question takes behind a picture."""
    asked = vlm.desk.ask(None, vlm.desk.query(QUESTION, None, False, None))
    return len(asked.prompt.ids) - 1  # without a picture BOS leads them
