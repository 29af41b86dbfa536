"""Plays the loop's part by hand before a device: rows, pages, slots and step ids, every call explicit.

`Rig.play` runs sequences pipelined at a depth; `expected` says what each must answer, read off the hash language
without a device. Nothing here comes from the engine.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from tests.fakes import hash_language as lang
from tests.fakes.hash_language import HashSpec, Reading

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.table import Table, Walker, build_table
from gapless.device.base import Device
from gapless.device.host import HostDevice
from gapless.device.sampler import sample
from gapless.models.base import Model
from gapless.records import (
    Flags,
    PageGrant,
    Picture,
    Prefill,
    RowRecord,
    RowRef,
    RowStart,
    Sampling,
    Step,
    StepKind,
    Token,
    ValueHead,
)

SPEC = HashSpec()
TABLE = build_table(SPEC.rules)
ENDED = Flags.STOP | Flags.LENGTH | Flags.NONFINITE
REHEARSAL = HostDeviceConfig(threads=1, poison=True, jitter_seed=3, jitter_ms=0.2, copy_delay_ms=0.2)


def host_device(model: Model, host: HostDeviceConfig = REHEARSAL, **sizes: int) -> HostDevice:
    settings = {"max_rows": 20, "page_size": 4, "pages": 600, "depth": 2} | sizes
    return HostDevice(model, TABLE, EngineConfig(**settings), host)


def picture(seed: int) -> Picture:
    crops = np.random.default_rng(seed).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    return Picture(f"{seed:064x}", crops, (1, 1), 4, 4)


@dataclass(eq=False)
class Seq:
    """One sequence: what it asks, where its pages are, what has come back."""

    ref: RowRef
    program: str
    ids: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    sampling: Sampling
    picture: Picture | None
    host_masked: bool
    walker: Walker
    pages: list[int] = field(default_factory=list)
    prefix_pages: tuple[int, ...] = ()
    tokens: list[Token] = field(default_factory=list)
    records: list[RowRecord] = field(default_factory=list)
    flags: Flags = Flags.NONE
    refs: int = 0

    @property
    def ended(self) -> bool:
        return bool(self.flags & ENDED)


class Rig:
    def __init__(self, device: Device, table: Table = TABLE) -> None:
        self.device, self.table, self.size = device, table, device.limits.page_size
        self._pages = iter(range(1, device.limits.pages))
        self._rows = iter(range(1, device.limits.rows))
        self._ids = iter(range(1, 10_000))

    def seq(
        self,
        program: str = "text",
        ids: tuple[int, ...] = (1, 9, 2),
        values: tuple[tuple[float, ...], ...] | None = None,
        picture: Picture | None = None,
        host_masked: bool = False,
        ref: RowRef | None = None,
        lasts: int = 1,
        **sampling: float,
    ) -> Seq:
        """A sequence that is not launched. Its last id is raised until its answer has at least `lasts` tokens."""
        wanted = Sampling(**({"max_tokens": 12, "max_objects": 3} | sampling))
        walker = Walker.start(self.table, program, wanted.max_tokens, wanted.max_objects)
        ref = ref or RowRef(next(self._rows), 1)
        values = values or ((),) * len(ids)
        seq = Seq(ref, program, ids, values, wanted, picture, host_masked, walker)
        while lasts > 1 and len(expected(seq)) < lasts:
            seq.ids = (*seq.ids[:-1], seq.ids[-1] + 1)
        return seq

    def take(self, count: int) -> tuple[int, ...]:
        return tuple(next(self._pages) for _ in range(count))

    def prefill(self, seq: Seq, shared: tuple[int, ...] = (), room: int = 40) -> Prefill:
        """Begin or resume a sequence; `shared` are another's prefix pages, `room` positions are granted beyond."""
        prefix = self.device.limits.prefix
        first = prefix if seq.picture else 0
        computes = seq.picture is not None and not shared
        block = shared or (self.take(-(-prefix // self.size)) if seq.picture else ())
        full, partial = (prefix // self.size, prefix % self.size) if seq.picture else (0, 0)
        ids = seq.ids + tuple(t.id for t in seq.tokens)
        own = self.take(-(-(first + len(ids) + room) // self.size) - full)
        seq.prefix_pages, seq.pages = block, [*block[:full], *own]
        w, s = seq.walker, seq.sampling
        start = RowStart(
            seq.ref, w.state, w.left, w.left_next, w.objects_left, s.temperature, s.top_p, s.seed, s.top_logprobs,
            seq.host_masked,
        )  # fmt: skip
        return Prefill(
            start=start,
            ids=ids,
            values=seq.values + tuple(t.values for t in seq.tokens),
            position=first,
            pages=tuple(seq.pages),
            picture=seq.picture if computes else None,
            prefix_pages=block if computes else (),
            tail=(block[-1], own[0]) if partial else None,
        )

    def step(self, kind: StepKind, seqs: list[Seq], slot: int = 0, lane: int = -1, **parts: object) -> Step:
        waiting = frozenset(s.ref.row for s in seqs if s.host_masked)
        return Step(next(self._ids), kind, tuple(s.ref for s in seqs), slot, waiting, lane=lane, **parts)

    def prefill_step(self, seqs: list[Seq], slot: int = 0) -> Step:
        return self.step(StepKind.PREFILL, seqs, slot, prefills=tuple(self.prefill(s) for s in seqs))

    def decode_step(
        self, seqs: list[Seq], slot: int = 0, grants: tuple[PageGrant, ...] = (), freed: tuple[int, ...] = ()
    ) -> Step:
        return self.step(StepKind.DECODE, seqs, slot, grants=grants, freed=freed)

    def parked_step(self, seq: Seq, lane: int) -> Step:
        return self.step(StepKind.PARKED, [seq], -1, lane)

    def launch(self, step: Step, seqs: list[Seq]) -> Step:
        self.device.launch(step)
        for seq in seqs:
            seq.refs += 1
        return step

    def settle(self, step: Step, seqs: list[Seq]) -> list[RowRecord]:
        """Wait for a step and take in what came back."""
        arrival = self.device.wait(step, tuple(s.ref for s in seqs))
        assert arrival.step_id == step.id
        assert arrival.started <= arrival.ended
        for seq, record in zip(seqs, arrival.records, strict=True):
            seq.refs -= 1
            self.commit(seq, record)
        return list(arrival.records)

    def commit(self, seq: Seq, record: RowRecord) -> None:
        assert record.ref == seq.ref
        seq.records.append(record)
        if seq.ended:
            assert record == RowRecord(seq.ref, Flags.MUTED, None)
            return
        seq.flags |= record.flags
        if record.token is not None:
            head, flags = seq.walker.advance(record.token.id)
            assert flags == record.flags
            assert len(record.token.values) == (0, 1, 2)[head]
            seq.tokens.append(record.token)

    def once(self, step: Step, seqs: list[Seq]) -> list[RowRecord]:
        return self.settle(self.launch(step, seqs), seqs)

    def play(self, seqs: list[Seq], depth: int) -> int:
        """Decode prefilled sequences to their ends, `depth` steps in flight; returns how many records were muted."""
        flying: deque[tuple[Step, list[Seq]]] = deque()
        slot = 0
        while flying or not all(s.ended for s in seqs):
            going = [s for s in seqs if not s.ended and s.refs < min(depth, s.walker.remaining())]
            if going and len(flying) < depth:
                flying.append((self.launch(self.decode_step(going, slot), going), going))
                slot = (slot + 1) % depth
                continue
            self.settle(*flying.popleft())
        return sum(r.flags == Flags.MUTED for s in seqs for r in s.records)


def expected(seq: Seq, spec: HashSpec = SPEC, table: Table = TABLE) -> list[Token]:
    """What a sequence must answer from its beginning on."""
    reading = Reading(spec)
    if seq.picture is not None:
        reading.feed_picture(lang.picture_word(seq.picture.crops, seq.picture.tiling))
    for token_id, values in zip(seq.ids, seq.values, strict=True):
        reading.feed(token_id, values)
    s = seq.sampling
    walker = Walker.start(table, seq.program, s.max_tokens, s.max_objects)
    tokens: list[Token] = []
    flags = Flags.NONE
    while not flags:
        hidden = reading.hidden
        scores, mask = torch.from_numpy(lang.scores(spec, hidden)), torch.from_numpy(walker.mask().copy())
        chosen = sample(scores, mask, s.temperature, s.top_p, s.seed, reading.position, s.top_logprobs)
        assert chosen is not None
        head, flags = walker.advance(chosen.token)
        values = {
            ValueHead.NONE: (),
            ValueHead.COORD: (lang.coord_of(hidden),),
            ValueHead.SIZE: lang.size_of(hidden),
        }[head]
        tokens.append(Token(chosen.token, values, chosen.logprob, chosen.top))
        reading.feed(chosen.token, values)
    return tokens
