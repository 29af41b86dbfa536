"""How much the server takes: places, bytes, seconds.

In: requests. Out: their bodies, checked, or an error with its status. Invariants: no more than `Gate.places` answers
are wanted at once, from before bodies are read until after their last byte is sent; no body grows past its limit,
whatever it declares about its length.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from gapless.errors import InvalidRequest, RequestCancelled, shown
from gapless.records import Clock
from gapless.serve.errors import (
    BodyTooLarge,
    NotJson,
    NotServing,
    RateLimited,
    TooManyRequests,
    TooSlow,
    field_error,
)

Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer")

SMALL = 2**14
"""Bytes of a body that are parsed on the spot; larger ones go where pictures are decoded."""
MOST_COMMAS = 50_000
"""In a body: far more than any context has room for. Millions of small values would take the interpreter seconds in
which it does nothing else, and many times the body's memory."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Per request: the body's size in bytes, seconds for it to arrive, for the answer, and for a client to read one
    event of a stream; pictures in a conversation."""

    max_body_bytes: int
    body_timeout: float
    request_timeout: float
    send_timeout: float
    max_pictures: int = 8


class Gate:
    """Counts requests in, and none more than `places`. Belongs to the event loop's thread."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.held = 0
        self.closed = False

    def close(self) -> None:
        """Let nobody in any more; those inside go on."""
        self.closed = True

    def check(self) -> None:
        """Raises `NotServing` once closed."""
        if self.closed:
            raise NotServing("the server is stopping and takes no new requests; ask again in a few seconds")

    @contextmanager
    def place(self) -> Iterator[Places]:
        """Hold a place, and perhaps more of them later. Raises `NotServing` once closed, `TooManyRequests` when all are
        taken."""
        self.check()
        places = Places(self)
        places.widen(1)
        try:
            yield places
        finally:
            self.held -= places.count


class Places:
    """What one HTTP request holds: a place for each answer that the engine computes for it."""

    def __init__(self, gate: Gate) -> None:
        self.count = 0
        self._gate = gate

    def widen(self, count: int) -> None:
        """Hold so many. Raises `TooManyRequests`, and nothing has changed, when so many are not free; `InvalidRequest`
        when they never are."""
        gate = self._gate
        if count > gate.places > 0:
            raise InvalidRequest(
                f"n is {count}, and this server takes {gate.places} requests at once; ask for fewer", param="n"
            )
        more = count - self.count
        if gate.held + more > gate.places:
            free = gate.places - gate.held
            taken = f"of {gate.places} places {free or 'none'} are free and {more} more are wanted"
            raise TooManyRequests(f"{taken}; the others are taken by requests that run or wait; ask again later")
        gate.held += more
        self.count = count


class LoopClock:
    """The clock of asyncio's loops."""

    now = staticmethod(time.monotonic)


class RateLimit:
    """For each key a bucket that holds up to `burst` requests and gains `rate` a second; it begins full. Belongs to the
    event loop's thread."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """What a key's bucket held, and when."""

    def take(self, key: str) -> None:
        """One request of this key, which must be one of the server's. Raises `RateLimited`."""
        now = self._clock.now()
        held, since = self._buckets.get(key, (float(self._burst), now))
        held = min(float(self._burst), held + self._rate * (now - since))
        if held < 1:
            self._buckets[key] = held, now
            whose = "this key" if key else "this server"
            raise RateLimited(
                f"{whose} takes {self._rate:g} requests a second and {self._burst} at once; ask again later",
                (1 - held) / self._rate,
            )
        self._buckets[key] = held - 1, now


async def read(request: Request, kind: type[Body], limits: RequestLimits) -> Body:
    """The body as a `kind`. Raises `InvalidRequest` naming the field, `BodyTooLarge`, `TooSlow`, `NotJson`."""
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json":
        raise NotJson(f"send JSON, with Content-Type: application/json; this is {shown(declared or 'not declared')}")
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        raise NotJson(f"send JSON as it is, without Content-Encoding; this is {shown(coding)}")
    data = await read_bytes(request, limits)
    parsed = parse(data) if len(data) <= SMALL else await asyncio.to_thread(parse, data)
    try:
        return kind.model_validate(parsed)
    except ValidationError as error:
        raise field_error(error, kind.model_fields) from error


async def read_bytes(request: Request, limits: RequestLimits) -> bytes:
    """The body as it is. Raises `BodyTooLarge`, `TooSlow`."""
    try:
        async with asyncio.timeout(limits.body_timeout):
            return await _bounded(request, limits.max_body_bytes)
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {limits.body_timeout:g} seconds; send it faster") from error


async def _bounded(request: Request, most: int) -> bytes:
    """Read while counting, since a length may be missing or wrong."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > most):
        raise _too_large(most)
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
            if len(data) > most:
                raise _too_large(most)
    except ClientDisconnect as error:
        raise RequestCancelled("the client left before its request was complete") from error
    return bytes(data)


def _too_large(most: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over the limit of {most} bytes; send a smaller picture, or raise max_body_bytes")


def parse(data: bytes) -> Any:
    """JSON as its standard has it: no NaN, no infinity, no name twice in one object, of which one would be passed over;
    nor more than `MOST_COMMAS`. Raises `InvalidRequest`."""
    if data.count(b",") > MOST_COMMAS:
        raise InvalidRequest(f"the body has more than {MOST_COMMAS} commas; no model has room for so much")
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_each_once)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:120]
        raise InvalidRequest(f"the body is not JSON: {reason}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidRequest(
            f"the body has {shown(twice)} twice in one object; send it once", param=ascii(twice)[1:-1][:80]
        )
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Wait for the work, and give it up when the client leaves. What is left of the body is skipped."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RequestCancelled("the client left before its answer was ready")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def gone(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
