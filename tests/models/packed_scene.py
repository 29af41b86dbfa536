"""Two pictures with text and a text that shares one of them: side by side, and one after the other.

What flows in: a model, and memory for passes of it. What flows out: a `Scene`, everything a pass reads, and what one
after the other leaves and says. Pages of 16; a block's last one is copied for each of its sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.kernels.kept import as_stored
from gapless.kernels.prompts import Runs
from gapless.models.moondream.cache import PagedKV
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.prompts import PackedText

PAGE, PAGES, RUNS = 16, 40, 5


@dataclass
class Scene:
    """`texts` behind `blocks`, pages of which the first two are computed; `tables`: row 0 is nobody's."""

    model: Moondream
    pictures: Tensor
    texts: list[Tensor]
    blocks: list[list[int]]
    tables: Tensor
    tokens: int
    x: Tensor
    runs: Runs
    cache: PagedKV
    right: PagedKV

    @classmethod
    def draw(cls, model: Moondream, prompts: PackedText, seed: int, spare: int) -> Scene:
        """The numbers of a pass are put into `prompts`; `spare` rows of it are NaN."""
        g, device = torch.Generator().manual_seed(seed), model.device
        pictures = torch.randn(2, model.prefix - 1, model.config.text.dim, generator=g).to(device, model.dtype)
        lengths = torch.tensor([7, 3, 9])[torch.randperm(3, generator=g)]
        texts = [torch.randint(5, 100, (int(n),), generator=g).to(device) for n in lengths]
        order = (torch.randperm(PAGES - 1, generator=g) + 1).tolist()
        blocks = [order[:2], order[2:4], order[:2]]
        rows = [[blocks[i][0], *order[4 + 2 * i : 6 + 2 * i]] for i in range(3)]
        tables = torch.tensor([[0, 0, 0], *rows], device=device)
        caches = [model.new_cache(PAGES, PAGE) for _ in range(2)]
        for cache in caches:
            cache.poison(tuple(range(1, PAGES)))
        x, runs = _side_by_side(model, prompts, pictures, texts, blocks, tables, spare)
        prompts.x[: len(x)] = x
        return cls(model, pictures, texts, blocks, tables, len(x), x, runs, *caches)

    def take(self, other: Scene) -> None:
        """Another scene's numbers, in this one's memory."""
        for name in ("runs", "of", "sees", "tiles", "last", "tables"):
            getattr(self.runs, name).copy_(getattr(other.runs, name))

    def one_after_the_other(self) -> Tensor:
        """Hidden states of the last tokens [3, dim]; the cache `right` is filled."""
        model, prefix, said = self.model, self.model.prefix, []
        for i, (text, block) in enumerate(zip(self.texts, self.blocks, strict=True)):
            if i < 2:
                model.prefill_prefix(self.pictures[i], self.right, torch.tensor(block, device=model.device))
            self.right.copy_page(block[1], int(self.tables[i + 1, prefix // PAGE]))
            at = torch.arange(prefix, prefix + len(text), device=model.device)
            said.append(model.forward(model.embed(text, None), at, self.tables[i + 1, None], self.right)[-1])
        return torch.stack(said)

    def check(self, hidden: Tensor, right: Tensor, error: float) -> None:
        """What was said and is kept is `right` but for a relative error."""
        assert _off(hidden[:3], right) < error
        for mine, other in ((self.cache.keys, self.right.keys), (self.cache.values, self.right.values)):
            for i, text in enumerate(self.texts):
                at = torch.arange(self.model.prefix + len(text), device=mine.device)
                pages = self.tables[i + 1, at // PAGE]
                there, wanted = (as_stored(of)[:, pages, :, at % PAGE].view(of.dtype) for of in (mine, other))
                assert _off(there.double(), wanted.double()) < error


def _side_by_side(
    model: Moondream,
    prompts: PackedText,
    pictures: Tensor,
    texts: list[Tensor],
    blocks: list[list[int]],
    tables: Tensor,
    spare: int,
) -> tuple[Tensor, Runs]:
    """Embeddings of all tokens and whose they are."""
    prefix, first, x = model.prefix, 0, []
    runs, of, sees = [], [], []
    for i, text in enumerate(texts):
        block = prefix if i < 2 else 0
        if block:
            x += [model.text.wte[:1], pictures[i]]
        x.append(model.embed(text, None))
        count = block + len(text)
        runs.append([first, count, prefix - block, prefix, blocks[i][1], i + 1])
        of += [i] * count
        sees += [prefix] * block + list(range(prefix + 1, prefix + len(text) + 1))
        first += count
    tile = prompts.tile
    tiles = [[i, at] for i, run in enumerate(runs) for at in range(0, run[1], tile)]
    tiles += [[-1, 0]] * ((first + spare) // tile + RUNS - len(tiles))

    def int32(numbers) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=model.device)

    last = torch.tensor([run[0] + run[1] - 1 for run in runs] + [0] * (RUNS - 3), device=model.device)
    told = Runs(
        int32(runs + [[0] * 6] * (RUNS - 3)), int32(of + [-1] * spare), int32(sees + [0] * spare), int32(tiles), last,
        tables,
    )  # fmt: skip
    nobody = torch.full((spare, x[0].shape[1]), torch.nan, dtype=model.dtype, device=model.device)
    return torch.cat([*x, nobody]), told


def _off(found: Tensor, right: Tensor) -> float:
    assert torch.isfinite(found).all() and torch.isfinite(right).all()
    return float((found.double() - right.double()).norm() / right.double().norm())
