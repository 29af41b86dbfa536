"""Both sides of the serving benchmark: one model folder, a real server around it, and an engine in this process.

In: a model, a device, how many requests at once. Out: runs of a load on either side. Both engines have the same rows,
pages and depth; while one is asked the other sleeps. `close` ends all processes and returns the server's exit code.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import torch

import gapless
from gapless.api.aio import AsyncVLM
from gapless.api.load import Progress
from gapless.api.vlm import VLM
from gapless.bench.clients import QUESTION
from gapless.bench.pictures import jpegs
from gapless.bench.rates import measure_rates, on_worker
from gapless.bench.rig import PAGE_SIZE, facts_of
from gapless.bench.serve_client import Job
from gapless.bench.serve_folder import write_folder
from gapless.bench.serve_load import Heard, Load, Look, Run, run_load
from gapless.bench.serve_process import Clients, Served
from gapless.models.moondream.config import read_config
from gapless.weights.folder import CONFIG, read_json

DEPTH = 2
PACKAGES = ("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "pyzmq", "msgspec")
QUESTION_ROOM = 64
"""Positions behind a picture for the question, and what is granted ahead of an answer."""


class HereSide:
    """The load's other side: the library in this process, from a picture's bytes to the answer, without any stream."""

    def __init__(self, vlm: VLM, load: Load, side: int) -> None:
        self._vlm = AsyncVLM(vlm)
        self._load = load
        self._pictures = jpegs(load.first, load.requests, side)

    async def ask(self, caller: int, number: int) -> Heard:
        """See `Side`."""
        began = perf_counter()
        answer = await self._vlm.query(self._pictures[number], QUESTION, settings=self._load.settings)
        ended, metrics = perf_counter(), answer["metrics"]
        return Heard(began, ended, metrics["output_tokens"], metrics["decode_time_ms"], str(answer["finish_reason"]))

    async def look(self) -> Look:
        """See `Side`."""
        asked = perf_counter()
        return Look.of(asked, self._vlm.accounting())


class ServeRig:
    """See the module. `rows`: requests at once; `longest`: tokens of the longest answers. `seconds`: what the parts of
    the start took."""

    def __init__(self, model: str, device: str, rows: int, longest: int, progress: Progress | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._began = perf_counter()
        self._device = torch.device(device)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        self._dtype = str(dtype).removeprefix("torch.")
        self.rates = on_worker(lambda: measure_rates(self._device, dtype), self._device)
        self._note("rates")
        self._room = Path(mkdtemp(prefix="gapless-bench-"))
        self._served: Served | None = None
        self._clients: Clients | None = None
        self._vlm: VLM | None = None
        try:
            self._open(model, device, rows, longest, progress)
        except BaseException:
            self.close()
            raise

    def _open(self, model: str, device: str, rows: int, longest: int, progress: Progress | None) -> None:
        """The server loads beside this process: both take their time over imports and graphs."""
        folder = write_folder(model, self._room, device)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        self._note("writing the weights")
        config = read_config(read_json(folder / CONFIG))
        self.name, self.side = folder.name, config.vision.crop_size
        prefix = config.text.prefix_attn
        room = min(config.text.max_context - prefix, QUESTION_ROOM + longest)
        pages = rows * (-(-prefix // PAGE_SIZE) + -(-room // PAGE_SIZE) + 2)
        pages = 1 + max(pages, -(-config.text.max_context // PAGE_SIZE) + 2)
        sizes = {"--max-rows": rows, "--pages": pages, "--depth": DEPTH, "--max-requests": 4 * rows}
        words = [str(word) for pair in sizes.items() for word in pair]
        words += ["--process", "on", "--device", device, "--host", "127.0.0.1"]
        self._served = Served([str(folder), *words], self._room / "server.log")
        self._clients = Clients(self._room / "clients.log")
        self._vlm = gapless.load(
            folder, device=device, depth=DEPTH, max_rows=rows, pages=pages, page_size=PAGE_SIZE, progress=progress
        )
        self._note("loading the engine here")
        self._served.until_ready(progress)
        shutil.rmtree(folder)  # both have read it
        self._note("waiting for the server")
        self.sizes = {"rows": rows, "pages": pages, "page_size": PAGE_SIZE, "depth": DEPTH}

    def _note(self, what: str) -> None:
        now = perf_counter()
        self.seconds[what], self._began = round(now - self._began, 2), now

    def over_http(self, load: Load, *, stream: bool) -> Run:
        """The clients' process asks the server."""
        assert self._clients is not None and self._served is not None
        return self._clients.run(Job(self._served.port, self.side, stream, load))

    def here(self, load: Load) -> Run:
        """Tasks of this process ask its engine."""
        assert self._vlm is not None
        return asyncio.run(run_load(load, HereSide(self._vlm, load, self.side)))

    def warm_up(self, load: Load) -> None:
        """The same on both sides, whole and as streams."""
        self.over_http(load, stream=False)
        self.over_http(replace(load, first=load.first + load.requests), stream=True)
        self.here(load)

    def facts(self) -> dict[str, Any]:
        """Machine, versions, clocks and the like, for the report's head."""
        facts = facts_of(self._device)
        facts["versions"] |= {name: found for name in PACKAGES if (found := _version(name))}
        if self._device.type == "cuda":
            from gapless.bench.gpu import clocks

            facts["clocks"] = clocks(self._device.index or 0)
        return {
            **facts,
            "device": self._device.type,
            "model": {"name": self.name, "dtype": self._dtype},
            "engine": self.sizes,
            **self.rates.as_dict(),
        }

    def stop(self) -> int:
        """End the server as its supervisor would; its exit code."""
        assert self._served is not None
        try:
            return self._served.stop()
        except subprocess.TimeoutExpired as error:
            raise ChildProcessError(f"the server did not end in {error.timeout:g} s: {self.last_words()}") from error

    def last_words(self) -> str:
        """The end of the server's log."""
        return "" if self._served is None else self._served.last_words()

    def close(self) -> None:
        """End everything that still runs, and take the folder away."""
        for process in (self._served, self._clients):
            if process is not None:
                process.close()
        if self._vlm is not None:
            self._vlm.close(drain=False)
        shutil.rmtree(self._room, ignore_errors=True)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
