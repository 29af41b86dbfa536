"""What pipelining is worth: the cost model of a decode step, as pure arithmetic.

In: what one step takes, part by part (isolated graphs, the loop thread, the blocking engine's period), and how long
answers are. Out: the period at any depth and the gain in throughput above depth 1. With

- G, the device's time of a step: forward + sampling,
- C, the loop thread's time of a step: plan + launch + commit,
- H, the chain from "sampled" to the next step's launch when nothing overlaps: the copy to the host and the part of C
  that must come before a launch; T_block - G,
- N, the depth, and L, the mean number of tokens of an answer,

    period(N) = max(G, C, (G + H) / N)        N steps in flight share one step's whole cycle, G + H
    gain      = T_block / T_pipe * (1 - z) - 1
    z         = (N - 1) / L                                      one stream: each answer wastes N - 1 whole steps
    z         = (N - 1) * B / L * (marginal row cost) / T_pipe   B streams: each of B answers wastes N - 1 single rows

The marginal row cost is the slope of the forward's time from the next smaller measured number of streams to this one.
B streams emit B tokens a step and end B / L answers a step, and a zombie in a batch costs a row of the next step, not a
step. Where no smaller number was measured, a row counts as the B-th part of the step, which gives (N - 1) / L again; it
is too much rather than too little, since a step has a part that does not depend on its rows. z is the first order in
1 / L, a little above the exact (N - 1) / (L + N - 1). Copies to the host are taken to be shorter than a period.

T_pipe is `period(N)`, made from the blocking engine's parts alone, so a prediction uses nothing of the pipelined run
(but for L, where a report does not say it: see `answer_tokens`). `gain_of_periods` takes a measured T_pipe instead: the
published figures were made so. Invariant: depth 1 has period T_block, no tax and no gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Parts:
    """What one step of the blocking engine takes. Milliseconds, none negative.

    `forward_ms`, `sampling_ms`: the device, alone. `host_ms`: C. `chain_ms`: H, which contains the copy and usually
    most of C.
    """

    forward_ms: float
    sampling_ms: float
    host_ms: float
    chain_ms: float

    @property
    def device_ms(self) -> float:
        """G: forward + sampling."""
        return self.forward_ms + self.sampling_ms

    def period_ms(self, depth: int) -> float:
        """Milliseconds from one step's start to the next one's with `depth` steps in flight (1 or more)."""
        return max(self.device_ms, self.host_ms, (self.device_ms + self.chain_ms) / depth)

    def masked_period_ms(self, depth: int) -> float:
        """The same where every row's mask is built on the host, with masks that take no time.

        A step is sampled only after the commit of the step before it, which comes after that one was sampled: beside
        the forward, and from depth 2 on, runs the cycle sampling + H. More depth does not shorten it.
        """
        if depth == 1:
            return self.period_ms(1)
        return max(self.device_ms, self.host_ms, self.sampling_ms + self.chain_ms)


@dataclass(frozen=True, slots=True)
class Point:
    """One number of streams, as measured at depth 1.

    `blocking_ms`: T_block. `tokens`: L. `row_ms`: the marginal row cost in milliseconds, None where no smaller number
    of streams was measured.
    """

    streams: int
    parts: Parts
    blocking_ms: float
    tokens: float
    row_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a point at a depth. `pipelined_ms`: T_pipe; `tax`: z, 0..1; `gain`: a fraction."""

    point: Point
    depth: int
    pipelined_ms: float
    tax: float
    gain: float


def predict(point: Point, depth: int) -> Prediction:
    """Predict from parts, nothing of a pipelined run."""
    pipelined = point.blocking_ms if depth == 1 else point.parts.period_ms(depth)
    return gain_of_periods(point, depth, pipelined)


def gain_of_periods(point: Point, depth: int, pipelined_ms: float) -> Prediction:
    """The same formula with a given T_pipe, as measured: what the two periods and the zombies leave of the gain."""
    tax = zombie_tax(depth, point.streams, point.tokens, point.row_ms, pipelined_ms)
    return Prediction(point, depth, pipelined_ms, tax, speedup(point.blocking_ms, pipelined_ms, tax) - 1.0)


