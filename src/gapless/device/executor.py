"""Runs one step's compute on the current thread, in plain torch: changes, forwards, tails, parking lanes.

In: `Work`, a step packed on the loop's thread into memory of its own (I10). Out: packed lines in the step's slot or
lane buffer. Whoever calls decides on which stream or thread; calls come in launch order (I1), under
`torch.inference_mode`.

There is one pair of logits and hidden buffers: each forward overwrites the previous one's, so rows that wait for a
host mask are parked first. Prompts are fed one sequence at a time. That a token's result depends neither on its company
nor on whether it was prefilled or decoded is the model's promise (`models.base`).

With `rehearse`, freed pages are filled with NaN and handed-over token cells with -1, and a forward that would use one
raises `InvariantBroken`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gapless.constrain.table import Table
from gapless.device.record import WIDTH
from gapless.device.rows import SCRAP_PAGE, Changes, Feed, RowStore, pack_changes
from gapless.device.tables import DeviceTable
from gapless.device.tail import Tail
from gapless.errors import InvariantBroken
from gapless.models.base import Model
from gapless.records import POISON, Crops, DeviceLimits, Mask, Prefill, RowRef, Step, StepKind


@dataclass(frozen=True, slots=True)
class PromptFeed:
    """A prompt as arrays: ids int64 [T], values float32 [T, 2], positions int64 [T]; crops when there is a picture."""

    ids: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]
    positions: npt.NDArray[np.int64]
    crops: Crops | None


@dataclass(frozen=True, slots=True)
class Work:
    """A step with all it needs, sharing no memory that the host may write."""

    step: Step
    changes: Changes
    prompts: tuple[PromptFeed, ...]


def pack_step(step: Step, max_pages: int) -> Work:
    """Pack a step on the loop's thread. Raises `InvariantBroken` for a step that cannot be meant."""
    if step.kind is StepKind.PARKED:
        raise InvariantBroken(f"step {step.id} is a parked row's: it has no forward; finalize it instead")
    if step.kind is StepKind.PREFILL and step.rows != tuple(p.start.ref for p in step.prefills):
        raise InvariantBroken(f"step {step.id} prefills other rows than it names")
    return Work(step, pack_changes(step, max_pages), tuple(_pack_prompt(p) for p in step.prefills))


def _pack_prompt(prefill: Prefill) -> PromptFeed:
    length = len(prefill.ids)
    if length == 0:
        raise InvariantBroken(f"row {prefill.start.ref.row} is prefilled with no ids, so nothing foretells its token")
    positions = np.arange(prefill.position, prefill.position + length, dtype=np.int64)
    values = np.full((length, 2), POISON, dtype=np.float32)
    for i, value in enumerate(prefill.values):
        values[i, : len(value)] = value
    crops = None if prefill.picture is None else prefill.picture.crops.copy()
    return PromptFeed(np.array(prefill.ids, dtype=np.int64), values, positions, crops)


