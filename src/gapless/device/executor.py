"""Runs steps on the current thread, in plain torch on the CPU: the same program as on a GPU, called directly.

In: `Work`, a step packed on the loop's thread into memory of its own (I10). Out: packed lines in the step's slot or
lane buffer. Calls come in launch order (I1), under `torch.inference_mode`.

With `rehearse`, freed pages are filled with NaN and handed-over token cells with -1, and a forward that would use one
raises `InvariantBroken`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gapless.constrain.table import Table
from gapless.costs import Costs
from gapless.device.adjust import Notes, notes_of
from gapless.device.gauge import measured, on_host
from gapless.device.grammars import packed
from gapless.device.packet import SCRAP_PAGE, Layout, Packet, Words, check_step, demand, ready_of, write_head
from gapless.device.pictures import Shown
from gapless.device.program import Program, new_lines
from gapless.device.prompt import Prompt, Sight, prompt_words, shown_by, sights_of, there_for, write_prompt
from gapless.device.tail import Needs
from gapless.errors import InvariantBroken
from gapless.models.base import Model
from gapless.records import DeviceLimits, HostPlace, Mask, Prefill, RowRef, Step, StepKind


@dataclass(frozen=True, slots=True)
class Work:
    """A step with all it needs, sharing no memory that the host may write. `words` matter up to `sent`; `prompts` are
    the words of each; `pictures` are encoded, those of `digests` to be fed now, the rest for later."""

    step: Step
    words: Words
    sent: int
    notes: Notes | None
    prompts: tuple[Words, ...]
    digests: tuple[str, ...]
    pictures: tuple[Shown, ...]


def pack_step(step: Step, layout: Layout) -> Work:
    """Pack a step on the loop's thread. Raises `InvariantBroken` for a step that cannot be meant."""
    check_step(step)
    words = np.zeros(layout.words, dtype=np.int64)
    sent, prompts = Packet(layout, words).fill(step), tuple(_pack_prompt(prefill) for prefill in step.prefills)
    fresh, later = sights_of(step)
    return Work(
        step,
        words,
        sent,
        notes_of(step),
        prompts,
        tuple(fresh),
        tuple(_pack_sight(s) for s in (*fresh.values(), *later)),
    )


def _pack_prompt(prefill: Prefill) -> Words:
    words = np.empty(prompt_words(prefill), dtype=np.int64)
    write_prompt(prefill, words)
    return words


def _pack_sight(sight: Sight) -> Shown:
    pixels = None if sight.begin else torch.from_numpy(sight.picture.crops.copy())
    return Shown(pixels, sight.picture.tiling, sight.begin, sight.end, sight.later)


