"""A stage whose device is a real GPU, refereed, with proof of what it did.

What flows in: a model on the GPU and sizes. What flows out: a `Stage` as for the simulated device, the device, and
`Proof`: how many graphs were replayed, and how often a step's results had landed while a later step was still running
(by the order of events, not by a clock).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from tests.fakes.masks import ThreadMasks
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Heard, Stage
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_guided import GUIDES

from gapless.bench.cuda_rig import open_device
from gapless.config import EngineConfig
from gapless.constrain.guided import GuidedMasks
from gapless.constrain.table import Table
from gapless.costs import Costs
from gapless.device.base import Device
from gapless.device.cuda import CudaDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.models.base import Model
from gapless.records import Arrival, DeviceLimits, Mask, RowRef, Step, StepKind
from gapless.weights.adapters import MAX_RANK

PINNED = (16,)
"""One bucket for every step, so that every GEMM has one shape."""

STEP_CYCLES = 1_000_000
"""What every step takes at least, some 0.5 ms: those of small models can be over before the host has looked."""


@dataclass
class Proof:
    """What was seen. `replays`: graphs replayed; `overlaps`: waits that returned while a later step was running;
    `uploads`: adapters brought to a slot, `uploads_beside` of them asked for while an earlier step was running."""

    replays: int = 0
    overlaps: int = 0
    waits: int = 0
    uploads: int = 0
    uploads_beside: int = 0


class Watched:
    """The device, watched: an event behind each launch says whether it still runs when an earlier wait returns, or
    when a later step has asked for an adapter's upload."""

    def __init__(self, device: CudaDevice, proof: Proof) -> None:
        self.device: Device = device
        self.proof = proof
        self._behind: dict[int, torch.cuda.Event] = {}
        self._fill = None if device.program.adapters is None else device.program.adapters.load
        if device.program.adapters is not None:
            device.program.adapters.load = self._upload

    def _upload(self, slot: int, weights: object) -> None:
        assert self._fill is not None
        self._fill(slot, weights)
        self.proof.uploads += 1
        self.proof.uploads_beside += any(not event.query() for event in self._behind.values())

    @property
    def costs(self) -> Costs | None:
        return self.device.costs

    @property
    def limits(self) -> DeviceLimits:
        return self.device.limits

    def launch(self, step: Step) -> None:
        torch.cuda._sleep(STEP_CYCLES)
        self.device.launch(step)
        behind = torch.cuda.Event()
        behind.record()  # on the compute stream, which is this thread's own
        self._behind[step.id] = behind

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        self.device.finalize(step, masks)

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        self.device.park(step, lanes)

    def wait(self, step: Step, rows: tuple[RowRef, ...]) -> Arrival:
        arrival = self.device.wait(step, rows)
        self._behind.pop(step.id, None)
        self.proof.waits += 1
        if step.kind is not StepKind.PARKED:
            self.proof.overlaps += any(not event.query() for id, event in self._behind.items() if id > step.id)
        return arrival

    def release(self, ref: RowRef) -> None:
        self.device.release(ref)

    def close(self) -> None:
        self.device.close()


@dataclass
class Played:
    """A stage with its refereed device and the proof."""

    stage: Stage
    device: Refereed
    proof: Proof

    def play(self, entries: Sequence[Entry]) -> dict[int, Heard]:
        """Play a scene from tick 0 on and audit engine and device; what each request heard."""
        self.stage.ticks, self.stage.heard = 0, {}
        heard = self.stage.play(entries)
        self.device.audit()
        assert set(heard) == {e.request.id for e in entries}
        return heard


@contextmanager
def cuda_stage(
    model: Model,
    table: Table,
    depth: int,
    *,
    graphs: bool = True,
    buckets: tuple[int, ...] | None = PINNED,
    rows: int = 8,
    pages: int = 400,
    page_size: int = 16,
    lookahead: int = 32,
    poison: bool = True,
    seed: int = 0,
    delays: tuple[float, float] = (0.0, 0.003),
    adapters: int = 0,
    rank: int = MAX_RANK,
    grammars: int = 0,
    numbers: int = 0,
    host: int = 0,
    max_step_ms: float | None = None,
    costs: Costs | None = None,
) -> Iterator[Played]:
    """An engine on a GPU; `rows` without the padding row, `pages` with the scrap page, `delays` of host masks,
    slots for so many `adapters` of ranks up to `rank` and for token tables with so many `numbers`, and `host` pictures
    in pinned memory; `costs` None: those that the device measured."""
    config = EngineConfig(
        depth=depth,
        max_rows=rows,
        page_size=page_size,
        pages=pages,
        lookahead=lookahead,
        adapters=adapters,
        adapter_rank=rank,
        grammars=grammars,
        grammar_memory=2 * numbers,
        picture_cache_host=host * model.picture_bytes,
        max_step_ms=max_step_ms,
    )
    proof, clock, mailbox = Proof(), SimClock(), ThreadMailbox()
    with pytest.MonkeyPatch.context() as patch:
        count_replays(patch, proof)
        inner = open_device(model, table, config, graphs=graphs, buckets=buckets, poison=poison)
        device = Refereed(Watched(inner, proof), table)
        device.told = costs
        masks = ThreadMasks(mailbox.notify, delays, seed)
        guided = GuidedMasks(mailbox.notify, GUIDES)
        try:
            stage = Stage(Engine(device, table, config, masks, mailbox, clock, guided), mailbox, clock)
            yield Played(stage, device, proof)
        finally:
            device.close()
            masks.close()
            guided.close()


def count_replays(patch: pytest.MonkeyPatch, proof: Proof) -> None:
    """Count every replay of a graph that is captured from now on."""
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        proof.replays += 1
        replay(graph)

    patch.setattr(torch.cuda.CUDAGraph, "replay", counted)


def prove(played: Played, depth: int, graphs: bool, landed: bool = True) -> None:
    """Assert that graphs ran if they were on, and that steps overlapped if they could.

    `landed`: results must have landed while a later step was still running; not to be asked where all rows wait for
    their masks. Without graphs the GPU is done as soon as the host has asked for everything.
    """
    counters, proof = played.stage.engine.counters, played.proof
    overlapped = played.device.referee.tally.overlapped
    if graphs:
        assert proof.replays > counters.decode_steps > 0, f"{proof} in {counters.decode_steps} decode steps"
    else:
        assert proof.replays == 0
    if depth == 1:
        assert overlapped == 0 and proof.overlaps == 0
        return
    assert overlapped > 0, "no step was launched before an earlier one was committed"
    if graphs and landed:
        assert proof.overlaps > 0, "no result landed while a later step was still running"


def answers(heard: Mapping[int, Heard]) -> dict[int, tuple]:
    """What was said, comparable: ids, values and reasons."""
    found = {}
    for id, one in heard.items():
        assert one.finish is not None and one.finish.error is None, f"request {id} failed: {one.finish}"
        found[id] = (tuple((t.id, t.values) for t in one.tokens), one.finish.reason)
    return found
