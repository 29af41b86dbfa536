"""A bitmap font of capitals and digits, and the ink of a printed text at any size, for NumPy and PyTorch.

Glyphs are seven rows high and as wide as their ink; one empty column stands between two glyphs. A text becomes a table
of zeros and ones with an empty cell all around; :func:`ink` reads it between four cells, so edges are soft at any scale
and lie on the borders of the cells.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

ROWS, MOST_COLUMNS = 7, 35
TABLE = (ROWS + 2, MOST_COLUMNS + 2)
EDGE = 0.46  # below one half, so that the strokes of diagonals, which meet at corners, hold together
FONT = {
    "A": (" ### ", "#   #", "#   #", "#####", "#   #", "#   #", "#   #"),
    "B": ("#### ", "#   #", "#   #", "#### ", "#   #", "#   #", "#### "),
    "C": (" ### ", "#   #", "#    ", "#    ", "#    ", "#   #", " ### "),
    "D": ("#### ", "#   #", "#   #", "#   #", "#   #", "#   #", "#### "),
    "E": ("#####", "#    ", "#    ", "#### ", "#    ", "#    ", "#####"),
    "F": ("#####", "#    ", "#    ", "#### ", "#    ", "#    ", "#    "),
    "G": (" ### ", "#   #", "#    ", "#  ##", "#   #", "#   #", " ### "),
    "H": ("#   #", "#   #", "#   #", "#####", "#   #", "#   #", "#   #"),
    "I": ("###", " # ", " # ", " # ", " # ", " # ", "###"),
    "J": ("  ###", "   # ", "   # ", "   # ", "   # ", "#  # ", " ##  "),
    "K": ("#   #", "#  # ", "# #  ", "##   ", "# #  ", "#  # ", "#   #"),
    "L": ("#    ", "#    ", "#    ", "#    ", "#    ", "#    ", "#####"),
    "M": ("#   #", "## ##", "# # #", "# # #", "#   #", "#   #", "#   #"),
    "N": ("#   #", "##  #", "##  #", "# # #", "#  ##", "#  ##", "#   #"),
    "O": (" ### ", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "),
    "P": ("#### ", "#   #", "#   #", "#### ", "#    ", "#    ", "#    "),
    "Q": (" ### ", "#   #", "#   #", "#   #", "# # #", "#  # ", " ## #"),
    "R": ("#### ", "#   #", "#   #", "#### ", "# #  ", "#  # ", "#   #"),
    "S": (" ####", "#    ", "#    ", " ### ", "    #", "    #", "#### "),
    "T": ("#####", "  #  ", "  #  ", "  #  ", "  #  ", "  #  ", "  #  "),
    "U": ("#   #", "#   #", "#   #", "#   #", "#   #", "#   #", " ### "),
    "V": ("#   #", "#   #", "#   #", "#   #", " # # ", " # # ", "  #  "),
    "W": ("#   #", "#   #", "#   #", "# # #", "# # #", "## ##", "#   #"),
    "X": ("#   #", "#   #", " # # ", "  #  ", " # # ", "#   #", "#   #"),
    "Y": ("#   #", "#   #", " # # ", "  #  ", "  #  ", "  #  ", "  #  "),
    "Z": ("#####", "    #", "   # ", "  #  ", " #   ", "#    ", "#####"),
    "0": (" ## ", "#  #", "#  #", "#  #", "#  #", "#  #", " ## "),
    "1": (" # ", "## ", " # ", " # ", " # ", " # ", "###"),
    "2": (" ### ", "#   #", "    #", "  ## ", " #   ", "#    ", "#####"),
    "3": ("#### ", "    #", "    #", " ### ", "    #", "    #", "#### "),
    "4": ("   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # "),
    "5": ("#####", "#    ", "#### ", "    #", "    #", "#   #", " ### "),
    "6": ("  ## ", " #   ", "#    ", "#### ", "#   #", "#   #", " ### "),
    "7": ("#####", "    #", "   # ", "  #  ", "  #  ", " #   ", " #   "),
    "8": (" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### "),
    "9": (" ### ", "#   #", "#   #", " ####", "    #", "   # ", " ##  "),
}


@cache
def columns(text: str) -> int:
    """Width of a text's ink in cells."""
    return sum(len(FONT[c][0]) + 1 for c in text) - 1


def bitmap(text: str) -> np.ndarray:
    """Ink of a text, ``bool [7, columns]``; a character that the font lacks is a KeyError."""
    rows = [" ".join(FONT[c][i] for c in text) for i in range(ROWS)]
    return np.asarray([[cell == "#" for cell in row] for row in rows])


@cache
def table(text: str) -> np.ndarray:
    """What :func:`ink` reads: the bitmap in a frame of zeros, flat, ``float32 [9 * 37]``; all zeros for no text."""
    out = np.zeros(TABLE, np.float32)
    if text:
        out[1:-1, 1 : 1 + columns(text)] = bitmap(text)
    return out.reshape(-1)


def ink(xp: ModuleType, u: Any, v: Any, sharpness: Any, tables: Any, row: Any) -> Any:
    """How much ink lies on each pixel, ``[n, h, w]`` in 0..1.

    ``u [n, 1, w]`` and ``v [n, h, 1]`` are cells from the text's left and upper edge, ``sharpness [n, 1, 1]`` pixels
    per cell, ``tables [b, 9 * 37]`` and ``row [n, 1, 1]`` the table of each of the ``n`` pictures.
    """
    j = xp.clip(xp.floor(u + 0.5), 0, TABLE[1] - 2)
    i = xp.clip(xp.floor(v + 0.5), 0, TABLE[0] - 2)
    a, b = xp.clip(u + 0.5 - j, 0, 1), xp.clip(v + 0.5 - i, 0, 1)
    at = i * TABLE[1] + j
    at = at.astype(np.int64) if xp is np else at.long()
    above = tables[row, at] * (1 - a) + tables[row, at + 1] * a
    below = tables[row, at + TABLE[1]] * (1 - a) + tables[row, at + TABLE[1] + 1] * a
    slope = xp.clip(sharpness, 0.5 / EDGE, None)
    return xp.clip(0.5 + (above * (1 - b) + below * b - EDGE) * slope, 0, 1)
