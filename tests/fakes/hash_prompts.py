"""The hash language with prompts side by side: what a pack of tokens leaves and says, from its runs alone.

What flows in and out is `gapless.models.base.Prompts`. As with `HashModel`, memory that was poisoned or is another's
turns scores into NaN or into other answers, and nothing here asks a GPU for a number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from tests.fakes import hash_language as lang
from tests.fakes.hash_model import HashCache, HashModel, _layer_one, _layer_two, mix, signed
from torch import Tensor

from gapless.kernels.prompts import Runs

TILE = 4


@dataclass
class HashPrompts:
    """`tokens` counts those of all passes that were not replayed."""

    x: Tensor
    bos: int
    tile: int = TILE
    passes: list[int] = field(default_factory=list)

    def forward(self, tokens: int, runs: Runs, cache: HashCache) -> Tensor:
        self.passes.append(tokens)
        x, reach = self.x[:tokens], _Reach(runs, cache, tokens)
        reach.write(0, _layer_one(x, reach.positions))
        h1 = reach.total(0, lang.SALT_H1)
        reach.write(1, _layer_two(x, reach.positions, h1))
        h2 = reach.total(1, lang.SALT_H2)
        h2 = torch.where(x[:, 1] == HashModel._pair(x[:, 0])[:, 1], h2, lang.STALE)
        reach.tails()
        return torch.stack([h2, h1], dim=1)[runs.last]


class _Reach:
    """Where each token writes and what it sees."""

    def __init__(self, runs: Runs, cache: HashCache, tokens: int) -> None:
        mine = runs.runs[runs.of.clamp(min=0)].long()
        live, place = runs.of >= 0, torch.arange(tokens, device=runs.of.device)
        self.positions = torch.where(live, mine[:, 2] + place - mine[:, 0], 0)
        self._cache, self._runs, self._size = cache, runs, cache.page_size
        self._base, self._source = torch.where(live, mine[:, 3], 0), torch.where(live, mine[:, 4], 0)
        self._tables = torch.where(live[:, None], runs.tables[mine[:, 5]], 0)
        self._sees = torch.where(live, runs.sees, 0).long()

    def _lead(self, at: Tensor) -> Tensor:
        base = self._base[:, None]
        return (at >= base // self._size * self._size) & (at < base)

    def write(self, layer: int, words: Tensor) -> None:
        own = self._tables.gather(1, (self.positions // self._size)[:, None])[:, 0]
        own = torch.where(self._lead(self.positions[:, None])[:, 0], self._source, own)
        self._cache.words[own, self.positions % self._size, layer] = words

    def total(self, layer: int, salt: int) -> Tensor:
        held = self._cache.words[self._tables, :, layer]
        lead = self._cache.words[self._source, :, layer][:, None].expand_as(held)
        places = torch.arange(held.shape[1] * self._size, device=held.device)[None, :]
        held = torch.where(self._lead(places), lead.flatten(1), held.flatten(1))
        seen = places < self._sees[:, None]
        hidden = mix((torch.where(seen, held, 0) * (2 * places + 1)).sum(dim=1) + signed(salt))
        return torch.where((seen & (held == lang.STALE)).any(dim=1), lang.STALE, hidden)

    def tails(self) -> None:
        _, count, _, base, source, row = self._runs.runs.long().unbind(1)
        words, offset = self._cache.words, torch.arange(self._size, device=base.device)
        base = torch.where(count > 0, base, 0)
        target = self._runs.tables[row, base // self._size]
        target = torch.where(base % self._size > 0, target, 0)
        copied = torch.where((offset < (base % self._size)[:, None])[..., None], words[source], words[target])
        words[target] = copied


class PackingHashModel(HashModel):
    """A hash model that takes prompts side by side; `made` holds what it was asked for."""

    made: HashPrompts | None = None

    def new_prompts(self, page_size: int, most: int, runs: int) -> HashPrompts:
        x = torch.zeros((most, 2), dtype=torch.int64, device=self.device)
        self.made = HashPrompts(x, self.spec.rules.end)
        return self.made
