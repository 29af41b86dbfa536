"""A rule as a table over a model's ids: in each state, which ids may come next and where they lead.

Below `records`, so that a request may carry one. Made by `constrain.tokens`; walked on the device and, for reference,
by `constrain.tokens.TokenWalker`. Immutable, and known by its digest: equal digest, equal table.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NEVER, END = 0, 1
"""Classes that every table has: ids that are never allowed, and the end."""
FORBIDDEN = -1

Following = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTable:
    """S states, C classes; state 0 begins.

    `classes` uint16 [vocab]; `following` int16 [S, C], -1 where the class is forbidden, and in class `END` the state
    itself where the text may end; `distance` int16 [S]: the fewest tokens until the text may end (0: it may end now),
    the end not counted; `forced` int32 [S]: the only id allowed, -1 where there are several.
    """

    classes: npt.NDArray[np.uint16]
    following: Following
    distance: npt.NDArray[np.int16]
    forced: npt.NDArray[np.int32]
    seconds: float = 0.0
    """How long the compilation took, of the tree to the table."""
    digest: str = ""
    """SHA-256 (hex) of what is walked; worked out if it is not given."""

    def __post_init__(self) -> None:
        if not self.digest:
            object.__setattr__(self, "digest", self._digested())

    def _digested(self) -> str:
        found = hashlib.sha256(f"{self.states} {len(self.classes)}".encode())
        for array in (self.classes, self.following, self.distance):
            found.update(array.tobytes())
        return found.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenTable) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def states(self) -> int:
        """How many."""
        return len(self.distance)

    @property
    def numbers(self) -> int:
        """How many int16 its states take on a device: `following` and `distance`."""
        return self.following.size + self.distance.size

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(a.nbytes for a in (self.classes, self.following, self.distance, self.forced))

    @property
    def fewest(self) -> int:
        """Tokens of the shortest answer, its end among them."""
        return int(self.distance[0]) + 1
