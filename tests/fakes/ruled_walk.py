"""A walk that is ruled twice: by a program's states, and in its answer by a token table, where there is one."""

from __future__ import annotations

from dataclasses import dataclass

from gapless.constrain.table import Walker
from gapless.constrain.tokens import TokenWalker
from gapless.records import Flags, Mask, ValueHead


@dataclass
class RuledWalk:
    """One sequence's place in both."""

    walker: Walker
    rule: TokenWalker | None = None

    def mask(self) -> Mask:
        """Bool [vocab], True where the next token may be."""
        if self.rule is not None and self.walker.answers:
            return self.rule.mask(self.walker.left)
        return self.walker.mask()

    def advance(self, token_id: int) -> tuple[ValueHead, Flags]:
        """Move over one token; see `Walker.advance`."""
        if self.rule is not None and self.walker.answers:
            self.rule.advance(token_id)
        return self.walker.advance(token_id)
