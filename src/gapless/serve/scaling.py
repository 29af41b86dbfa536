"""How many engines a fleet is to have, by what waits and by how much their devices idle.

In: what Ray Serve's controller knows of a deployment, with what its replicas told (`Told`). Out: a number of replicas;
Ray applies delays and bounds to it. This module is pickled by value and imports nothing of the project.

Requests that an engine holds are the measure, since a GPU with one row is as busy as one with 64. Two things are read
from the engines beside it. Requests that wait for a row say that the target was set too high: one more engine is
wanted. A device that idles says that requests wait for something else (their bodies, slow readers, a host that cannot
keep up): another GPU would idle too, so none is added. While anything waits for a row, no engine is given up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

WAITING, IDLE = "waiting", "idle"
MOST_IDLE = 0.6
"""Share of the time in which the devices of an engine that is held back by its GPU do not idle."""


@dataclass(frozen=True)
class Told:
    """One replica's view: requests without a row, and the share of the last seconds that its device did nothing."""

    waiting: float
    idle: float

    def as_dict(self) -> dict[str, float]:
        """As Ray wants it."""
        return {WAITING: self.waiting, IDLE: self.idle}


def wanted(now: int, held: float, target: float, waiting: float, idle: float, most_idle: float = MOST_IDLE) -> int:
    """How many engines there are to be, `now` of them being there.

    `held`: requests of the whole fleet, queued ones too; `target`: what one engine is to hold; `waiting`: requests
    without a row; `idle`: mean share of the time that devices did nothing, 0..1.
    """
    by_queue = math.ceil(held / target - 1e-9)
    if now == 0:
        return by_queue
    if waiting >= 1:
        by_queue = max(by_queue, now + 1)
    if by_queue > now and idle > most_idle:
        return now
    return by_queue


class QueueAndBubble:
    """The policy, for `autoscaling_config.policy`. `most_idle`: devices that idle more get no help; 1: all do."""

    def __init__(self, most_idle: float = MOST_IDLE) -> None:
        self._most_idle = most_idle

    def __call__(self, ctx: Any) -> tuple[int, dict[str, Any]]:
        """Once every control period. `ctx`: Ray's `AutoscalingContext`."""
        told = ctx.aggregated_metrics or {}
        waits, idles = told.get(WAITING) or {}, told.get(IDLE) or {}
        idle = sum(idles.values()) / len(idles) if idles else 0.0
        number = wanted(
            ctx.target_num_replicas,
            float(ctx.total_num_requests),
            float(ctx.config.target_ongoing_requests),
            sum(waits.values()),
            idle,
            self._most_idle,
        )
        return number, {}


def idle_share(busy_ms: float, wall_ms: float) -> float:
    """Of a stretch of time in which the device was busy for so long; 0 for no stretch."""
    return 1.0 - min(1.0, max(0.0, busy_ms / wall_ms)) if wall_ms > 0 else 0.0
