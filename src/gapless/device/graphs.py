"""The parts of a decode step as CUDA graphs: captured once at start over the program's own buffers, replayed since.

In: a program, and the shapes that may be asked for: numbers of crops, batch buckets, widths of page tables, tails.
Out: calls that enqueue one part. With graphs off the same calls run the program directly: one code, two ways to enqueue
it. `replays` counts what really was replayed. Captures run largest first, so that the shared memory pool is cut to size
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from gapless.device.pictures import CROP_BUCKETS
from gapless.device.program import Program
from gapless.device.runtime import Runtime
from gapless.device.tail import Feeds, TailKind
from gapless.errors import InvariantBroken

BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Batch sizes that are captured; beyond them every `COARSE`."""
COARSE = 32
NARROW = 1024
"""Page tables of longer contexts are also captured this narrow (in positions): most answers end within."""
FORWARDS = 64
"""About how many forwards of a kind are captured at most: widths are the fewer the more batch sizes there are."""

Part = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Stage:
    """One capture of `total` that is about to begin: `done` are over."""

    name: str
    done: int
    total: int


def buckets_for(rows: int) -> tuple[int, ...]:
    """The batch sizes that serve steps of up to `rows` rows, ascending; the last one is the first that holds them."""
    known = (*BUCKETS, *range(BUCKETS[-1] + COARSE, rows + COARSE, COARSE))
    return tuple(b for i, b in enumerate(known) if i == 0 or known[i - 1] < rows)


def widths_for(max_context: int, page_size: int, batches: int) -> tuple[int, ...]:
    """Widths of page tables in entries, ascending; the last one holds the longest context.

    From `NARROW` positions on each is a power of two times the one before: twice, or as much as it takes for `FORWARDS`
    forwards of `batches` batch sizes (with and without adapters count as two), but two widths there are in any case.
    """
    full, narrow = -(-max_context // page_size), -(-NARROW // page_size)
    widths, step = _powers(narrow, full, 2), 4
    while len(widths) > max(2, FORWARDS // batches):
        widths, step = _powers(narrow, full, step), 2 * step
    return widths


def _powers(narrow: int, full: int, step: int) -> tuple[int, ...]:
    widths = []
    while narrow < full:
        widths.append(narrow)
        narrow *= step
    return (*widths, full)


def feeds_of(program: Program) -> list[Feeds]:
    """Kinds of forwards, the one that needs most first."""
    adapted = (True, False) if program.adapters else (False,)
    return [Feeds(lora, spatial) for lora in adapted for spatial in (True, False)]


class Graphs:
    """See the module. `homes`: where each slot's lines are written, [rows, WIDTH]; `buckets` and `widths` ascend."""

    def __init__(
        self,
        runtime: Runtime,
        program: Program,
        homes: Sequence[Tensor],
        buckets: tuple[int, ...],
        widths: tuple[int, ...],
        enabled: bool,
    ) -> None:
        self.enabled = enabled
        self.replays: Counter[str] = Counter()
        self._runtime = runtime
        self._buckets, self._widths = buckets, widths
        self._parts: dict[tuple[object, ...], tuple[str, Part]] = {}
        self._empty: dict[tuple[object, ...], Part] = {}  # what comes before a part is run to be captured
        self._captured: dict[tuple[object, ...], Part] = {}
        if program.pictures is not None:
            for crops in CROP_BUCKETS[::-1]:
                self._parts["pictures", crops] = (f"{crops} crops", partial(program.pictures.encode, crops))
        backwards = buckets[::-1]
        for bucket in backwards:
            for feeds in feeds_of(program):
                for width in self._widths_of(program, bucket, feeds):
                    work = partial(program.forward, bucket, width, feeds)
                    self._parts["forward", bucket, width, feeds] = (f"{feeds.name} of {bucket} rows", work)
        for bucket in backwards:
            for kind, (slot, lines) in product(program.kinds[::-1], enumerate(homes)):
                name = f"{kind.name} tail of {bucket} rows"
                self._parts["tail", slot, bucket, kind] = (name, partial(program.tail, lines[:bucket], kind))
        for tokens in program.packs.buckets[::-1] if program.packs is not None else ():
            self._parts["together", tokens] = (f"prompts of {tokens} tokens", partial(program.together, tokens))
            self._empty["together", tokens] = partial(program.empty_pack, tokens)
        for bucket in backwards:
            for masked in (True, False):
                name = f"adjusted logits of {bucket} rows"
                self._parts["adjust", bucket, masked] = (name, partial(program.adjust, bucket, masked))
            self._parts["count", bucket] = (f"counts of {bucket} rows", partial(program.count, bucket))
        for adjusted in (True, False):
            self._parts["parked", adjusted] = ("tail of a parked row", partial(program.parked_tail, adjusted))
        self._parts["extend",] = ("page grants", program.extend)

    def _widths_of(self, program: Program, bucket: int, feeds: Feeds) -> tuple[int, ...]:
        """Descending; the full width alone where a narrower one would not be any faster."""
        return self._widths[-1:] if program.any_width(bucket, feeds) else self._widths[::-1]

    def capture(self) -> Iterator[Stage]:
        """Capture everything, one part after each item; nothing when graphs are off."""
        for done, (key, (name, work)) in enumerate(self._parts.items() if self.enabled else ()):
            yield Stage(name, done, len(self._parts))
            with self._runtime.setting_up(), torch.inference_mode():
                if key in self._empty:
                    self._empty[key]()
                work()  # compiles, loads and picks whatever a first run does
                self._captured[key] = self._runtime.capture(work)

    @property
    def count(self) -> int:
        """How many parts were captured."""
        return len(self._captured)

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds `rows`."""
        for bucket in self._buckets:
            if rows <= bucket:
                return bucket
        raise InvariantBroken(f"a step has {rows} rows, but the largest batch is {self._buckets[-1]}")

    def width(self, columns: int) -> int:
        """The smallest width that holds `columns` entries of a page table."""
        for width in self._widths:
            if columns <= width:
                return width
        return self._widths[-1]

    def pictures(self, crops: int) -> None:
        """Enqueue the encoder over so many crops, one of `CROP_BUCKETS`."""
        self._run("pictures", crops)

    def forward(self, bucket: int, width: int, feeds: Feeds) -> None:
        """Enqueue a forward of `bucket` rows, with page tables of that width or wider ones."""
        known = ("forward", bucket, width, feeds) in self._parts
        self._run("forward", bucket, width if known else self._widths[-1], feeds)

    def tail(self, slot: int, bucket: int, kind: TailKind) -> None:
        """Enqueue a tail of `bucket` rows of a step that holds `slot`, and what goes before and behind it where rows
        are adjusted."""
        if kind.adjusted:
            self._run("adjust", bucket, kind.masked)
        self._run("tail", slot, bucket, kind._replace(adjusted=False) if kind.adjusted else kind)
        if kind.adjusted:
            self._run("count", bucket)

    def parked_tail(self, adjusted: bool) -> None:
        """Enqueue the tail of the row that was fetched from its lane."""
        self._run("parked", adjusted)

    def together(self, tokens: int) -> None:
        """Enqueue a pass of a pack of that size."""
        self._run("together", tokens)

    def extend(self) -> None:
        """Enqueue the grants of the step."""
        self._run("extend")

    def _run(self, *key: object) -> None:
        replay = self._captured.get(key)
        if replay is None:
            with torch.inference_mode():
                self._parts[key][1]()
            return
        replay()
        self.replays[str(key[0])] += 1

    def close(self) -> None:
        """Let go of all graphs, and of what they run on."""
        self._captured.clear()
        self._parts.clear()
        self._empty.clear()