def speedup(blocking_ms: float, pipelined_ms: float, tax: float) -> float:
    """Throughput above the blocking engine's: T_block / T_pipe * (1 - z)."""
    return blocking_ms / pipelined_ms * (1.0 - tax)


def zombie_tax(depth: int, streams: int, tokens: float, row_ms: float | None, pipelined_ms: float) -> float:
    """z: the share of the device's time that goes to rows that have ended, 0..1. See the module.

    `tokens`: L, 1 or more; `row_ms`: the marginal row cost, None for the step's `streams`-th part.
    """
    whole = 1.0 / tokens
    each = whole if streams == 1 or row_ms is None else whole * streams * row_ms / pipelined_ms
    return min(1.0, (depth - 1) * each)


def marginal_row_ms(forwards: Mapping[int, float], streams: int) -> float | None:
    """Slope of the forward's time (`forwards`: milliseconds by streams) from the next smaller number up to `streams`.

    Milliseconds a row, 0 where a larger step was measured to be faster; None where there is no smaller number.
    """
    smaller = max((count for count in forwards if count < streams), default=None)
    if smaller is None:
        return None
    return max(0.0, (forwards[streams] - forwards[smaller]) / (streams - smaller))


def points_of(rows: Sequence[Mapping[str, Any]], tokens: float | None = None) -> dict[int, Point]:
    """The points of a decode report's rows, by streams; streams whose depth-1 row has a hole are left out.

    From the row of depth 1: G is `device_ms`, or where a report lacks it `forward_ms` + `sampling_ms` (the same graphs
    replayed alone, without what a launch puts around them), C is `plan_ms` + `launch_ms` + `commit_ms`, T_block is
    `period_ms`, H what of T_block is not G. `tokens` overrides L; else see `answer_tokens`.
    """
    blocking = {row["streams"]: row for row in rows if row["depth"] == 1}
    forwards = {streams: time for streams, row in blocking.items() if (time := _forward_of(row))}
    points = {}
    for streams, row in sorted(blocking.items()):
        length = tokens or answer_tokens([other for other in rows if other["streams"] == streams])
        parts = _parts_of(row)
        if parts is not None and length is not None:
            points[streams] = Point(streams, parts, row["period_ms"], length, marginal_row_ms(forwards, streams))
    return points


def _parts_of(row: Mapping[str, Any]) -> Parts | None:
    forward, sampling, period = _forward_of(row), row.get("sampling_ms") or 0.0, row.get("period_ms")
    host = [row[name] for name in ("plan_ms", "launch_ms", "commit_ms") if row.get(name) is not None]
    if not forward or not period or len(host) < 3:
        return None
    return Parts(forward, sampling, sum(host), max(0.0, period - forward - sampling))


def _forward_of(row: Mapping[str, Any]) -> float | None:
    """All of a step on the device but its sampling; None where the row does not say."""
    if row.get("device_ms"):
        return float(row["device_ms"] - (row.get("sampling_ms") or 0.0))
    return row["forward_ms"] if row.get("forward_ms") and row.get("sampling_ms") is not None else None


def answer_tokens(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """L of the rows of one number of streams: the mean of their `answer_tokens`.

    Where a report lacks that column: from the zombies of the least depth that has any. Each answer made depth - 1 of
    them, so L = (depth - 1) * (1 / zombie_share - 1), counted from the first step with all rows. None without either.
    """
    told = [row["answer_tokens"] for row in rows if row.get("answer_tokens")]
    if told:
        return float(sum(told) / len(told))
    haunted = sorted((row["depth"], row["zombie_share"]) for row in rows if row.get("zombie_share"))
    return (haunted[0][0] - 1) * (1.0 / haunted[0][1] - 1.0) if haunted else None


def predict_rows(rows: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """The predicted gain of each row of a decode report, a fraction; None where depth 1 lacks what it takes."""
    points = points_of(rows)
    return [predict(points[row["streams"]], row["depth"]).gain if row["streams"] in points else None for row in rows]
