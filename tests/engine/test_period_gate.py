"""The gate on the bubble: on simulated time a step at depth 2 takes max(forward + sampling, bookkeeping), and no more.

One check for all rides (`assert_no_bubble`), over a grid of host : device ratios, with 1, 8 and 64 rows, with prefills
between the decodes and with host-built masks that are ready. Saboteurs, each with one hidden wait, prove that the check
can fail. The cost model's period is held against the same clock at depths 1 to 4.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
from tests.fakes import scene
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, limits_of, picture, sim_stage
from tests.fakes.sim_device import Event, SimDevice, Timing

from gapless.bench.cost_model import Parts
from gapless.config import EngineConfig
from gapless.engine.loop import Loop
from gapless.records import StepKind

SPEC = HashSpec(end_permille=0, answer_permille=0)
DEVICE = 4.0
"""Simulated milliseconds of forward + sampling in every ride; only ratios matter."""
SLACK = 1.02
EDGE = 4
"""Steps left out at both ends, where the pipeline fills and drains."""


@dataclass(frozen=True)
class Ride:
    """Requests that decode together. `masked` of them have host-built masks; `late` more, with pictures, are prefilled
    between the decodes of the others."""

    rows: int = 8
    masked: int = 0
    late: int = 0
    tokens: int = 26

    @property
    def entries(self) -> list[Entry]:
        plain = [
            Entry(replace(ask(i, ids=(10, 20), max_tokens=self.tokens), host_masked=i <= self.masked))
            for i in range(1, self.rows + 1)
        ]
        shown = [
            Entry(ask(1000 + i, ids=(33,), shown=picture(i), max_tokens=6), arrives=8 + 3 * i) for i in range(self.late)
        ]
        return plain + shown

    def tails(self) -> int:
        """How often a decode step samples: rows with and without host masks have a tail each."""
        return (self.masked > 0) + (self.masked < self.rows)


def timing_of(host: float, sampling: float = 0.05, copy: float = 0.02, launch: float = 0.2, tails: int = 1) -> Timing:
    """A step of `DEVICE` in all. Parts of it: `host`, `copy`, each tail's `sampling`; `launch` is a part of host."""
    return Timing(
        forward=DEVICE * (1 - tails * sampling),
        sampling=DEVICE * sampling,
        copy=DEVICE * copy,
        bookkeeping=DEVICE * host * (1 - launch),
        launch=DEVICE * host * launch,
        prefill=1.7 * DEVICE,
    )


def play(ride: Ride, timing: Timing, depth: int, loop: type[Loop] | None = None) -> list[Event]:
    """What happened on the simulated device; the scene ends and leaves nothing behind."""
    limits = limits_of(SPEC, depth, rows=ride.rows + ride.late + 1, pages=ride.rows * 16 + ride.late * 16 + 40)
    stage, device = sim_stage(SPEC, limits, timing=timing, config=EngineConfig(lookahead=8, prefills_per_step=64))
    if loop is not None:
        stage.engine.loop = loop(**{field.name: getattr(stage.engine.loop, field.name) for field in fields(Loop)})
    heard = stage.play(ride.entries)
    assert [len(heard[entry.request.id].tokens) for entry in ride.entries[: ride.rows]] == [ride.tokens] * ride.rows
    return device.events


def commits(events: list[Event], ride: Ride) -> list[Event]:
    """Commits from the first decode with all rows to the last one, without the edges."""
    ends = [event for event in events if event.name == "commit"]
    whole = [i for i, e in enumerate(ends) if e.kind is StepKind.DECODE and len(e.rows) >= ride.rows]
    steady = ends[whole[0] : whole[-1] + 1][EDGE:-EDGE]
    assert len(steady) >= 10
    return steady


def spent(events: list[Event], ride: Ride) -> tuple[float, list[Event]]:
    """Simulated time over the steady steps, and those that it paid for."""
    steady = commits(events, ride)
    return steady[-1].end - steady[0].end, steady[1:]


