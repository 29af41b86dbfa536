"""Who has which slot of a device's adapters and token tables, judged from the prefills it is handed (I5).

Invariants: a slot, and the numbers of its table, are written only while no life of a row has them; a row begins with
the table that was brought to its slot.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.fakes.life import Life
from tests.fakes.page_watch import broken
from tests.fakes.tally import Tally

from gapless.constrain.tokens import TokenWalker
from gapless.records import DeviceLimits, GrammarLoad, Prefill


class SeatWatch:
    """`tables`: what is in each slot."""

    def __init__(self, limits: DeviceLimits, tally: Tally) -> None:
        self.tables: dict[int, GrammarLoad] = {}
        self._limits, self._tally = limits, tally

    def start(self, prefill: Prefill, lives: Iterable[Life]) -> None:
        """A row begins beside others that live."""
        slot, lives = prefill.start.adapter, list(lives)
        if not 0 <= slot <= self._limits.adapters or (prefill.adapter is not None and not slot):
            raise broken("I5", f"adapter slot {slot} is not one of {self._limits.adapters}")
        held = [life.ref for life in lives if life.adapter == slot]
        if prefill.adapter is not None and held:
            raise broken("I5", f"an adapter is written into slot {slot}, which {held} hold")
        self._tally.adapters += prefill.adapter is not None
        if prefill.grammar is not None:
            taken = {life.start.grammar for life in lives if life.start is not None}
            self._bring(prefill.start.grammar, prefill.grammar, taken)

    def _bring(self, slot: int, load: GrammarLoad, taken: set[int]) -> None:
        first, end = load.first, load.first + load.table.numbers
        if not 1 <= slot <= self._limits.grammars or first < 0 or end > self._limits.grammar_numbers:
            raise broken("I5", f"a token table goes to slot {slot}, {first} to {end}, which is not there")
        over = {at for at, held in self.tables.items() if first < held.first + held.table.numbers and held.first < end}
        if (over | {slot}) & taken:
            raise broken("I5", f"a token table goes to slot {slot} over {over}, of which rows hold {taken}")
        for at in over:
            del self.tables[at]
        self.tables[slot] = load
        self._tally.grammars += 1

    def rule(self, prefill: Prefill) -> TokenWalker | None:
        """Where a row stands in its table, if it has one."""
        slot, state = prefill.start.grammar, prefill.start.grammar_state
        if slot and slot not in self.tables:
            raise broken("I5", f"{prefill.start.ref} begins with token table {slot}, which was never brought")
        return TokenWalker(self.tables[slot].table, state) if slot else None
