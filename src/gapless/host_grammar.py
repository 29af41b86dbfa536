"""A rule that has no table, as text for a grammar engine that builds masks on the host.

Below `records`, so that a request may carry one. Made by `constrain.grammar`; followed by `constrain.guides`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol


class Words(Protocol):
    """The bytes behind a model's ids, see `constrain.vocabulary.Vocabulary`."""

    @property
    def pieces(self) -> Sequence[bytes | None]:
        """Of each id, None where it has no text."""
        ...

    @property
    def end(self) -> int:
        """The id that ends an answer."""
        ...

    @property
    def digest(self) -> str:
        """Equal for equal vocabularies."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HostGrammar:
    """`text`: see `constrain.lark`; `words`: of the model whose ids are to be told apart."""

    text: str
    words: Words
    seconds: float = 0.0
    """How long it took to write it."""
    digest: str = ""
    """SHA-256 (hex) of the text and the words; worked out if it is not given."""
    fewest: ClassVar[int] = 1
    """Nobody knows how many tokens the shortest answer takes; it takes its end."""

    def __post_init__(self) -> None:
        if not self.digest:
            found = hashlib.sha256(f"{self.words.digest} {self.text}".encode()).hexdigest()
            object.__setattr__(self, "digest", found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostGrammar) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def nbytes(self) -> int:
        """Of all that it holds for itself: its text, its digest and the object. `words` are its model's, whose grammars
        share them; what a grammar engine makes of the text is counted where that is kept (`constrain.guides`)."""
        return sum(map(sys.getsizeof, (self, self.text, self.digest)))