def period(events: list[Event], ride: Ride) -> float:
    took, steps = spent(events, ride)
    return took / len(steps)


def assert_no_bubble(events: list[Event], ride: Ride, timing: Timing) -> None:
    """The steady steps took no more than max(device, host) each, within `SLACK`."""
    took, steps = spent(events, ride)
    host = timing.bookkeeping + timing.launch
    device = {StepKind.DECODE: timing.forward + ride.tails() * timing.sampling}
    device[StepKind.PREFILL] = (timing.prefill or timing.forward) + timing.sampling
    bound = sum(max(device[step.kind], host) for step in steps if step.kind is not None)
    assert took <= SLACK * bound, f"a bubble: {took:.3f} for steps of {bound:.3f}"
    assert took >= 0.999 * bound, f"steps of {bound:.3f} cannot be done in {took:.3f}; the clock is wrong"


HOSTS = (0.1, 0.9, 1.0, 1.1, 2.5)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("sampling", [0.03, 0.3])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_step_at_depth_2_takes_the_device_or_the_host_and_no_more(rows: int, sampling: float, host: float) -> None:
    ride, timing = Ride(rows), timing_of(host, sampling)
    assert_no_bubble(play(ride, timing, 2), ride, timing)


@pytest.mark.parametrize("host", [0.5, 1.0])
def test_so_it_is_with_64_rows(host: float) -> None:
    ride, timing = Ride(64, tokens=23), timing_of(host)
    assert_no_bubble(play(ride, timing, 2), ride, timing)