class Executor:
    """Owns rows, cache and record buffers: `slots` [depth] of [rows, WIDTH], `lanes` [rows * depth] of [1, WIDTH]."""

    def __init__(self, model: Model, table: Table, limits: DeviceLimits, rehearse: bool) -> None:
        device = model.device
        max_pages = -(-limits.max_context // limits.page_size)
        lanes = limits.rows * limits.depth
        self._model = model
        self._page_size = limits.page_size
        self._rehearse = rehearse
        self._cache = model.new_cache(limits.pages, limits.page_size)
        self._rows = RowStore(limits.rows, max_pages, device)
        self._tail = Tail(model, DeviceTable(table, device), self._rows)
        self.slots = [_lines(limits.rows, device) for _ in range(limits.depth)]
        self.lanes = [_lines(1, device) for _ in range(lanes)]
        sample = model.embed(torch.zeros(1, dtype=torch.int64, device=device), torch.full((1, 2), -1.0, device=device))
        self._hidden = sample.new_zeros((limits.rows, sample.shape[1]))
        self._logits = torch.zeros((limits.rows, model.vocab), device=device)
        self._parked_hidden = sample.new_zeros((lanes, sample.shape[1]))
        self._parked_logits = torch.zeros((lanes, model.vocab), device=device)
        if rehearse:
            self._cache.poison(tuple(range(limits.pages)))

    def launch(self, work: Work) -> None:
        """Apply the changes, run the forward, sample every row that does not wait for a host mask."""
        step = work.step
        if self._rehearse and step.freed:
            self._cache.poison(step.freed)
        self._rows.apply(work.changes)
        for prefill in step.prefills:
            self._tail.begin(prefill.start)
        if step.kind is StepKind.PREFILL:
            self._prefill(work)
        else:
            self._decode(step.rows)
        count = len(step.rows)
        self._logits[:count] = self._model.logits(self._hidden[:count])
        ready = [i for i, ref in enumerate(step.rows) if ref.row not in step.unsampled]
        if ready:
            refs, at = [step.rows[i] for i in ready], self._index(ready)
            self.slots[step.slot][at] = self._tail.run(step.id, refs, self._logits[at], self._hidden[at])

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        """Sample rows that waited, from the shared buffers or from their lane; those with mask None are closed."""
        parked = step.kind is StepKind.PARKED
        logits, hidden = (self._parked_logits, self._parked_hidden) if parked else (self._logits, self._hidden)
        lines = self.lanes[step.lane] if parked else self.slots[step.slot]
        place = {ref: i for i, ref in enumerate(step.rows)}
        allowed = {ref: mask for ref, mask in masks.items() if mask is not None}
        closed = [ref for ref, mask in masks.items() if mask is None]
        if allowed:
            refs = list(allowed)
            mask = torch.from_numpy(np.stack(list(allowed.values()))).to(self._model.device)
            at = self._index([place[ref] for ref in refs])
            source = self._index([step.lane]) if parked else at
            lines[at] = self._tail.run(step.id, refs, logits[source], hidden[source], mask)
        if closed:
            lines[self._index([place[ref] for ref in closed])] = self._tail.close(step.id, closed)

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """Copy the logits and hidden states of these rows of the last forward into their lanes."""
        source = self._index([step.rows.index(ref) for ref in lanes])
        target = self._index(list(lanes.values()))
        self._parked_logits[target] = self._logits[source]
        self._parked_hidden[target] = self._hidden[source]

    def forget(self, ref: RowRef) -> None:
        """A row's life is over."""
        self._rows.forget(ref)

    def finish(self, refs: Sequence[RowRef]) -> None:
        """Mute rows from now on: the step they rode on failed."""
        self._rows.finish(refs)

    def _decode(self, refs: Sequence[RowRef]) -> None:
        rows = self._index([ref.row for ref in refs])
        feed = self._rows.feed(rows)
        if self._rehearse:
            self._check(feed, rows)
            self._rows.hand_over(rows)
        self._hidden[: len(refs)] = self._forward(feed)

    def _prefill(self, work: Work) -> None:
        for i, (prefill, prompt) in enumerate(zip(work.step.prefills, work.prompts, strict=True)):
            if prefill.picture is not None and prompt.crops is not None:
                crops = torch.from_numpy(prompt.crops).to(self._model.device)
                picture = self._model.encode_picture(crops, prefill.picture.tiling)
                self._model.prefill_prefix(picture, self._cache, self._index(list(prefill.prefix_pages)))
            if prefill.tail is not None:
                self._cache.copy_page(*prefill.tail)
            self._hidden[i] = self._feed_prompt(prompt, prefill.start.ref.row)

    def _feed_prompt(self, prompt: PromptFeed, row: int) -> Tensor:
        """Feed a prompt -> hidden [dim] at its last id."""
        device = self._model.device
        feed = Feed(
            ids=torch.from_numpy(prompt.ids).to(device),
            values=torch.from_numpy(prompt.values).to(device),
            positions=torch.from_numpy(prompt.positions).to(device),
            tables=self._rows.pages[row].expand(len(prompt.ids), -1),
        )
        return self._forward(feed)[-1]

    def _forward(self, feed: Feed) -> Tensor:
        """One model call of T tokens -> hidden [T, dim]."""
        x = self._model.embed(feed.ids, feed.values)
        return self._model.forward(x, feed.positions, feed.tables, self._cache)

    def _check(self, feed: Feed, rows: Tensor) -> None:
        """Rehearsal: every fed row has a sampled token and a page for its position."""
        pages = feed.tables.gather(1, (feed.positions // self._page_size)[:, None])[:, 0]
        done = self._rows.done(rows)
        for wrong, what in (
            (feed.ids < 0, "I1: fed before its last token was sampled"),
            ((pages == SCRAP_PAGE) & ~done, "I5: without a page for its position"),
        ):
            if bool(wrong.any()):
                raise InvariantBroken(f"{what}: rows {rows[wrong].tolist()}")

    def _index(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._model.device)


def _lines(count: int, device: torch.device) -> Tensor:
    return torch.full((count, WIDTH), float(POISON), dtype=torch.float64, device=device)
