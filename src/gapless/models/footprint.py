"""What a model takes in memory, as arithmetic: its weights, and the KV cache by requests.

In: a few numbers of a model. Out: bytes. Sizing, `gapless inspect` and the page about memory all take theirs from here.
Nothing is loaded, and no torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 16
"""Tokens of a page, unless one says otherwise."""
SPAN = 3
"""Numbers of 8 bytes that say where a token table lies."""
SPARE = 2**16
"""Numbers of 2 bytes behind those of all token tables."""


def token_tables(vocab: int, slots: int, memory: int) -> int:
    """Bytes of so many slots for token tables, and of the empty one, with `memory` bytes for their states."""
    return (slots + 1) * (2 * vocab + 8 * SPAN) + memory + 2 * SPARE if slots else 0


def pages_of_a_row(max_context: int, prefix: int, page_size: int) -> int:
    """Pages of one request at full context, with a picture of its own: its block's last, partly filled page is kept
    beside the copy that the request goes on in."""
    return -(-max_context // page_size) + (prefix % page_size != 0)


@dataclass(frozen=True, slots=True)
class Footprint:
    """`weights`: bytes of all of them; `token`: bytes of a position in the KV cache, in all layers."""

    weights: int
    token: int
    max_context: int
    prefix: int

    def cache(self, rows: int, page_size: int = PAGE) -> int:
        """Bytes of a KV cache in which so many requests run at full context, the reserved page included."""
        pages = rows * pages_of_a_row(self.max_context, self.prefix, page_size) + 1
        return pages * page_size * self.token
