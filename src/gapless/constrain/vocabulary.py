"""The bytes behind every id of a model: what automata over bytes need to know of a tokenizer.

In: anything that says what bytes an id stands for. Out: a `Vocabulary`, whose digest tells tokenizers apart. Invariant:
an id without bytes (control ids, ids beyond the tokenizer) never advances a rule, so no table ever allows it; the end
is not text either and is kept apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Pieces(Protocol):
    """What a tokenizer says about its ids."""

    def piece(self, token_id: int) -> bytes:
        """The bytes an id stands for; empty for control ids and unknown ones."""
        ...


def token_bytes(tokenizer: Pieces, vocab: int) -> list[bytes | None]:
    """The bytes of each id from 0 to `vocab` - 1, the number of the model's logits; None where an id has no text."""
    return [tokenizer.piece(id) or None for id in range(vocab)]


@dataclass(frozen=True)
class Vocabulary:
    """`pieces`: bytes of each id or None; `end`: the id that ends an answer, whatever its bytes."""

    pieces: Sequence[bytes | None]
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.end < len(self.pieces):
            raise ValueError(f"the end id {self.end} is not among the vocabulary's {len(self.pieces)} ids")

    @property
    def size(self) -> int:
        """How many ids."""
        return len(self.pieces)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of all of it."""
        found = hashlib.sha256(f"{self.end} {self.size}".encode())
        for lengths in (self.lengths, self.data):
            found.update(lengths.tobytes())
        return found.hexdigest()

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Int64 [size]: bytes of each id, 0 for those without a text and the end."""
        lengths = np.fromiter((len(piece or b"") for piece in self.pieces), np.int64, self.size)
        lengths[self.end] = 0
        return lengths

    @cached_property
    def data(self) -> npt.NDArray[np.uint8]:
        """Uint8: all bytes, id after id."""
        texts = (piece or b"" for id, piece in enumerate(self.pieces) if id != self.end)
        return np.frombuffer(b"".join(texts), np.uint8)

    @cached_property
    def begins(self) -> npt.NDArray[np.int64]:
        """Int64 [size]: where each id's bytes begin in `data`."""
        return np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
