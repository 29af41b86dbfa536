"""How large what is compiled may become, and the error of what becomes larger.

`NotATable` is not `InvalidRequest`'s usual meaning: the wish is well formed, but a table of bounded size cannot hold
it. Whoever has another way (masks built on the host) takes it; for all others it is a refusal like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.errors import InvalidRequest


class NotATable(InvalidRequest):
    """A rule without a table: it is recursive, or its table would be too large."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that end a compilation with `NotATable`."""

    work: int = 20_000_000
    """Elementary steps of one automaton's construction."""
    fragments: int = 400_000
    """States of a nondeterministic automaton."""
    states: int = 16_384
    """States of a deterministic one, and of a table; below 32768, so that a table's numbers take two bytes."""
    table_bytes: int = 32 * 2**20
    """Bytes of a finished table."""
    scratch_bytes: int = 512 * 2**20
    """Bytes of what a token does from each state, for all kinds of token, while a table is being made."""
    alternatives: int = 512
    """Ways in which a schema's anyOf, oneOf and allOf may combine, at one place."""
    depth: int = 64
    """How deep groups of a regex and schemas may nest."""
    generic_depth: int = 3
    """How deep arrays and objects nest in a value of which nothing is known (`true`, `{}`)."""

    def exceeded(self, what: str, most: int) -> NotATable:
        """The error of a limit."""
        return NotATable(
            f"the rule is too large for a table: it takes more than {most} {what}; lower its bounds "
            "(maxLength, maxItems, repetitions), or leave them out, or lower its number of alternatives"
        )


DEFAULT = Limits()
