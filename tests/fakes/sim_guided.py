"""A source of guided masks on a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.fakes.sim_clock import SimClock

from gapless.constrain.guided import GuidedMasks, Work
from gapless.constrain.guides import Guides
from gapless.constrain.table import Table
from gapless.records import Mask, Request, RowRef, Token

GUIDES = Guides()
"""What tests have read of grammars."""


class _Inline:
    """A line of orders that are served where they are left."""

    def __init__(self, work) -> None:
        self._work = work

    def put(self, order) -> None:
        try:
            self._work(order)
        except Exception as error:
            order.error = error


class SimGuided(GuidedMasks):
    """Masks are built at once and handed over later: delays are uniform in `delays` (simulated seconds)."""

    def __init__(self, clock: SimClock, delays: tuple[float, float], seed: int = 0) -> None:
        super().__init__(clock.now, GUIDES)
        self._clock, self._delays, self._random = clock, delays, random.Random(seed)
        self._due: dict[RowRef, float] = {}

    def _start(self) -> None:
        if not self._lines:
            line = _Inline(self._serve)
            self._lines = line, line

    def _serve(self, order) -> None:
        Work(self._lines[0], GUIDES, self._clock.now).serve(order)

    def request(self, ref: RowRef, request: Request, table: Table, said: Sequence[Token], allowed: Mask) -> None:
        """See `GuidedMasks`."""
        assert ref not in self._due, f"two masks are wanted for {ref}"
        super().request(ref, request, table, said, allowed)
        self._due[ref] = self._clock.now() + self._random.uniform(*self._delays)

    def take(self, ref: RowRef) -> Mask | None:
        """See `GuidedMasks`."""
        if self._due.get(ref, 0.0) > self._clock.now():
            return None
        mask = super().take(ref)
        if mask is not None:
            del self._due[ref]
        return mask

    def forget(self, ref: RowRef) -> None:
        """See `GuidedMasks`."""
        super().forget(ref)
        self._due.pop(ref, None)

    def next_ready(self) -> float | None:
        """When the next mask will be ready that is not yet; None if none is being built."""
        return min((at for at in self._due.values() if at > self._clock.now()), default=None)
