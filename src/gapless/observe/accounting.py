"""The accounting: a meter's totals at one moment, in milliseconds, and the difference between two.

In: a `Meter`. Out: a frozen value that may be kept, subtracted from a later one, and written as JSON. `Standing` and
`Snapshot` are what is held at that moment beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gapless.observe.answers import Endings
from gapless.observe.counters import Counters
from gapless.observe.meter import Meter, Part
from gapless.records import StepKind


@dataclass(frozen=True, slots=True)
class Standing:
    """What an engine holds at one moment: requests that run (they have a row), pages of the KV cache, steps in flight
    that hold a slot, adapters in the device's slots (whether or not somebody uses them), pages that nobody uses but the
    prefix cache, which gives them up when they are wanted (`pages_used` leaves them out), pictures whose embeddings are
    in host memory, and bytes they take there."""

    running: int = 0
    pages: int = 0
    pages_used: int = 0
    steps_in_flight: int = 0
    adapters: int = 0
    pages_cached: int = 0
    host_pictures: int = 0
    host_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Accounting:
    """Totals since the engine began, or between two moments (`later - earlier`).

    `counters` are counts; all times are milliseconds. `busy` by kind of step and `idle_ms` are the device's while there
    was work (see `observe.bubble`), `steps` how many of each kind landed. `host` are the parts of the loop's thread by
    label (see `observe.meter.Part`), those it waited in among them; they add up to `wall_ms`. `in_flight` [depth + 1]:
    time by number of steps in flight, while there was work.
    """

    counters: Counters
    steps: dict[str, int]
    busy: dict[str, float]
    idle_ms: float
    host: dict[str, float]
    in_flight: tuple[float, ...]
    longest_step_ms: float = 0.0
    """Of all since the engine began, in a difference too."""

    @classmethod
    def of(cls, meter: Meter) -> Accounting:
        """What the meter says now. The part that is under way is not in it yet."""
        bubble = meter.bubble
        return cls(
            counters=Counters(*(getattr(meter.counters, field.name) for field in fields(Counters))),
            steps={kind.value: bubble.kinds[kind].steps for kind in StepKind},
            busy={kind.value: 1e3 * bubble.kinds[kind].seconds for kind in StepKind},
            idle_ms=1e3 * bubble.idle,
            host={part.label: 1e3 * meter.spent[part] for part in Part},
            in_flight=(1e3 * (meter.held[0] - meter.spent[Part.MAIL]), *(1e3 * seconds for seconds in meter.held[1:])),
            longest_step_ms=1e3 * bubble.longest,
        )

    def __sub__(self, earlier: Accounting) -> Accounting:
        """What came in between, of the same engine."""
        counts = zip(_counts(self.counters), _counts(earlier.counters), strict=True)
        return Accounting(
            counters=Counters(*(now - then for now, then in counts)),
            steps={kind: count - earlier.steps[kind] for kind, count in self.steps.items()},
            busy={kind: spent - earlier.busy[kind] for kind, spent in self.busy.items()},
            idle_ms=self.idle_ms - earlier.idle_ms,
            host={part: spent - earlier.host[part] for part, spent in self.host.items()},
            in_flight=tuple(now - then for now, then in zip(self.in_flight, earlier.in_flight, strict=True)),
            longest_step_ms=self.longest_step_ms,
        )

    @property
    def busy_ms(self) -> float:
        """The device's time in steps of all kinds."""
        return sum(self.busy.values())

    @property
    def idle_share(self) -> float:
        """Idle over busy + idle, 0..1; 0 before the first step."""
        total = self.busy_ms + self.idle_ms
        return self.idle_ms / total if total else 0.0

    @property
    def cached_share(self) -> float:
        """Of the prompts' tokens, pictures among them, those that were there already, 0..1; 0 before there were any."""
        return self.counters.cached_tokens / max(self.counters.prompt_tokens, 1)

    @property
    def step_ms(self) -> float:
        """Mean time of a step with the gap before it."""
        return (self.busy_ms + self.idle_ms) / max(sum(self.steps.values()), 1)

    @property
    def decode_ms(self) -> float:
        """Mean time of a decode step without the gap before it."""
        return self.busy[StepKind.DECODE] / max(self.steps[StepKind.DECODE], 1)

    @property
    def wall_ms(self) -> float:
        """The loop's thread's whole time."""
        return sum(self.host.values())

    @property
    def steps_in_flight(self) -> float:
        """Mean number of them over time, while there was work."""
        total = sum(self.in_flight)
        return sum(n * spent for n, spent in enumerate(self.in_flight)) / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, flat: the counters and `cached_share`; `busy_ms`, `idle_ms`, `idle_share`, `step_ms`,
        `decode_ms`, `longest_step_ms`; `KIND_busy_ms` by kind of step; `PART_ms` of the host's work and
        `wait_REASON_ms` of its waits; `wall_ms`; `steps_in_flight`, and `in_flight_ms`, a list by number of steps."""
        whole = (
            "cached_share",
            "busy_ms",
            "idle_ms",
            "idle_share",
            "step_ms",
            "decode_ms",
            "longest_step_ms",
            "wall_ms",
            "steps_in_flight",
        )
        return (
            asdict(self.counters)
            | {name: getattr(self, name) for name in whole}
            | {f"{kind}_busy_ms": spent for kind, spent in self.busy.items()}
            | {_host_name(part): self.host[part.label] for part in Part}
            | {"in_flight_ms": list(self.in_flight)}
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known of an engine and its requests at one moment. `waiting`: requests that have no row yet."""

    accounting: Accounting
    standing: Standing
    waiting: int
    endings: Endings

    @classmethod
    def of(cls, accounting: Accounting, standing: Standing, endings: Endings, requests: int) -> Snapshot:
        """`requests`: how many have not been told of their end. None of them runs in an engine that is gone."""
        running = min(standing.running, requests)
        return cls(accounting, replace(standing, running=running), requests - running, endings)


def _counts(counters: Counters) -> Sequence[int]:
    return [getattr(counters, field.name) for field in fields(Counters)]


def _host_name(part: Part) -> str:
    return f"wait_{part.label}_ms" if part.waits else f"{part.label}_ms"
