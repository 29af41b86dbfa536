"""The text of an outline: tokens to SVG path data, piece by piece.

In: the text of each token of a segment's answer: a command letter, a whole number 0..960, or a lone minus. Out: path
data with coordinates 0..1 relative to the box. Invariants: the path only ever grows by whole commands, so it can be
drawn at any time; it ends at the first token that does not fit, and what came before stays.
"""

from __future__ import annotations

import re

from gapless.images.path import ARITY

SCALE = 960
"""What the model counts a box's side as."""
_INTEGER = re.compile(r"-?[0-9]{1,9}")
_AXES = {"M": "xy", "L": "xy", "H": "x", "V": "y", "C": "xyxyxy", "S": "xyxy", "Q": "xyxy", "T": "xy", "A": "wh---xy"}


class PathWriter:
    """Collects one path. (x_scale, x_shift), (y_scale, y_shift) map box coordinates to those of a clamped box."""

    def __init__(self, x_map: tuple[float, float] = (1.0, 0.0), y_map: tuple[float, float] = (1.0, 0.0)) -> None:
        self._x, self._y = x_map, y_map
        self._pieces: list[str] = []
        self._letter = ""
        self._spelled = False
        self._numbers: list[int] = []
        self._minus = False
        self._ended = False

    @property
    def path(self) -> str:
        """The path so far."""
        return "".join(self._pieces)

    def take(self, text: str) -> str:
        """Take one token's text; return what it adds to the path."""
        text = text.strip()
        if self._ended or not text:
            return ""
        if text == "-" and not self._minus and self._letter:
            self._minus = True
        elif len(text) == 1 and text.upper() in ARITY:
            return self._command(text)
        elif _INTEGER.fullmatch(text) and ARITY.get(self._letter.upper(), 0):
            return self._number(int(text))
        else:
            self._ended = True
        return ""

    def _command(self, letter: str) -> str:
        misplaced = self._numbers or self._minus or (not self._pieces and letter not in "Mm")
        if misplaced:
            self._ended = True
            return ""
        self._letter, self._spelled = letter, False
        return self._add(letter) if letter in "Zz" else ""

    def _number(self, number: int) -> str:
        self._numbers.append(-number if self._minus else number)
        self._minus = False
        if len(self._numbers) < ARITY[self._letter.upper()]:
            return ""
        words = [self._coordinate(n, axis) for n, axis in zip(self._numbers, self._axes(), strict=True)]
        if not self._spelled:
            words.insert(0, self._letter)
        self._numbers, self._spelled = [], True
        return self._add(" ".join(words))

    def _axes(self) -> str:
        return _AXES[self._letter.upper()]

    def _coordinate(self, number: int, axis: str) -> str:
        if axis == "-":
            return str(number)
        scale, shift = self._x if axis in "xw" else self._y
        relative = axis in "wh" or (self._letter.islower() and bool(self._pieces))
        text = f"{number / SCALE * scale + (0.0 if relative else shift):.3f}".rstrip("0").rstrip(".")
        return "0" if text == "-0" else text

    def _add(self, text: str) -> str:
        piece = f" {text}" if self._pieces else text
        self._pieces.append(piece)
        return piece
