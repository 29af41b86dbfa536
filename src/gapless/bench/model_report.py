"""The cost model's table: what a report, the published figures or a person's own numbers say pipelining is worth.

In: points of one of the three, depths, and numbers to put in the place of measured ones (`WhatIf`). Out: `ModelRow`s,
with the prediction beside what was observed. Pure. `predicted_gain` is made from parts; for the published figures at
their own depth it is made from their two periods, as their authors did. The other way is beside it where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gapless.bench.cost_model import Parts, Point, Prediction, gain_of_periods, points_of, predict
from gapless.bench.published import DEPTH, PUBLISHED
from gapless.errors import InvalidRequest

TOKENS = 110.0
"""L where nobody says it: about what the decode benchmark's answers have."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Numbers instead of measured ones, None for none: milliseconds of one step, and tokens of an answer (L)."""

    forward_ms: float | None = None
    sampling_ms: float | None = None
    host_ms: float | None = None
    chain_ms: float | None = None
    tokens: float | None = None

    @property
    def times(self) -> bool:
        """Whether a time is given, so that measured periods no longer apply."""
        return any(value is not None for value in (self.forward_ms, self.sampling_ms, self.host_ms, self.chain_ms))

    def applied(self, point: Point) -> Point:
        """The point with these numbers in it. T_block is G + H then.

        A host time alone moves the chain by as much. With another forward the slope is unknown: the marginal row cost
        becomes None.
        """
        tokens = point.tokens if self.tokens is None else self.tokens
        if not self.times:
            return replace(point, tokens=tokens)
        old = point.parts
        host = _or(self.host_ms, old.host_ms)
        chain = _or(self.chain_ms, max(0.0, old.chain_ms + host - old.host_ms))
        forward = _or(self.forward_ms, old.forward_ms)
        parts = Parts(forward, _or(self.sampling_ms, old.sampling_ms), host, chain)
        row = point.row_ms if self.forward_ms is None else None
        return Point(point.streams, parts, parts.period_ms(1), tokens, row)

    def alone(self, streams: int) -> Point:
        """A point of nothing but these numbers: sampling 0 if not given, host and chain stand for one another.

        Raises `InvalidRequest` without a forward, or without a host's part.
        """
        if not self.forward_ms:
            raise InvalidRequest("without a report the forward's time is needed; give --forward-ms", param="forward_ms")
        host = self.chain_ms if self.host_ms is None else self.host_ms
        if host is None:
            raise InvalidRequest(
                "without the host's part of a step there is nothing to hide; give --host-ms or --chain-ms",
                param="host_ms",
            )
        parts = Parts(self.forward_ms, _or(self.sampling_ms, 0.0), host, _or(self.chain_ms, host))
        return Point(streams, parts, parts.period_ms(1), _or(self.tokens, TOKENS))


def _or(given: float | None, other: float) -> float:
    return other if given is None else given


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One line. `predicted`: see the module; `by_parts`, `by_periods`: both ways (the second only where T_pipe was
    measured); `measured_ms`: T_pipe as measured; `gpu`: of published figures, else empty; `sampler`: of a report that
    tells it, else empty, behind the model in a report of several."""

    predicted: Prediction
    by_parts: Prediction
    by_periods: Prediction | None = None
    measured_ms: float | None = None
    observed: float | None = None
    gpu: str = ""
    sampler: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON: milliseconds, and gains and shares as fractions."""
        point = self.predicted.point
        return {
            **({"gpu": self.gpu} if self.gpu else {}),
            **({"sampler": self.sampler} if self.sampler else {}),
            "streams": point.streams,
            "depth": self.predicted.depth,
            "forward_ms": point.parts.forward_ms,
            "sampling_ms": point.parts.sampling_ms,
            "device_ms": point.parts.device_ms,
            "host_ms": point.parts.host_ms,
            "chain_ms": point.parts.chain_ms,
            "blocking_ms": point.blocking_ms,
            "pipelined_ms": self.predicted.pipelined_ms,
            "measured_ms": self.measured_ms,
            "answer_tokens": point.tokens,
            "marginal_row_ms": point.row_ms,
            "zombie_tax": self.predicted.tax,
            "predicted_gain": self.predicted.gain,
            "gain_by_parts": self.by_parts.gain,
            "gain_by_periods": self.by_periods.gain if self.by_periods else None,
            "observed_gain": self.observed,
        }


