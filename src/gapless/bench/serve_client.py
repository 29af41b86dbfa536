"""The clients of the serving benchmark, as a process of their own: `python -m gapless.bench.serve_client`.

In: a load as a line of JSON on standard input. Out: a line of JSON on standard output: what it came to, or an error.
Pictures, base64 and bodies are made before the first call. HTTP/1.1 is spoken over plain sockets, a kept connection for
each task, and of an answer only its end is read as JSON: what the clients cost is told, and is to be little. Ends with
the input.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from gapless.bench.clients import QUESTION
from gapless.bench.pictures import jpegs
from gapless.bench.serve_load import Heard, Load, Look, run_load

PATH = "/v1/query"
BUFFER = 2**20
_VALUE = re.compile(r"^gapless:(?P<name>\w+)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_KIND = re.compile(r'(?:^|,)kind="(\w+)"')
_CPU = re.compile(r"^process_cpu_seconds_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Job:
    """A load for a server on this machine. `side`: pixels of the model's crops."""

    port: int
    side: int
    stream: bool
    load: Load

    @classmethod
    def read(cls, found: dict[str, Any]) -> Job:
        """From JSON."""
        return cls(found["port"], found["side"], found["stream"], Load(**found["load"]))


class Connection:
    """One kept connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        """Connect to a server on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=BUFFER))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def whole(self, request: bytes) -> bytes:
        """Send a request, head and body, and return the answer's body. Raises `ConnectionError` unless it is 200."""
        return b"".join([part async for part in self.parts(request)])

    async def parts(self, request: bytes) -> AsyncIterator[bytes]:
        """The same, part by part as they were sent."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"\ncontent-length: *(\d+)", head)
        parts = self._chunks() if length is None else self._counted(int(length[1]))
        status = head.split(maxsplit=2)[1]
        if status != b"200":
            said = b"".join([part async for part in parts])
            raise ConnectionError(f"the server answered {status.decode()}: {said[:300].decode(errors='replace')}")
        async for part in parts:
            yield part

    async def _counted(self, length: int) -> AsyncIterator[bytes]:
        yield await self._reader.readexactly(length)

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)


class HttpSide:
    """The load's other side: a server. Requests are whole before the clock starts."""

    def __init__(self, connections: list[Connection], watcher: Connection, requests: list[bytes], stream: bool) -> None:
        self._connections = connections
        self._watcher = watcher
        self._requests = requests
        self._stream = stream

    async def ask(self, caller: int, number: int) -> Heard:
        """See `Side`."""
        connection, request, events = self._connections[caller], self._requests[number], 0
        began = perf_counter()
        if self._stream:
            said = rest = b""
            async for part in connection.parts(request):
                *whole, rest = (rest + part).split(b"\n\n")
                events += len(whole)
                said = whole[-1].removeprefix(b"data: ") if whole else said
        else:
            said = await connection.whole(request)
        ended = perf_counter()
        answer = json.loads(said)
        metrics = answer["metrics"]
        return Heard(
            began, ended, metrics["output_tokens"], metrics["decode_time_ms"], str(answer["finish_reason"]), events
        )

    async def look(self) -> Look:
        """See `Side`."""
        asked = perf_counter()
        text = await self._watcher.whole(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        return look_of(text.decode(), asked, perf_counter())


def look_of(text: str, asked: float, told: float) -> Look:
    """The totals that a server's /metrics tells. Raises `KeyError` if it tells another kind of totals."""
    found: dict[tuple[str, str], float] = {}
    for line in _VALUE.finditer(text):
        kind = _KIND.search(line["labels"])
        found[line["name"], kind[1] if kind else ""] = float(line["value"])
    busy = sum(value for (name, _), value in found.items() if name == "device_busy_seconds_total")
    cpu = _CPU.search(text)
    return Look(
        asked=asked,
        told=told,
        tokens=found["generation_tokens_total", ""],
        decode_steps=found["steps_total", "decode"],
        prefill_steps=found["steps_total", "prefill"],
        busy_ms=1e3 * busy,
        idle_ms=1e3 * found["bubble_seconds_total", ""],
        cpu_s=float(cpu[1]) if cpu else 0.0,
    )


def request_of(picture: bytes, job: Job) -> bytes:
    """A question about a picture as it goes over the wire."""
    url = f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
    asked = {"question": QUESTION, "image_url": url, "stream": job.stream, "settings": dict(job.load.settings)}
    body = json.dumps(asked).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


async def work(job: Job) -> dict[str, Any]:
    """Do a job."""
    pictures = jpegs(job.load.first, job.load.requests, job.side)
    requests = [request_of(picture, job) for picture in pictures]
    opened = [await Connection.open(job.port) for _ in range(job.load.callers + 1)]
    gc.collect()
    try:
        run = await run_load(job.load, HttpSide(opened[1:], opened[0], requests, job.stream))
    finally:
        for connection in opened:
            connection.close()
    return run.as_dict()


def main() -> None:
    """Jobs until the input ends."""
    for line in sys.stdin:
        try:
            said = asyncio.run(work(Job.read(json.loads(line))))
        except BaseExceptionGroup as group:
            said = {"error": f"{len(group.exceptions)} failed, the first: {group.exceptions[0]!r}"}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
