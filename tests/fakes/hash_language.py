"""A language of pure integers: the next token is a hash of the whole prefix, read back through paged memory.

Everything a real model depends on goes into the hash: picture pixels and tiling, prompt ids, the values that ride on
coordinate and size ids, absolute positions, and what was said so far. There are two layers. Layer one writes a word per
position and sums all words up to its own, weighed by where they are read; layer two hashes that sum into a second word,
writes it, and sums again. So a wrong page, a stale page, a wrong position, table entry or value changes the answer, and
a wrong read while a prompt is fed damages everything after it, not just one token.

This file is plain Python and numpy: scalars are Python ints reduced modulo 2**64, score rows are numpy. `hash_model`
is the same arithmetic in torch and must agree bit for bit.

What flows in: ids, values, crops. What flows out: words, hidden pairs (two ints), float32 scores [vocab]. Invariants:
equal prefixes give equal hidden pairs; scores are exact multiples of 2**-20 under 2**24, all different; a word equal
to `STALE` (poisoned memory) makes every sum that reads it `STALE`, and its scores NaN.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gapless.constrain.table import Rules

U64 = (1 << 64) - 1
STALE = 0x5A1E5A1E5A1E5A1E
"""The word poisoned memory holds."""

FOLD_A = 0x9D3F1C8B5E7A2F61
FOLD_B = 0xC2A58E6D3B91F047
PRIME_ID = 0xE7037ED1A0B428DB
PRIME_POS = 0x8EBC6AF09C88C6E3
PRIME_X = 0xA0761D6478BD642F
PRIME_H1 = 0x589965CC75374CC3

SALT_WORD = 0x1D8E4E27C47D124F
SALT_COORD = 0x2127599BF4325C37
SALT_SIZE = 0x379F1B4A5D8C60E3
SALT_SECOND = 0x4BD1E9970A3C5F8D
SALT_PICTURE = 0x5C9A7E3318B4D26B
SALT_A = 0x63F0D2B45E97A1C9
SALT_B = 0x7A2C4E6B91D35F87
SALT_H1 = 0x0F1E2D3C4B5A6978
SALT_H2 = 0x13579BDF02468ACE
SALT_SCORE = 0x2E7D15B3C98F4A60
SALT_BOOST = 0x3B6C8D9E0F1A2B4C
SALT_COORD_VALUE = 0x4C5D6E7F80912A3B
SALT_SIZE_VALUE = 0x5D6E7F8091A2B3C4

SCORE_UNIT = 2.0**-20
BOOST = 1 << 23
END_HANDICAP = 1 << 22

Hidden = tuple[int, int]


def mix(word: int) -> int:
    """Scramble one 64-bit word; a bijection."""
    word &= U64
    word = ((word ^ (word >> 31)) * FOLD_A) & U64
    word = ((word ^ (word >> 29)) * FOLD_B) & U64
    return word ^ (word >> 32)


def mix_words(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`mix` of each element."""
    words = (words ^ (words >> np.uint64(31))) * np.uint64(FOLD_A)
    words = (words ^ (words >> np.uint64(29))) * np.uint64(FOLD_B)
    mixed: npt.NDArray[np.uint64] = words ^ (words >> np.uint64(32))
    return mixed


def float_bits(value: float) -> int:
    """The bits of a value as float32: two values feed back the same only if they are the same float32."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


@dataclass(frozen=True)
class HashSpec:
    """The sizes and habits of a hash model.

    `end_permille`, `answer_permille`, `coord_permille`: how often (per thousand contexts) the end, answer and coord
    ids get a score above all others, so that sequences end and change phase at surprising times.
    """

    rules: Rules = field(default_factory=lambda: Rules(vocab=64, end=0, answer=3, coord=5, size=6, mask_answer=True))
    prefix: int = 13
    max_context: int = 160
    end_permille: int = 40
    answer_permille: int = 120
    coord_permille: int = 100

    def boosts(self) -> tuple[tuple[int, int], ...]:
        """(id, permille) of every id that may be lifted above all others."""
        r = self.rules
        return ((r.end, self.end_permille), (r.answer, self.answer_permille), (r.coord, self.coord_permille))


def word_of(spec: HashSpec, token_id: int, values: tuple[float, ...] = ()) -> int:
    """The embedding of one token. A coord or size id without a value (or with a negative one) is an ordinary word."""
    valued = bool(values) and values[0] >= 0
    if valued and token_id == spec.rules.coord:
        return mix(float_bits(values[0]) * PRIME_ID + SALT_COORD)
    if valued and token_id == spec.rules.size:
        return mix(mix(float_bits(values[0]) + SALT_SIZE) + float_bits(values[1]))
    return mix(token_id * PRIME_ID + SALT_WORD)


def second_of(word: int) -> int:
    """The second component of an embedding, implied by the first."""
    return mix(word + SALT_SECOND)


def picture_word(crops: npt.NDArray[np.uint8], tiling: tuple[int, int]) -> int:
    """Hash of crop bytes, their order, their shape and the tiling."""
    flat = crops.reshape(-1).astype(np.uint64)
    weights = mix_words(np.arange(flat.size, dtype=np.uint64) + np.uint64(SALT_PICTURE))
    total = int((flat * weights).sum(dtype=np.uint64))
    return mix(total + crops.shape[0] * PRIME_POS + tiling[0] * PRIME_X + tiling[1] * PRIME_H1)


def picture_words(spec: HashSpec, picture: int) -> list[int]:
    """The embeddings of the picture's positions, prefix - 1 of them."""
    return [mix(picture + j * PRIME_POS + SALT_PICTURE) for j in range(spec.prefix - 1)]


