"""How requests ended and what they took, counted from the outside: one note a request, when its caller is told.

In: the finish of every request, from whichever side brings it to its caller. Out: `Endings`, for a report. What comes
in may be wrong in any way (negative, NaN): it is left out, and nothing here raises, since the thread that counts is the
one that delivers answers. Written by one thread; who reads it elsewhere may see one request half counted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from gapless.errors import EngineClosed, RequestCancelled, RequestTimeout
from gapless.records import Finish, FinishReason, Metrics

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SHORT_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)


class Ending(StrEnum):
    """How a request ended. ABORT: its caller left or cancelled it, or the engine was closed before it was done."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    TIMEOUT = "timeout"
    ERROR = "error"

    @classmethod
    def of(cls, finish: Finish) -> Ending:
        """Of a request's last word."""
        match finish.error:
            case None:
                return cls.LENGTH if finish.reason is FinishReason.LENGTH else cls.STOP
            case RequestCancelled() | EngineClosed():
                return cls.ABORT
            case RequestTimeout():
                return cls.TIMEOUT
            case _:
                return cls.ERROR


@dataclass(frozen=True, slots=True)
class Spread:
    """How values were spread: `counts` [len(bounds) + 1] between the upper `bounds`, the last above all; their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class Histogram:
    """A spread that grows."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value so many times. One that is negative, infinite or no number is left out."""
        if 0 <= value < inf and times > 0:
            self._counts[bisect_left(self._bounds, value)] += times
            self._total += value * times

    def spread(self) -> Spread:
        """As it is now."""
        return Spread(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class Endings:
    """What an `Answers` has counted: requests by ending, and spreads by name (see there)."""

    ended: dict[str, int]
    spreads: dict[str, Spread]


class Answers:
    """Counts requests that ended.

    Spreads in seconds: `queue` waiting for a row, `prefill` from then to the first token, `first_token` from submission
    to it, `decode` from it to the end, `whole` from submission to the end, `token_gap` between two tokens (each of a
    request's gaps counts as their mean). In tokens: `prompt`, `generated`. Requests that never came to the engine's
    ledgers are counted by ending alone; what concerns tokens only of requests that have had one.
    """

    def __init__(self) -> None:
        self._ended = {ending.value: 0 for ending in Ending}
        self._spreads = {name: Histogram(SECONDS) for name in ("queue", "prefill", "first_token", "decode", "whole")}
        self._spreads["token_gap"] = Histogram(SHORT_SECONDS)
        self._spreads |= {name: Histogram(TOKENS) for name in ("prompt", "generated")}

    def note(self, finish: Finish) -> None:
        """A request has ended."""
        self._ended[Ending.of(finish).value] += 1
        if finish.metrics.input_tokens > 0:
            self._measure(finish.metrics)

    def _measure(self, took: Metrics) -> None:
        spreads = self._spreads
        spreads["queue"].add(took.queue_ms / 1e3)
        spreads["whole"].add((took.ttft_ms + took.decode_ms) / 1e3)
        spreads["prompt"].add(took.input_tokens)
        spreads["generated"].add(took.output_tokens)
        if took.output_tokens > 0:
            spreads["prefill"].add(took.prefill_ms / 1e3)
            spreads["first_token"].add(took.ttft_ms / 1e3)
        if (gaps := took.output_tokens - 1) > 0:
            spreads["decode"].add(took.decode_ms / 1e3)
            spreads["token_gap"].add(took.decode_ms / 1e3 / gaps, gaps)

    def endings(self) -> Endings:
        """As it is now."""
        return Endings(dict(self._ended), {name: one.spread() for name, one in self._spreads.items()})
