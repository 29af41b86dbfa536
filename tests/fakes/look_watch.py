"""Which crops of a picture a device has encoded for a later step, judged from the steps it is handed (I5).

Invariants: crops are looked at from the first on, without a gap; a prefill counts on those that were, of its row's own
picture, and on no others.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.page_watch import broken

from gapless.records import Look, Prefill, RowRef


@dataclass
class LookWatch:
    """`seen`: whose picture, its digest, and how many of its crops."""

    seen: tuple[RowRef, str, int] | None = None

    def look(self, look: Look) -> None:
        """Some more crops."""
        before = (look.ref, look.picture.digest, look.begin)
        if not look.begin < look.end <= look.picture.count or (look.begin and before != self.seen):
            raise broken("I5", f"{look.ref} looks at crops {look.begin}..{look.end}, was seen: {self.seen}")
        self.seen = (look.ref, look.picture.digest, look.end)

    def fed(self, prefill: Prefill) -> bool:
        """Whether the first picture of a prefill was looked at before; now it is over."""
        if not prefill.looked:
            return False
        first = prefill.picture or prefill.insets[0].picture
        if self.seen != (prefill.start.ref, first.digest, prefill.looked):
            raise broken("I5", f"{prefill.looked} crops of a picture are there, it says; was seen: {self.seen}")
        self.seen = None
        return True
