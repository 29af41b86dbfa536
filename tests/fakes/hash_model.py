"""`HashModel`: the hash language as a torch model with a paged cache, for devices that run torch.

What flows in and out is `gapless.models.base.Model`: embeddings and hidden states are int64 [T, 2], the cache is int64
[pages, page_size, 2], scores are float32 and equal `hash_language.scores` bit for bit. Invariants: batch size, order of
rows and padding never change a row's result; poisoned memory that is read turns the row's scores into NaN.

`cursed` holds combined hidden words whose scores come out as NaN: a row with broken weights, for fault tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from tests.fakes import hash_language as lang
from tests.fakes.hash_language import HashSpec
from torch import Tensor

from gapless.models.base import AdapterBank, KVCache, RowAdapters


def signed(word: int) -> int:
    """An unsigned 64-bit word as the int64 with the same bits."""
    word &= lang.U64
    return word - (1 << 64) if word >> 63 else word


def _shift(words: Tensor, bits: int) -> Tensor:
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(words: Tensor) -> Tensor:
    """`hash_language.mix` of each int64 element."""
    words = (words ^ _shift(words, 31)) * signed(lang.FOLD_A)
    words = (words ^ _shift(words, 29)) * signed(lang.FOLD_B)
    return words ^ _shift(words, 32)


@dataclass
class HashCache:
    """Paged words of both layers, int64 [pages, page_size, 2]; unwritten memory is `STALE`."""

    page_size: int
    words: Tensor

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page, both layers."""
        self.words[target] = self.words[source]

    def poison(self, pages: tuple[int, ...]) -> None:
        """Make every word of these pages `STALE`."""
        for page in pages:
            self.words[page] = lang.STALE

    def write(self, layer: int, positions: Tensor, tables: Tensor, words: Tensor) -> None:
        """Write one word per token at its position in its table."""
        pages = tables.gather(1, (positions // self.page_size)[:, None])[:, 0]
        self.words[pages, positions % self.page_size, layer] = words

    def total(self, layer: int, positions: Tensor, tables: Tensor, salt: int) -> Tensor:
        """Hidden words [T] from the sums over positions 0..own; `STALE` where one of them was stale."""
        held = self.words[tables, :, layer].reshape(len(positions), -1)
        places = torch.arange(held.shape[1], device=held.device)[None, :]
        seen = places <= positions[:, None]
        hidden = mix((torch.where(seen, held, 0) * (2 * places + 1)).sum(dim=1) + signed(salt))
        stale = (seen & (held == lang.STALE)).any(dim=1)
        return torch.where(stale, lang.STALE, hidden)


@dataclass
class HashBank:
    """The adapters' words by slot, int64 [slots]; a slot that was never filled holds `STALE`, slot 0 zero."""

    words: Tensor

    def load(self, slot: int, weights: object) -> None:
        """Put an adapter's word into a slot."""
        assert isinstance(weights, int)
        self.words[slot] = weights

    @staticmethod
    def applied(x: Tensor, adapters: RowAdapters | None) -> Tensor:
        """int64 [T, 2] with the words of each token's adapter; a torn pair stays torn."""
        if adapters is None:
            return x
        assert isinstance(adapters.bank, HashBank)
        words = adapters.bank.words[adapters.slots]
        whole = x[:, 1] == HashModel._pair(x[:, 0])[:, 1]
        return torch.where((whole & (words != 0))[:, None], HashModel._pair(x[:, 0] ^ words), x)


@dataclass
class HashModel:
    """The hash language behind the model protocol. Immutable but for `cursed`, which is set before a graph is captured.

    On a GPU nothing here asks the device for a number, so that a CUDA graph can hold it.
    """

    spec: HashSpec = field(default_factory=HashSpec)
    cursed: set[int] = field(default_factory=set)
    dtype: torch.dtype = torch.int64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def vocab(self) -> int:
        """Number of ids."""
        return self.spec.rules.vocab

    @property
    def prefix(self) -> int:
        """Positions of BOS + picture block."""
        return self.spec.prefix

    @property
    def max_context(self) -> int:
        """Positions a sequence may have."""
        return self.spec.max_context

    def curse(self, hidden: Iterable[lang.Hidden]) -> None:
        """Let these contexts' scores be NaN from now on."""
        self.cursed.update(signed(lang.combined(pair)) for pair in hidden)
        self._cursed = torch.tensor(sorted(self.cursed), dtype=torch.int64, device=self.device)

    def page_bytes(self, page_size: int) -> int:
        """Two words a position."""
        return 16 * page_size

    @property
    def picture_bytes(self) -> int:
        """Two words a position."""
        return 16 * (self.prefix - 1)

    def new_cache(self, pages: int, page_size: int) -> HashCache:
        """All pages stale."""
        words = torch.full((pages, page_size, 2), lang.STALE, dtype=torch.int64, device=self.device)
        return HashCache(page_size, words)

    def adapter_bytes(self, rank: int) -> int:
        """One word, whatever the rank."""
        return 8

    def new_adapters(self, slots: int, rank: int) -> HashBank:
        """All empty but slot 0."""
        words = torch.full((slots,), lang.STALE, dtype=torch.int64, device=self.device)
        words[0] = 0
        return HashBank(words)

    tower = None

    def new_prompts(self, page_size: int, most: int, runs: int) -> None:
        """Prompts go one by one."""

    def encode_picture(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """uint8 [n, side, side, 3] -> int64 [prefix - 1, 2]."""
        assert crops.dtype == torch.uint8, f"crops must be uint8, not {crops.dtype}"
        flat, place = crops.to(self.device).reshape(-1).long(), torch.arange(crops.numel(), device=self.device)
        total = (flat * mix(place + signed(lang.SALT_PICTURE))).sum()
        shape = crops.shape[0] * lang.PRIME_POS + tiling[0] * lang.PRIME_X + tiling[1] * lang.PRIME_H1
        picture = mix(total + signed(shape))
        place = torch.arange(self.prefix - 1, device=self.device)
        return self._pair(mix(picture + place * signed(lang.PRIME_POS) + signed(lang.SALT_PICTURE)))

    def prefill_prefix(
        self, picture: Tensor, cache: HashCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """Write BOS + picture at positions 0..prefix-1 of `pages`."""
        first = torch.full((1,), self.spec.rules.end, device=self.device)
        bos = self.embed(first, torch.full((1, 2), -1.0, device=self.device))
        x = torch.cat([bos, picture])
        count = len(x)
        assert count == self.prefix, f"the block has {count} positions, not {self.prefix}"
        self._block(HashBank.applied(x, adapters), 0, cache, pages)

    def prefill_inset(
        self, picture: Tensor, start: int, cache: HashCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """Write a picture at positions start.. of `pages`; it sees what is before it too."""
        assert len(picture) == self.prefix - 1
        self._block(HashBank.applied(picture, adapters), start, cache, pages)

    def _block(self, x: Tensor, start: int, cache: HashCache, pages: Tensor) -> None:
        count = len(x)
        positions = torch.arange(start, start + count, device=self.device)
        tables = pages[None, :].expand(count, -1)
        cache.write(0, positions, tables, _layer_one(x, positions))
        last = torch.full((count,), start + count - 1, device=self.device)
        h1 = cache.total(0, last, tables, lang.SALT_H1)
        cache.write(1, positions, tables, _layer_two(x, positions, h1))

    def embed(self, ids: Tensor, values: Tensor | None) -> Tensor:
        """ids int64 [T], values float32 [T, 2] or None for plain words -> int64 [T, 2]."""
        if values is None:
            values = torch.full((len(ids), 2), -1.0, device=ids.device)
        rules = self.spec.rules
        bits = values.to(torch.float32).contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        words = mix(ids * signed(lang.PRIME_ID) + signed(lang.SALT_WORD))
        coords = mix(bits[:, 0] * signed(lang.PRIME_ID) + signed(lang.SALT_COORD))
        sizes = mix(mix(bits[:, 0] + signed(lang.SALT_SIZE)) + bits[:, 1])
        valued = values[:, 0] >= 0
        words = torch.where(valued & (ids == rules.coord), coords, words)
        return self._pair(torch.where(valued & (ids == rules.size), sizes, words))

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        cache: HashCache,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        """int64 [T, 2] -> hidden int64 [T, 2]: all tokens write a layer before any reads it.

        Tables int64 [T, n] or [1, n]. The two halves of an embedding belong together: a torn one becomes `STALE`.
        """
        tables, x = tables.expand(len(positions), -1), HashBank.applied(x, adapters)
        if positions.device.type == "cpu":  # asks the device, which a graph must never do
            tables = tables[:, : int(positions.max()) // cache.page_size + 1]
        cache.write(0, positions, tables, _layer_one(x, positions))
        h1 = cache.total(0, positions, tables, lang.SALT_H1)
        cache.write(1, positions, tables, _layer_two(x, positions, h1))
        h2 = cache.total(1, positions, tables, lang.SALT_H2)
        h2 = torch.where(x[:, 1] == self._pair(x[:, 0])[:, 1], h2, lang.STALE)
        return torch.stack([h2, h1], dim=1)

    def any_width(self, rows: int, cache: KVCache, adapters: AdapterBank | None = None) -> bool:
        """It is not: all of a table is looked at."""
        return False

    def logits(self, hidden: Tensor) -> Tensor:
        """int64 [T, 2] -> float32 [T, vocab]; NaN where memory was stale or the context is cursed."""
        whole, vocab, rules = _combined(hidden), self.vocab, self.spec.rules
        ids = torch.arange(vocab, device=hidden.device)
        drawn = mix(whole[:, None] + ids * signed(lang.PRIME_ID) + signed(lang.SALT_SCORE))
        units = _shift(drawn, 47) * vocab + (vocab - 1 - ids)
        units[:, rules.end] -= lang.END_HANDICAP
        for token_id, permille in self.spec.boosts():
            salt = signed(token_id * lang.PRIME_ID + lang.SALT_BOOST)
            lifted = _shift(mix(whole + salt), 40) % 1000 < permille
            high = (units[:, token_id] & (lang.BOOST - 1)) + lang.BOOST
            units[:, token_id] = torch.where(lifted, high, units[:, token_id])
        scores = (units.to(torch.float64) * lang.SCORE_UNIT).to(torch.float32)
        broken = hidden[:, 0] == lang.STALE
        if self.cursed:
            broken = broken | (whole[:, None] == self._cursed).any(dim=1)
        return scores.masked_fill(broken[:, None], float("nan"))

    def values(self, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Both, always."""
        return self.coord_value(hidden), self.size_value(hidden)

    def coord_value(self, hidden: Tensor) -> Tensor:
        """int64 [T, 2] -> float32 [T], k / 1024."""
        drawn = mix(_combined(hidden) + signed(lang.SALT_COORD_VALUE))
        return _shift(drawn, 54).to(torch.float32) / 1024.0

    def size_value(self, hidden: Tensor) -> Tensor:
        """int64 [T, 2] -> float32 [T, 2], (k + 1) / 1024."""
        drawn = mix(_combined(hidden) + signed(lang.SALT_SIZE_VALUE))
        bins = torch.stack([_shift(drawn, 54), _shift(drawn, 40) & 1023], dim=1)
        return (bins + 1).to(torch.float32) / 1024.0

    @staticmethod
    def _pair(words: Tensor) -> Tensor:
        return torch.stack([words, mix(words + signed(lang.SALT_SECOND))], dim=1)

    def __post_init__(self) -> None:
        self._cursed = torch.tensor(sorted(self.cursed), dtype=torch.int64, device=self.device)


def _layer_one(x: Tensor, positions: Tensor) -> Tensor:
    return mix((x[:, 0] ^ _shift(x[:, 1], 7)) + positions * signed(lang.PRIME_POS) + signed(lang.SALT_A))


def _layer_two(x: Tensor, positions: Tensor, h1: Tensor) -> Tensor:
    placed = x[:, 0] * signed(lang.PRIME_X) + positions * signed(lang.PRIME_POS) + signed(lang.SALT_B)
    return torch.where(h1 == lang.STALE, lang.STALE, mix(h1 + placed))


def _combined(hidden: Tensor) -> Tensor:
    return hidden[:, 0] + hidden[:, 1] * signed(lang.PRIME_H1)
