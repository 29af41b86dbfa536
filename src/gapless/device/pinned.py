"""Host memory that the GPU reads and writes by itself, each piece owned by one step in flight (I4, I10).

A `Slot` is one step's: the words that go down, what `finalize` asks, masks, and where lines land. A `Lane` is one
parked row's. The `Arena` holds pictures on their way, in host and device memory of the same shape: a ring whose regions
are free again when the step that read them is over.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gapless.device.adjust import note_room, notes_of
from gapless.device.flights import Landing
from gapless.device.packet import Layout, Packet, Words
from gapless.device.program import new_lines
from gapless.device.record import WIDTH
from gapless.device.runtime import Event, Runtime
from gapless.records import POISON, Crops, DeviceLimits, Mask, Step

ALIGNMENT = 256
PACKED = 512
"""Words of a small pack, and more than a large one's runs take."""


def prompt_room(limits: DeviceLimits, layout: Layout) -> int:
    """Words that one prompt takes at most: by itself, three for each token and a block's pages; in a pack, which is at
    most an eighth larger than its tokens, three and a half for each, and what describes runs."""
    return 4 * limits.max_context + layout.max_pages + PACKED


class Slot:
    """Pinned memory of one slot, each tensor with its view for the host; `lines` alone is on the device.

    `words` int64 [layout.words]; `prompts` int64 for all prompts of a step; `demands` int64 [rows, layout.head], one
    for each `finalize`; `masks` bool [rows, vocab]; `lines` and `landing` float64 [rows, WIDTH]. `leaving`: embeddings
    that are being copied to host memory. `down` and `home` keep the views that copies of so many words, and of so many
    rows' lines, are made with.
    """

    def __init__(self, runtime: Runtime, layout: Layout, limits: DeviceLimits) -> None:
        rows = layout.rows
        self.words = runtime.pinned((layout.words,), torch.int64)
        self.packet = Packet(layout, self.words.numpy())
        self.prompts = runtime.pinned((rows * prompt_room(limits, layout),), torch.int64)
        self.prompt_words: Words = self.prompts.numpy()
        self._notes = runtime.pinned((note_room(limits, rows),), torch.int64)
        self.demands = runtime.pinned((rows, layout.head), torch.int64)
        self.demand_words: Words = self.demands.numpy()
        self.demanded = 0
        self.masks = runtime.pinned((rows, limits.vocab), torch.bool)
        self.mask_rows: Mask = self.masks.numpy()
        self.landing = runtime.pinned((rows, WIDTH), torch.float64).fill_(POISON)
        self.landed = Landing(self.landing.numpy())
        self.lines = new_lines(rows, runtime.device)
        self.leaving: list[Tensor] = []
        self.down: dict[int, tuple[Tensor, Tensor]] = {}
        self.home: dict[int, tuple[Tensor, Tensor]] = {}

    def notes(self, step: Step) -> tuple[Tensor, tuple[int, int, int]] | None:
        """What adjusted rows of a step begin with, if there are any: see `Notes`."""
        found = notes_of(step)
        if found is None:
            return None
        self._notes.numpy()[: len(found.words)] = found.words
        return self._notes[: len(found.words)], found.lengths


class Lanes:
    """Pinned memory of all lanes: `words` int64 [lanes, 3], `masks` bool [lanes, vocab], `landing` [lanes, WIDTH]; and
    on the device `lines` [lanes, WIDTH]."""

    def __init__(self, runtime: Runtime, limits: DeviceLimits) -> None:
        count = limits.rows * limits.depth
        self.words = runtime.pinned((count, 3), torch.int64)
        self.word_rows: Words = self.words.numpy()
        self.masks = runtime.pinned((count, limits.vocab), torch.bool)
        self.mask_rows: Mask = self.masks.numpy()
        self.landing = runtime.pinned((count, WIDTH), torch.float64).fill_(POISON)
        self.landed = [Landing(self.landing.numpy()[i : i + 1]) for i in range(count)]
        self.lines = new_lines(count, runtime.device)


@dataclass(slots=True)
class _Region:
    """Bytes start..end of the arena, free again when `read` was reached."""

    start: int
    end: int
    read: Event


class Arena:
    """Room for pictures between the caller's memory and the vision tower: `size` bytes pinned, as many on the GPU."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        self._runtime = runtime
        self._regions: deque[_Region] = deque()
        self._head = 0
        self._open(size)

    def _open(self, size: int) -> None:
        host = self._runtime.pinned((size,), torch.uint8)
        there = torch.empty(size, dtype=torch.uint8, device=self._runtime.device)  # no fill: it would race an upload
        self._host, self._there, self.size = host, there, size
        self._bytes: Crops = host.numpy()

    def send(self, crops: Crops, arrived: Event, began: Event | None = None) -> Tensor:
        """Copy crops uint8 [n, side, side, 3] in and upload them between `began` and `arrived`; returns them on the
        device, for the compute stream.

        Waits for earlier pictures to be read if there is no room beside them. `release` must follow once the kernels
        that read them are enqueued.
        """
        start = self._make_room(crops.nbytes)
        end = start + crops.nbytes
        np.copyto(self._bytes[start:end], crops.reshape(-1))
        return self._upload(self._host[start:end], start, arrived, began).view(crops.shape)

    def bring(self, pinned: Tensor, arrived: Event, began: Event | None = None) -> Tensor:
        """The same of a tensor that lies in pinned memory already, which nobody writes until that step is over."""
        start = self._make_room(pinned.nbytes)
        found = self._upload(pinned.view(-1).view(torch.uint8), start, arrived, began)
        return found.view(pinned.dtype).view(pinned.shape)

    def _upload(self, source: Tensor, start: int, arrived: Event, began: Event | None) -> Tensor:
        """Copy bytes to the arena from `start` on."""
        there = self._there[start : start + len(source)]
        self._runtime.upload(source, there, arrived, began)
        self._regions.append(_Region(start, start + len(source), self._runtime.event()))
        return there

    def release(self) -> None:
        """The kernels that read the last picture are enqueued: its room is free when they have run."""
        self._runtime.mark(self._regions[-1].read)

    def _make_room(self, count: int) -> int:
        if count > self.size:
            self._wait_for_all()
            self._runtime.settle()
            self._open(count)
        start = self._head if self._head + count <= self.size else 0
        while any(r.start < start + count and start < r.end for r in self._regions):
            self._regions.popleft().read.synchronize()
        self._head = -(-(start + count) // ALIGNMENT) * ALIGNMENT
        return start

    def _wait_for_all(self) -> None:
        while self._regions:
            self._regions.popleft().read.synchronize()
        self._head = 0
