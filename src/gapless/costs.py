"""What parts of prompts take on a device: a table that it measured at its start, for whoever cuts prompts into steps.

In: numbers of crops, tokens, positions. Out: seconds. Pure arithmetic; the same table says the same for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

Table = tuple[tuple[int, float], ...]
"""(up to how many, seconds) of one pass, ascending; more take several passes."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the parts of a prefill step.

    `crops`: of encoding so many crops together; `tokens`: of feeding so many prompt tokens. `picture`: what each
    picture takes beside its crops (it is cut and projected); `step`: what a step takes whatever is in it; `behind`: for
    each token and each position before its part that it sees. `whole`: a picture's crops are encoded in one step or not
    at all.
    """

    crops: Table
    tokens: Table
    picture: float = 0.0
    step: float = 0.0
    behind: float = 0.0
    whole: bool = False

    def of(self, crops: int, pictures: int, tokens: int, behind: float) -> float:
        """A step with all that. `behind`: of each part, its tokens times the positions before it."""
        parts = seconds_of(self.crops, crops) + seconds_of(self.tokens, tokens)
        return self.step + parts + pictures * self.picture + behind * self.behind

    @property
    def least_crops(self) -> int:
        """As many as take no longer than one."""
        return self.crops[0][0] if self.crops else 1

    @property
    def least_tokens(self) -> int:
        """As many as take no longer than one."""
        return self.tokens[0][0] if self.tokens else 1


def seconds_of(table: Table, count: int) -> float:
    """What so many take; nothing where nothing is known."""
    if not table or not count:
        return 0.0
    passes, rest = divmod(count, table[-1][0])
    last = next((seconds for most, seconds in table if rest <= most), 0.0) if rest else 0.0
    return passes * table[-1][1] + last
