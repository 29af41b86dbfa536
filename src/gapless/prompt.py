"""What is asked about: pictures, prompts, and parts of a picture. Frozen dataclasses; `records` hands them on.

Below `records`, so that a step may name them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gapless.columns import RowRef

Crops = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture ready for the vision tower.

    `crops`: uint8 [n, side, side, 3], crop 0 is the whole picture, then local crops row by row; or the upright pixels
    uint8 [height, width, 3], which the device cuts itself, to the same bytes. `tiling` (rows, cols); `digest`: SHA-256
    (hex) of the upright RGB pixels, their shape and the crop settings: equal digest, equal crops.
    """

    digest: str
    crops: Crops
    tiling: tuple[int, int]
    width: int
    height: int

    @property
    def count(self) -> int:
        """How many crops it has, or is to be cut into."""
        return 1 + self.tiling[0] * self.tiling[1]

    @property
    def uncut(self) -> bool:
        """Whether the device is to cut it."""
        return self.crops.ndim == 3


@dataclass(frozen=True, slots=True)
class Inset:
    """A further picture inside a prompt: its `prefix - 1` embeddings stand at `ids[at : at + prefix - 1]`.

    The ids there are filler (any legal id, BOS for one) with values (), so whoever counts ids counts the picture. The
    block is bidirectional in itself and sees all before it; every other position sees what is before it. It is shared
    as part of a longer prefix, never by itself.
    """

    at: int
    picture: Picture


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is fed after the picture block: ids, and for coord and size ids the values they stand for.

    Without a picture `ids` begin with BOS; with one, BOS belongs to the block. `insets` are ascending in `at`, do not
    overlap (they may touch), replace no BOS that begins the prompt, and are followed by at least one id: the engine
    refuses others with `InvalidRequest`.
    """

    ids: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    """Same length as `ids`: () for a text id, (c,) for a coordinate, (w, h) for a size."""
    picture: Picture | None = None
    insets: tuple[Inset, ...] = ()

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All its pictures, in the order in which they stand."""
        front = () if self.picture is None else (self.picture,)
        return (*front, *(inset.picture for inset in self.insets))


@dataclass(frozen=True, slots=True)
class Look:
    """Crops `begin`..`end` - 1 of a picture that are encoded now, and kept for the prefill that feeds it in a later
    step. Looks at one picture follow one another; one with `begin` 0 lets go of what was kept before."""

    ref: RowRef
    picture: Picture
    begin: int
    end: int