@pytest.mark.parametrize("host", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("rows", [1, 8])
def test_so_it_is_with_prefills_between_the_decodes(rows: int, host: float) -> None:
    ride, timing = Ride(rows, late=3, tokens=40), timing_of(host)
    events = play(ride, timing, 2)
    kinds = [step.kind for step in commits(events, ride)]
    assert kinds.count(StepKind.PREFILL) == 3
    assert_no_bubble(events, ride, timing)


@pytest.mark.parametrize("host", [0.1, 0.85])
@pytest.mark.parametrize("ride", [Ride(1, 1), Ride(8, 8), Ride(8, 1), Ride(8, 7), Ride(64, 32, tokens=23)], ids=str)
def test_so_it_is_with_ready_host_masks_while_the_commit_fits_behind_the_forward(ride: Ride, host: float) -> None:
    timing = timing_of(host, tails=ride.tails())
    events = play(ride, timing, 2)
    assert not [event for event in events if event.name == "park" and event.start > commits(events, ride)[0].end]
    assert_no_bubble(events, ride, timing)


@pytest.mark.parametrize("host", [1.0, 1.1, 2.5])
@pytest.mark.parametrize("ride", [Ride(1, 1), Ride(8, 8), Ride(8, 1)], ids=str)
def test_a_longer_commit_shows_under_host_masks_by_one_tail_and_its_copy(ride: Ride, host: float) -> None:
    """A mask follows from the token before it, so sampling, copy and commit take turns; no order of events helps."""
    timing = timing_of(host, launch=0.0, tails=ride.tails())
    chain = timing.copy + timing.bookkeeping
    parts = Parts(timing.forward + (ride.tails() - 1) * timing.sampling, timing.sampling, timing.bookkeeping, chain)
    assert period(play(ride, timing, 2), ride) == pytest.approx(parts.masked_period_ms(2), rel=0.02)
    assert parts.masked_period_ms(2) > parts.period_ms(2)


@pytest.mark.parametrize("host", [0.1, 1.0, 2.5])
@pytest.mark.parametrize("ride", [Ride(1), Ride(8), Ride(8, 8)], ids=str)
def test_at_depth_1_a_step_takes_the_sum(ride: Ride, host: float) -> None:
    timing = timing_of(host)
    whole = timing.forward + timing.sampling + timing.copy + timing.bookkeeping + timing.launch
    events = play(ride, timing, 1)
    assert period(events, ride) == pytest.approx(whole, rel=0.001)
    with pytest.raises(AssertionError, match="a bubble"):
        assert_no_bubble(events, ride, timing)


# -- saboteurs: each hides one wait ----------------------------------------------------------------------------------


class WaitsInLaunch(SimDevice):
    """The device is asked for something (an `.item()`, say) before a step is enqueued."""

    def launch(self, step):
        self._clock.advance_to(self._compute_free)
        super().launch(step)


class CopiesOnTheComputeStream(SimDevice):
    """The next forward queues up behind the copy to the host."""

    def _sample(self, step, landing, masks):
        super()._sample(step, landing, masks)
        self._compute_free = landing.lands


class WaitsInFinalize(SimDevice):
    """The forward must be over before its tail is enqueued, and the tail before the call returns."""

    def finalize(self, step, masks):
        super().finalize(step, masks)
        self._clock.advance_to(self._compute_free)


class ExtraTail(SimDevice):
    """A step samples twice what it should sample once: the device itself is slower than its parts."""

    def _sample(self, step, landing, masks):
        self._compute_free += self._timing.sampling
        super()._sample(step, landing, masks)


class SettlesFirst(Loop):
    """All steps in flight are committed before the next one is launched."""

    def tick(self) -> bool:
        while not self.pipeline.empty:
            self.settle()
        return super().tick()


SABOTEURS = {
    "waits in launch": (WaitsInLaunch, None, Ride(8), timing_of(0.5)),
    "waits in launch, one row": (WaitsInLaunch, None, Ride(1), timing_of(0.1, launch=0.6)),
    "waits in launch, prefills": (WaitsInLaunch, None, Ride(8, late=3, tokens=40), timing_of(0.5)),
    "copies on the compute stream": (CopiesOnTheComputeStream, None, Ride(8), timing_of(0.5, copy=0.03)),
    "waits in finalize": (WaitsInFinalize, None, Ride(8, 8), timing_of(0.5)),
    "an extra tail": (ExtraTail, None, Ride(8), timing_of(0.5)),
    "settles first": (SimDevice, SettlesFirst, Ride(8), timing_of(0.1)),
    "settles first, prefills": (SimDevice, SettlesFirst, Ride(8, late=3, tokens=40), timing_of(1.0)),
    "settles first, one row": (SimDevice, SettlesFirst, Ride(1), timing_of(2.5)),
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_the_gate_sees_a_hidden_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, loop, ride, timing = SABOTEURS[name]
    assert_no_bubble(play(ride, timing, 2), ride, timing)
    monkeypatch.setattr(scene, "SimDevice", device)
    with pytest.raises(AssertionError, match="a bubble"):
        assert_no_bubble(play(ride, timing, 2, loop), ride, timing)


# -- the cost model on the same clock --------------------------------------------------------------------------------

GRID = [(host, copy) for host in (0.1, 1.0, 3.0) for copy in (0.0, 0.9)]


@pytest.mark.parametrize(("host", "copy"), GRID)
def test_the_cost_models_period_is_the_clocks_at_depths_1_to_4(host: float, copy: float) -> None:
    ride, timing = Ride(4), timing_of(host, 0.1, copy)
    loop = timing.bookkeeping + timing.launch
    blocking = period(play(ride, timing, 1), ride)
    device = timing.forward + timing.sampling
    parts = Parts(timing.forward, timing.sampling, loop, blocking - device)
    assert parts.chain_ms == pytest.approx(timing.copy + loop)
    assert parts.period_ms(1) == pytest.approx(blocking)
    for depth in (2, 3, 4):
        assert period(play(ride, timing, depth), ride) == pytest.approx(parts.period_ms(depth), rel=0.02), depth


def test_that_grid_has_periods_of_every_kind() -> None:
    kinds = set()
    for host, copy in GRID:
        parts = Parts(0.9, 0.1, host, host + copy)
        for depth in (2, 3, 4):
            thirds = (parts.device_ms, parts.host_ms, (parts.device_ms + parts.chain_ms) / depth)
            kinds.add(thirds.index(max(thirds)))
    assert kinds == {0, 1, 2}