def report_rows(
    rows: Sequence[Mapping[str, Any]],
    depths: Sequence[int] = (),
    streams: Sequence[int] = (),
    what: WhatIf | None = None,
) -> list[ModelRow]:
    """Lines of a decode report, by sampler, streams and depth. No `depths`: those measured above 1, or 2; no `streams`:
    all."""
    kinds = dict.fromkeys(map(_kind, rows))
    groups = [(kind, [row for row in rows if _kind(row) == kind]) for kind in kinds]
    return [line for sampler, mine in groups for line in _lines(mine, depths, streams, what or WhatIf(), sampler)]


def _kind(row: Mapping[str, Any]) -> str:
    """A row's sampler, behind its model if it says so: a report of several does."""
    return ", ".join(row[name] for name in ("model", "sampler") if row.get(name))


def _lines(
    rows: Sequence[Mapping[str, Any]], depths: Sequence[int], streams: Sequence[int], what: WhatIf, sampler: str
) -> list[ModelRow]:
    points = _wanted(points_of(rows, what.tokens), streams)
    depths = depths or sorted({row["depth"] for row in rows} - {1}) or (2,)
    measured = {} if what.times else {(row["streams"], row["depth"]): row for row in rows}
    lines = []
    for point in points.values():
        for depth in depths:
            row = measured.get((point.streams, depth), {})
            by_parts = predict(what.applied(point), depth)
            period = row.get("period_ms")
            by_periods = gain_of_periods(by_parts.point, depth, period) if period else None
            lines.append(ModelRow(by_parts, by_parts, by_periods, period, row.get("observed_gain"), sampler=sampler))
    return lines


def published_rows(
    depths: Sequence[int] = (), streams: Sequence[int] = (), tokens: float | None = None
) -> list[ModelRow]:
    """Lines of the published figures; at other depths than theirs, or with other lengths, from parts."""
    lines = []
    for row in PUBLISHED:
        if streams and row.streams not in streams:
            continue
        point = row.point if tokens is None else replace(row.point, tokens=tokens)
        for depth in depths or (DEPTH,):
            by_parts = predict(point, depth)
            if depth != DEPTH:
                lines.append(ModelRow(by_parts, by_parts, gpu=row.gpu))
                continue
            by_periods = gain_of_periods(point, depth, row.pipelined_ms)
            observed = row.observed if tokens is None else None
            lines.append(ModelRow(by_periods, by_parts, by_periods, row.pipelined_ms, observed, row.gpu))
    if not lines:
        raise InvalidRequest(f"published are 1, 8 and 32 streams, not {_listed(streams)}", param="streams")
    return lines


def imagined_rows(what: WhatIf, depths: Sequence[int] = (), streams: Sequence[int] = ()) -> list[ModelRow]:
    """Lines of a person's own numbers. No `depths`: 1 to 4; no `streams`: one. Raises as `WhatIf.alone`."""
    found = [predict(what.alone(count), depth) for count in streams or (1,) for depth in depths or (1, 2, 3, 4)]
    return [ModelRow(prediction, prediction) for prediction in found]


def _wanted(points: dict[int, Point], streams: Sequence[int]) -> dict[int, Point]:
    if not points:
        raise InvalidRequest(
            "no row of depth 1 has the device's time (device_ms, or forward_ms and sampling_ms), its period, the "
            "host's parts and a length of answers; measure depth 1 too, or give --tokens if only the length is missing",
            param="rows",
        )
    missing = [count for count in streams if count not in points]
    if missing:
        raise InvalidRequest(
            f"the report can predict {_listed(points)} streams, not {_listed(missing)}", param="streams"
        )
    return {count: points[count] for count in streams} if streams else points


def _listed(numbers: Sequence[int] | dict[int, Point]) -> str:
    return ", ".join(str(number) for number in numbers)
