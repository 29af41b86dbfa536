"""What an engine's process is taught of rules: messages of `wire` that go ahead of the first request that names one.

In and out: tables, grammars and vocabularies, exactly as they were.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gapless.constrain.vocabulary import Vocabulary
from gapless.host_grammar import Words
from gapless.records import TokenTable


class Learn(msgspec.Struct, frozen=True, tag=True):
    """A `TokenTable` that requests name from now on; its arrays as their bytes."""

    digest: str
    classes: bytes
    following: bytes
    distance: bytes
    forced: bytes
    seconds: float

    @classmethod
    def of(cls, table: TokenTable) -> Learn:
        """As a message."""
        classes, following = table.classes.tobytes(), table.following.tobytes()
        return cls(table.digest, classes, following, table.distance.tobytes(), table.forced.tobytes(), table.seconds)

    def table(self) -> TokenTable:
        """As it was, over the message's own bytes."""
        distance = np.frombuffer(self.distance, np.int16)
        following = np.frombuffer(self.following, np.int16).reshape(len(distance), -1)
        classes, forced = np.frombuffer(self.classes, np.uint16), np.frombuffer(self.forced, np.int32)
        return TokenTable(classes, following, distance, forced, self.seconds, self.digest)


class LearnWords(msgspec.Struct, frozen=True, tag=True):
    """A `Vocabulary` that guides name from now on."""

    digest: str
    pieces: tuple[bytes | None, ...]
    end: int

    @classmethod
    def of(cls, words: Words) -> LearnWords:
        """As a message."""
        return cls(words.digest, tuple(words.pieces), words.end)

    def vocabulary(self) -> Vocabulary:
        """As it was."""
        return Vocabulary(self.pieces, self.end)


class LearnGuide(msgspec.Struct, frozen=True, tag=True):
    """A `HostGrammar` that requests name from now on, over words that were sent before."""

    digest: str
    words: str
    text: str


class Unlearn(msgspec.Struct, frozen=True, tag=True):
    """No request that follows has the token table or guide of this digest."""

    digest: str


Lesson = Learn | LearnWords | LearnGuide | Unlearn
