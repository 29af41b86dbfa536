"""A vocabulary for models with random weights, which have no tokenizer: as many ids, of the lengths that words have.

Every byte is an id, so any text can be written; the rest are words of letters and digits, some with a space before, and
what stands between values of JSON. Drawn by a seed: the same each time.
"""

from __future__ import annotations

import random

from gapless.constrain.vocabulary import Vocabulary

BETWEEN = ('":', '":"', '","', '", "', '": ', '": "', "},{", "}, {", "]}", "true", "false", "null", '{"', '"}', "[]")
LETTERS = "etaoinshrdlcumwfgypbvkjxqzETAOINSHRDLCU0123456789"
FIRST = 16
"""Ids before this one say nothing, as control ids do."""


def made_up(size: int, end: int) -> Vocabulary:
    """Of `size` ids, of which `end` ends an answer."""
    rng = random.Random(11)
    pieces: list[bytes | None] = [None] * min(FIRST, size)
    pieces += [bytes([byte]) for byte in range(256)]
    pieces += [text.encode() for text in BETWEEN]
    known = {piece for piece in pieces if piece is not None}
    while len(pieces) < size:
        word = "".join(rng.choices(LETTERS, k=rng.randrange(2, 9)))
        piece = (" " * (rng.random() < 0.4) + word).encode()
        if piece not in known:
            known.add(piece)
            pieces.append(piece)
    return Vocabulary(pieces[:size], end)
