"""What a model takes in memory, as arithmetic: its weights, and the KV cache by requests.

In: a few numbers of a model. Out: bytes. Sizing, `gapless inspect` and the page about memory all take theirs from here.
Nothing is loaded, and no torch is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

PAGE = 16
"""Tokens of a page, unless one says otherwise."""


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
