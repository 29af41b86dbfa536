"""What a GPU is given besides words: pictures and what was kept of them, and token tables, through pinned memory.

In: steps that are being enqueued. Out: embeddings for the compute stream, tables in their slots. All goes through the
arena (`pinned.Arena`) on the upload stream; the compute stream goes on behind it, and the arena's room is free again
when what reads it has run (I10).
"""

from __future__ import annotations

import numpy as np
import torch

from gapless.device.cuda_parts import Parts
from gapless.device.flights import Flight
from gapless.device.grammars import packed
from gapless.device.pictures import Shown
from gapless.device.pinned import Slot
from gapless.device.prompt import Sight, pictures_of, shown_by, sights_of, there_for
from gapless.device.runtime import Event, Runtime
from gapless.device.stopwatch import Stopwatch
from gapless.records import Lane, Prefill, Step

Embedded = dict[int, list[torch.Tensor]]
"""Embeddings of the pictures of each prefill, by its place in the step."""


class Uploads:
    """Of one device, for its compute stream."""

    def __init__(self, runtime: Runtime, parts: Parts, watch: Stopwatch) -> None:
        self._runtime, self._watch = runtime, watch
        self._program, self._graphs = parts.program, parts.graphs
        self._arena, self.kept = parts.arena, parts.kept

    def grammar(self, step: Step, prefill: Prefill) -> None:
        """Bring the token table that a prefill brings, if it brings one. What still reads the slot's last one is ahead
        on the compute stream."""
        if prefill.grammar is None:
            return
        arrived = self._runtime.event(timed=self._watch.detailed)
        began = self._watch.beside(step.id, Lane.UPLOAD, arrived)
        there = self._arena.send(packed(prefill.grammar).view(np.uint8), arrived, began)
        self._program.load_grammar(prefill, there.view(torch.int16))
        self._arena.release()

    def pictures(self, flight: Flight[Event], slot: Slot) -> Embedded:
        """The step's pictures, each once: from host memory, or of all prefills together where the model can do that,
        else one by one; and what it looks at for later."""
        step = flight.step
        wanted = [pair for prefill in step.prefills for pair in shown_by(prefill)]
        fresh, later = sights_of(step)
        shown = (self._show(step, sight) for sight in (*fresh.values(), *later))
        made = dict(zip(fresh, self._program.embed(shown, self._graphs.pictures, self._arena.release), strict=True))
        self._keep(flight, slot, [(made[of.digest], place.slot) for of, place in wanted if place and not place.there])
        made |= {digest: self._bring(step, number) for digest, number in there_for(step).items()}
        return {i: [made[of.digest] for of in pictures_of(prefill)] for i, prefill in enumerate(step.prefills)}

    def _bring(self, step: Step, number: int) -> torch.Tensor:
        """Embeddings from a slot in host memory, which is not written as long as the step is in flight."""
        arrived = self._runtime.event(timed=self._watch.detailed)
        found = self._arena.bring(self.kept[number], arrived, self._watch.beside(step.id, Lane.UPLOAD, arrived))
        own = found.clone()
        self._arena.release()
        return own

    def _keep(self, flight: Flight[Event], slot: Slot, pictures: list[tuple[torch.Tensor, int]]) -> None:
        """Copy embeddings to slots in host memory, beside what is computed next; `wait` waits for that too."""
        slot.leaving = [picture for picture, _ in pictures]
        if not pictures:
            return
        self._runtime.mark(made := self._runtime.event())
        for picture, number in pictures:
            landed = self._runtime.event(timed=self._watch.detailed)
            began = self._watch.beside(flight.step.id, Lane.COPY, landed)
            self._runtime.copy_out(picture, self.kept[number], made, landed, began)
            flight.landed.append(landed)

    def _show(self, step: Step, sight: Sight) -> Shown:
        """Upload a picture's crops or pixels, unless that was done for earlier crops; their room in the arena is free
        when what read them has run."""
        pixels = None
        if not sight.begin:
            arrived = self._runtime.event(timed=self._watch.detailed)
            began = self._watch.beside(step.id, Lane.UPLOAD, arrived)
            pixels = self._arena.send(sight.picture.crops, arrived, began)
        return Shown(pixels, sight.picture.tiling, sight.begin, sight.end, sight.later)
