"""The six ledgers of one device: who holds which pages, rows, slots and pictures.

Admission alone leases from them for a sequence and gives back; the planner takes pages for rows that grow. Invariant
I5: what is leased is given back, once, and nothing is held while nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gapless.engine.adapters import AdapterPool
from gapless.engine.features import FeatureLedger
from gapless.engine.grammars import GrammarPool
from gapless.engine.pages import PagePool
from gapless.engine.prefix import PrefixCache
from gapless.engine.rows import RowPool
from gapless.errors import InvariantBroken
from gapless.observe.counters import Counters
from gapless.records import DeviceLimits


@dataclass(frozen=True, slots=True)
class Ledgers:
    """Pages are shared by sequences and prefixes; the other five each give out their own."""

    pages: PagePool
    prefixes: PrefixCache
    rows: RowPool
    adapters: AdapterPool
    grammars: GrammarPool
    features: FeatureLedger

    @classmethod
    def of(cls, limits: DeviceLimits, counters: Counters, *, keep: bool) -> Ledgers:
        """Empty ones of all that a device has; `keep`: prefixes stay when their last sequence has left."""
        pages = PagePool(limits.pages, limits.page_size)
        return cls(
            pages=pages,
            prefixes=PrefixCache(pages, counters, keep=keep),
            rows=RowPool(limits.rows),
            adapters=AdapterPool(limits.adapters),
            grammars=GrammarPool(limits.grammars, limits.grammar_numbers),
            features=FeatureLedger(limits.host_pictures, counters),
        )

    @property
    def pages_used(self) -> int:
        """Pages that sequences hold, not the prefix cache alone. For any thread: counts alone are read."""
        return max(0, self.pages.total - self.pages.free - self.prefixes.cached)  # they may change hands in between

    def held(self) -> dict[str, Sequence[object]]:
        """What is leased now, by ledger. Pages of the prefix cache have one reference each, its own; raises
        `InvariantBroken` if they have not (I5). Call while nothing runs."""
        kept = self.prefixes.kept()
        if len(kept) != self.prefixes.cached or any(self.pages.refs(page) != 1 for page in kept):
            raise InvariantBroken(f"I5: the prefix cache counts {self.prefixes.cached} pages, it has {kept}")
        return {
            "pages": sorted(set(self.pages.held()) - set(kept)),
            "rows": self.rows.held(),
            "prefixes": self.prefixes.held(),
            "adapters": self.adapters.held(),
            "token tables": self.grammars.held(),
            "host pictures": self.features.leased(),
        }