def _ordinary(shape: tuple[int, ...], *, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


class Executor:
    """Owns the program and record buffers: `slots` [depth] of [rows, WIDTH], `lanes` [rows * depth] of [1, WIDTH];
    and `kept`, embeddings of pictures by slot."""

    def __init__(self, model: Model, table: Table, limits: DeviceLimits, layout: Layout, rehearse: bool) -> None:
        self.program = Program(model, table, limits, layout)
        self._layout = layout
        self._page_size = limits.page_size
        self._rehearse = rehearse
        self._needs = Needs(self.program.table, limits.rows)
        self.slots = [new_lines(layout.rows, model.device) for _ in range(limits.depth)]
        self.lanes = [new_lines(1, model.device) for _ in range(limits.rows * limits.depth)]
        self.kept = self.program.host_pictures(limits, _ordinary)
        self.costs: Costs | None = None
        if rehearse:
            self.program.cache.poison(tuple(range(limits.pages)))

    def measure(self) -> None:
        """Find out what parts of prompts take -> `costs`."""
        self.costs = measured(self.program, None, on_host)

    def launch(self, work: Work) -> float | None:
        """Apply the changes, run the forward, sample every row that does not wait for a host mask. Returns when the
        sampling began (`time.perf_counter`), None if there was none."""
        step, count = work.step, len(work.step.rows)
        if self._rehearse and step.freed:
            self.program.cache.poison(step.freed)
        self._deliver(work)
        for prefill in step.prefills:
            self._needs.begin(prefill.start)
        if step.kind is StepKind.PREFILL:
            self._prefill(work)
            if len(step.fed) < count:
                self.program.head(count)
        else:
            if self._rehearse:
                self._check(count)
            feeds = self._needs.feeds(step.rows.numbers)
            self.program.forward(count, self._layout.max_pages, feeds)
            if self._rehearse:
                self.program.rows.hand_over(self.program.inbox.rows[:count])
        ready = ready_of(step)
        if not len(ready):
            return None
        began = time.perf_counter()
        self.program.end(self.slots[step.slot][:count], self._needs.kind(ready))
        return began

    def _prefill(self, work: Work) -> None:
        for prefill in work.step.prefills:
            self.program.load_adapter(prefill)
            if prefill.grammar is not None:
                self.program.load_grammar(prefill, torch.from_numpy(packed(prefill.grammar)))
        made = {digest: self.kept[slot] for digest, slot in there_for(work.step).items()}
        fresh = self.program.embed(work.pictures, self.program.encode_crops, _read)
        made |= dict(zip(work.digests, fresh, strict=True))
        for i, (prefill, words) in enumerate(zip(work.step.prefills, work.prompts, strict=True)):
            pictures = [self._picture(made[of.digest], place) for of, place in shown_by(prefill)]
            own = Prompt.of(prefill, torch.from_numpy(words))
            self.program.prompt(i, prefill, own, pictures, self._layout.max_pages)

    def _picture(self, found: torch.Tensor, place: HostPlace | None) -> torch.Tensor:
        """Embeddings of a picture, made in this step or kept from before; kept from now on if there is a place."""
        if place is not None and not place.there:
            self.kept[place.slot].copy_(found)
        return found

    def _deliver(self, work: Work) -> None:
        sent = work.sent
        self.program.inbox.words[:sent] = torch.from_numpy(work.words[:sent])
        if sent == self._layout.words:
            self.program.begin()
        if work.notes is not None:
            self.program.note(torch.from_numpy(work.notes.words), work.notes.lengths)
        if sent >= self._layout.granted:
            self.program.extend()

    def finalize(self, step: Step, masks: Mapping[RowRef, Mask | None]) -> float:
        """Sample rows that waited, from the shared buffers or from their lane; those with mask None are closed.
        Returns when it began."""
        began = time.perf_counter()
        asked, kind = [demand(ref, masks) for ref in step.rows], self._needs.masked(step.rows.numbers)
        if step.kind is StepKind.PARKED:
            self.program.lane_words[:] = torch.tensor([step.id, step.rows[0].row, asked[0]])
            self.program.fetch(step.lane)
            self._mask(self.program.parked.masks, step, masks)
            self.program.parked_tail(kind.adjusted)
            self.lanes[step.lane][:] = self.program.parked.lines
            return began
        count = len(step.rows)
        head = np.empty(self._layout.head, dtype=np.int64)
        write_head(self._layout, head, step, asked)
        self.program.inbox.words[: len(head)] = torch.from_numpy(head)
        self._mask(self.program.batch.masks, step, masks)
        self.program.end(self.slots[step.slot][:count], kind)
        return began

    def _mask(self, target: torch.Tensor, step: Step, masks: Mapping[RowRef, Mask | None]) -> None:
        for place, ref in enumerate(step.rows):
            mask = masks.get(ref)
            if mask is not None:
                target[place] = torch.from_numpy(mask)

    def park(self, step: Step, lanes: Mapping[RowRef, int]) -> None:
        """Copy the logits and hidden states of these rows of the last forward into their lanes."""
        for ref, lane in lanes.items():
            self.program.park(step.rows.index(ref), lane)

    def forget(self, ref: RowRef) -> None:
        """A row's life is over."""
        self.program.rows.forget(ref)

    def finish(self, refs: Sequence[RowRef]) -> None:
        """Mute rows from now on: the step they rode on failed."""
        self.program.rows.finish(refs)

    def _check(self, count: int) -> None:
        """Rehearsal: every fed row has a sampled token and a page for its position."""
        rows = self.program.inbox.rows[:count]
        feed = self.program.rows.feed(rows, self._layout.max_pages)
        done = self.program.rows.done(rows)
        pages = feed.tables.gather(1, (feed.positions // self._page_size)[:, None])[:, 0]
        for wrong, what in (
            (feed.ids < 0, "I1: fed before its last token was sampled"),
            ((pages == SCRAP_PAGE) & ~done, "I5: without a page for its position"),
        ):
            if bool(wrong.any()):
                raise InvariantBroken(f"{what}: rows {rows[wrong].tolist()}")


def _read() -> None:
    """Pictures are in memory of their own: nobody waits for it."""
