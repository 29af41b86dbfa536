"""Token streams with their training targets, and the packing of many streams behind one picture.

A :class:`Stream` is what the engine runs for one request: prompt ids, then the answer's ids, coordinates and sizes.
Position ``i`` of a stream predicts position ``i + 1``; what it must predict is stored at ``i``. :func:`pack_streams`
lays several streams one after another in one row; the model sees them as separate continuations of the same picture.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

EOS, ANSWER, THINK, COORD, SIZE, GROUND, UNGROUND = 0, 3, 4, 5, 6, 7, 9
BINS = 1024
MOST_AIMS = 16  # things and the text, with room
PREFIX = 257
ASSETS = Path(__file__).resolve().parents[2] / "src" / "gapless" / "assets" / "glint"
PIECES = re.compile(r"[0-9]{1,3}| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+")


class Vocabulary:
    """The tokenizer and the templates, with a cache per word (words never merge with their neighbours)."""

    def __init__(self, assets: Path = ASSETS) -> None:
        self.tokenizer = Tokenizer.from_file(str(assets / "tokenizer.json"))
        self.config: dict[str, Any] = json.loads((assets / "config.json").read_text(encoding="utf-8"))
        self.templates = self.config["tokenizer"]["templates"]
        self._piece = lru_cache(maxsize=None)(lambda piece: tuple(self.tokenizer.encode(piece).ids))
        self._phrase = lru_cache(maxsize=1 << 14)(self._by_piece)

    def _by_piece(self, text: str) -> tuple[int, ...]:
        return tuple([i for piece in PIECES.findall(text) for i in self._piece(piece)])

    def encode(self, text: str) -> list[int]:
        """Ids of a text of ASCII words; equal to ``tokenizer.encode(text).ids``."""
        return list(self._phrase(text))

    def prompt(self, skill: str, body: Sequence[int], suffix: Sequence[int] = ()) -> list[int]:
        """Template prefix, body, template suffix, and one more suffix (queries: 3 or 4)."""
        t = self.templates[skill]
        return [*t["prefix"], *body, *t["suffix"], *suffix]


def coord_bin(value: float) -> float:
    """Fractional bin of a coordinate (a bin decodes to ``bin / 1024``)."""
    return min(BINS - 1.0, max(0.0, value * BINS))


def size_bin(value: float) -> float:
    """Fractional bin of a width or height (a bin decodes to ``2 ** (bin / 1023 * 10 - 10)``)."""
    return (math.log2(max(value, 1 / 1024)) + 10) / 10 * (BINS - 1)


def bin_size(position: float) -> float:
    """The size that a bin decodes to."""
    return float(2 ** (position / (BINS - 1) * 10 - 10))


@dataclass
class Stream:
    """One request. Lists run over positions; ``-1`` means that nothing is trained there."""

    skill: str
    jitter: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    picture: bool = True
    ids: list[int] = field(default_factory=list)
    coord: list[float] = field(default_factory=list)
    size: list[tuple[float, float]] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    coord_target: list[float] = field(default_factory=list)
    size_target: list[tuple[float, float]] = field(default_factory=list)
    aim: list[int] = field(default_factory=list)
    prompt_length: int = 0

    def _append(self, token: int, coord: float = 0.0, size: tuple[float, float] = (0.0, 0.0)) -> None:
        self.ids.append(token)
        self.coord.append(coord)
        self.size.append(size)
        self.target.append(-1)
        self.weight.append(0.0)
        self.coord_target.append(-1.0)
        self.size_target.append((-1.0, -1.0))
        self.aim.append(-1)

    def _shake(self, position: float) -> float:
        if self.jitter:
            position += self.rng.gauss(0, self.jitter)
        return float(min(BINS - 1, max(0, round(position))))

    def _extend(self, ids: Sequence[int]) -> None:
        n = len(ids)
        self.ids += ids
        self.coord += [0.0] * n
        self.size += [(0.0, 0.0)] * n
        self.target += [-1] * n
        self.weight += [0.0] * n
        self.coord_target += [-1.0] * n
        self.size_target += [(-1.0, -1.0)] * n
        self.aim += [-1] * n

    def feed(self, ids: Sequence[int]) -> Stream:
        """Prompt tokens: fed, not trained."""
        self._extend(ids)
        self.prompt_length = len(self.ids)
        return self

    def feed_refs(self, ref: Sequence[float]) -> Stream:
        """A spatial reference in a prompt: a point (x, y) or a box given as centre and extent (x, y, w, h)."""
        for value in ref[:2]:
            self._append(COORD, coord=round(coord_bin(value)) / BINS)
        if len(ref) == 4:
            self._append(SIZE, size=(ref[2], ref[3]))
        self.prompt_length = len(self.ids)
        return self

    def say(self, ids: Sequence[int], weight: float = 1.0) -> Stream:
        """Answer tokens: each is the target of the position before it."""
        start, n = len(self.ids) - 1, len(ids)
        self._extend(ids)
        self.target[start : start + n] = ids
        self.weight[start : start + n] = [weight] * n
        return self

    def point(self, x: float, y: float, thing: int = -1, weight: float = 1.0) -> Stream:
        """Two coordinates; ``thing`` is the index of the object that the first of them chooses."""
        for i, value in enumerate((x, y)):
            place = coord_bin(value)
            self.target[-1], self.weight[-1] = COORD, weight if i == 0 else 0.1
            self.coord_target[-1] = place
            if i == 0:
                self.aim[-1] = thing
            self._append(COORD, coord=self._shake(place) / BINS)
        return self

    def extent(self, w: float, h: float) -> Stream:
        """A size."""
        self.target[-1], self.weight[-1] = SIZE, 0.1
        places = (size_bin(w), size_bin(h))
        self.size_target[-1] = places
        self._append(SIZE, size=(bin_size(self._shake(places[0])), bin_size(self._shake(places[1]))))
        return self

    def with_thought(self, thought: Sequence[int]) -> Stream:
        """This query asked with reasoning: a thought without points, then the same answer."""
        n = self.prompt_length
        s = Stream("reason_other", self.jitter, self.rng, self.picture)
        for token, coord, size in zip([*self.ids[: n - 1], THINK], self.coord[:n], self.size[:n], strict=True):
            s._append(token, coord, size)
        s.prompt_length = n
        s.say(thought, 0.3).say([ANSWER])
        s.ids += self.ids[n:]
        s.coord += self.coord[n:]
        s.size += self.size[n:]
        for mine, other in ((s.target, self.target), (s.weight, self.weight), (s.coord_target, self.coord_target),
                            (s.aim, self.aim)):  # fmt: skip
            mine[-1:] = other[n - 1 :]
        s.size_target[-1:] = self.size_target[n - 1 :]
        return s

    def look_at(self, thing: int) -> Stream:
        """The last position so far is about ``thing`` (an auxiliary target: where is it)."""
        self.aim[-1] = thing
        return self

    def end(self, weight: float = 1.0) -> Stream:
        """The last position must predict the end."""
        self.target[-1], self.weight[-1] = EOS, weight
        return self

    def answer_ids(self) -> list[int]:
        """The ids after the prompt."""
        return self.ids[self.prompt_length :]

    def __len__(self) -> int:
        return len(self.ids)


FIELDS: dict[str, tuple[tuple[int, ...], type]] = {
    "ids": ((), np.int64), "position": ((), np.int64), "slot": ((), np.int64), "picture": ((), np.bool_),
    "coord": ((), np.float32), "size": ((2,), np.float32), "target": ((), np.int64), "weight": ((), np.float32),
    "coord_target": ((), np.float32), "size_target": ((2,), np.float32), "aim": ((), np.int64),
}  # fmt: skip

FIELDS_OF_STREAMS = ("ids", "coord", "size", "target", "weight", "coord_target", "size_target")


def blank(rows: int, length: int) -> dict[str, np.ndarray]:
    """Empty packed arrays ``[rows, length, ...]``; padding has slot 0, targets are -1."""
    out: dict[str, np.ndarray] = {name: np.zeros((rows, length, *tail), kind) for name, (tail, kind) in FIELDS.items()}
    for name in ("target", "coord_target", "size_target", "aim"):
        out[name].fill(-1)
    out["position"].fill(PREFIX)
    return out


def pack_streams(out: dict[str, np.ndarray], row: int, streams: Sequence[Stream], patches: Sequence[int]) -> None:
    """Write streams into one row. ``patches`` gives the patch index of every thing (and of the text), for ``aim``."""
    ends = list(accumulate(len(s) for s in streams))
    used = slice(0, ends[-1] if ends else 0)
    flat = {name: list(chain.from_iterable(getattr(s, name) for s in streams)) for name in FIELDS_OF_STREAMS}
    for name in ("ids", "target", "weight"):
        out[name][row, used] = flat[name]
    places = [i for i, token in enumerate(flat["ids"]) if token in (COORD, SIZE)]  # few; only they have coordinates
    before = [i - 1 for i in places]  # and only the position before them a coordinate or a size to predict
    for name, where in (("coord", places), ("size", places), ("coord_target", before), ("size_target", before)):
        if where:
            out[name][row, where] = [flat[name][i] for i in where]
    known = [*patches, *[-1] * (MOST_AIMS - len(patches)), -1]  # the last one is what aim -1 finds
    out["aim"][row, used] = [known[i] for s in streams for i in s.aim]
    for slot, (s, end) in enumerate(zip(streams, ends, strict=True), 1):
        span, first = slice(end - len(s), end), PREFIX if s.picture else 0
        out["position"][row, span] = np.arange(first, first + len(s))
        out["slot"][row, span] = slot
        out["picture"][row, span] = s.picture