def layer_one(word: int, position: int) -> int:
    """The word layer one writes at a position."""
    return mix((word ^ (second_of(word) >> 7)) + position * PRIME_POS + SALT_A)


def layer_two(word: int, position: int, h1: int) -> int:
    """The word layer two writes at a position, given layer one's sum there."""
    return STALE if h1 == STALE else mix(h1 + word * PRIME_X + position * PRIME_POS + SALT_B)


def weighed(word: int, position: int) -> int:
    """What a word read at a position adds to the sum: the same words in another order sum to something else."""
    return word * (2 * position + 1)


def summed(total: int, salt: int) -> int:
    """A hidden word from a sum of weighed words."""
    return mix(total + salt)


def combined(hidden: Hidden) -> int:
    """Both hidden words as one."""
    return (hidden[0] + hidden[1] * PRIME_H1) & U64


def scores(spec: HashSpec, hidden: Hidden) -> npt.NDArray[np.float32]:
    """Float32 [vocab]: exact, all different. NaN for a hidden pair that came from stale memory."""
    vocab = spec.rules.vocab
    if hidden[0] == STALE:
        return np.full(vocab, np.nan, dtype=np.float32)
    whole = combined(hidden)
    ids = np.arange(vocab, dtype=np.uint64)
    drawn = mix_words(np.uint64(whole) + ids * np.uint64(PRIME_ID) + np.uint64(SALT_SCORE)) >> np.uint64(47)
    units = drawn.astype(np.int64) * vocab + (vocab - 1 - ids.astype(np.int64))
    units[spec.rules.end] -= END_HANDICAP
    for token_id, permille in spec.boosts():
        if boosted(whole, token_id, permille):
            units[token_id] = (units[token_id] & (BOOST - 1)) + BOOST
    return (units.astype(np.float64) * SCORE_UNIT).astype(np.float32)


def boosted(whole: int, token_id: int, permille: int) -> bool:
    """Whether this context lifts an id above all others."""
    return (mix(whole + token_id * PRIME_ID + SALT_BOOST) >> 40) % 1000 < permille


def coord_of(hidden: Hidden) -> float:
    """The coordinate decoded at this hidden pair: k / 1024."""
    return (mix(combined(hidden) + SALT_COORD_VALUE) >> 54) / 1024.0


def size_of(hidden: Hidden) -> tuple[float, float]:
    """The (width, height) decoded at this hidden pair: (k + 1) / 1024 each."""
    drawn = mix(combined(hidden) + SALT_SIZE_VALUE)
    return ((drawn >> 54) + 1) / 1024.0, (((drawn >> 40) & 1023) + 1) / 1024.0


@dataclass
class Reading:
    """One sequence read without pages: two running sums. The oracle every device is compared with."""

    spec: HashSpec
    position: int = 0
    ones: int = 0
    twos: int = 0
    hidden: Hidden = (0, 0)
    adapter: int = 0
    """Its adapter's word, which enters every word that is read; 0 for none."""

    def feed_picture(self, picture: int) -> None:
        """Read BOS and the picture as one block in which everything sees everything. First thing read, or nothing."""
        assert self.position == 0, "a picture block comes first"
        block = [word_of(self.spec, self.spec.rules.end), *picture_words(self.spec, picture)]
        words = [word ^ self.adapter for word in block]
        self.ones = sum(weighed(layer_one(word, j), j) for j, word in enumerate(words)) & U64
        h1 = summed(self.ones, SALT_H1)
        self.twos = sum(weighed(layer_two(word, j, h1), j) for j, word in enumerate(words)) & U64
        self.position = len(words)

    def feed_inset(self, picture: int) -> None:
        """Read a further picture: everything in it sees all of it and what came before."""
        block = [(word ^ self.adapter, self.position + j) for j, word in enumerate(picture_words(self.spec, picture))]
        self.ones = (self.ones + sum(weighed(layer_one(word, at), at) for word, at in block)) & U64
        h1 = summed(self.ones, SALT_H1)
        self.twos = (self.twos + sum(weighed(layer_two(word, at, h1), at) for word, at in block)) & U64
        self.position += len(block)

    def feed(self, token_id: int, values: tuple[float, ...] = ()) -> Hidden:
        """Read one token; its hidden pair foretells the next."""
        word, at = word_of(self.spec, token_id, values) ^ self.adapter, self.position
        self.ones = (self.ones + weighed(layer_one(word, at), at)) & U64
        h1 = summed(self.ones, SALT_H1)
        self.twos = (self.twos + weighed(layer_two(word, at, h1), at)) & U64
        self.position += 1
        self.hidden = (summed(self.twos, SALT_H2), h1)
        return self.hidden
