"""Runs of random lengths over a paged cache, and what prompts' kernels must make of them, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from tests.kernels.drawn_kept import draw_scales, rounded, told
from torch import Tensor

from gapless.kernels.graphed import Graphed
from gapless.kernels.prompts import Runs, Turns


@dataclass
class Piece:
    """A run: `count` tokens from `position` on. `blocks` (begin, end) in positions see themselves to their end. `tail`:
    what comes before `position` in its page, or before the end of the first block, lies in a page of its own."""

    count: int
    position: int = 0
    blocks: tuple[tuple[int, int], ...] = ()
    tail: int = 0


@dataclass
class PromptScene:
    """Everything the kernels read; `pieces` says what it stands for."""

    pieces: list[Piece]
    runs: Runs
    turns: Turns
    up: Tensor
    keys: Tensor
    values: Tensor
    heads: int
    inner: Tensor
    firsts: list[int] = field(default_factory=list)
    scales: Tensor | None = None
    """[2, H] of a cache that is kept in FP8: what keys and values are, stands in it all the same."""

    @property
    def dim(self) -> int:
        return self.keys.shape[1] * self.keys.shape[3]


def draw_prompts(
    pieces: list[Piece],
    seed: int,
    *,
    dim: int = 128,
    heads: int = 4,
    fed: int = 256,
    page: int = 16,
    tile: int = 64,
    spare: int = 0,
    runs: int | None = None,
    tau: bool = False,
    longest: int = 1024,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    fp8: bool = False,
) -> PromptScene:
    """`spare`: tokens and tiles that nobody is, behind the others; `runs`: how many there are room for. NaN wherever
    nothing was written, and in all that the kernels are to write."""
    g = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, device=device).to(dtype)

    room, wide = runs or len(pieces), dim // heads
    tokens = sum(piece.count for piece in pieces) + spare
    columns = -(-longest // page)
    pages = len(pieces) * columns + len(pieces) + 1
    order = torch.randperm(pages - 1, generator=g, device=device) + 1
    tables = torch.zeros(room + 1, columns, dtype=torch.int64, device=device)
    described, of, sees, tiles = torch.zeros(room, 6, dtype=torch.int64), [], [], []
    described[:, 0] = -7  # of a run that is none nothing counts but that it has no tokens
    last, firsts, first = torch.zeros(room, dtype=torch.int64), [], 0
    keys = torch.full((pages + 1, heads, page, wide), torch.nan, dtype=dtype, device=device)
    values = keys.clone()
    for i, piece in enumerate(pieces):
        tables[i + 1] = order[i * columns : (i + 1) * columns]
        source = int(order[len(pieces) * columns + i])
        described[i] = torch.tensor([first, piece.count, piece.position, piece.tail, source, i + 1])
        before = torch.arange(piece.position, device=device)
        held = tables[i + 1, before // page]
        held = torch.where((before < piece.tail) & (before >= piece.tail // page * page), source, held)
        keys[held, :, before % page] = normal(len(before), heads, wide)
        values[held, :, before % page] = normal(len(before), heads, wide)
        for at in range(piece.position, piece.position + piece.count):
            sees.append(next((end for begin, end in piece.blocks if begin <= at < end), at + 1))
        of += [i] * piece.count
        tiles += [(i, offset) for offset in range(0, piece.count, tile)]
        firsts.append(first)
        first += piece.count
        last[i] = first - 1
    tiles = torch.tensor(tiles + [(-1, 0)] * (spare > 0))

    def int32(numbers) -> Tensor:
        return torch.as_tensor(numbers).to(device, torch.int32).contiguous()

    cos, sin = Graphed().rope_tables(longest, wide // 2, 10_000.0, torch.device(device))
    said = normal(tokens, 2 * heads) if tau else None
    levels = normal(longest, heads).abs() if tau else None
    scales = draw_scales(1, heads, g)[0] if fp8 else None
    by = (None, None) if scales is None else scales.unbind()
    up = normal(tokens, 3 * dim + fed)
    up[tokens - spare :] = torch.nan
    return PromptScene(
        pieces=pieces,
        runs=Runs(
            int32(described), int32(of + [-1] * spare), int32(sees + [0] * spare), int32(tiles), last.to(device), tables
        ),
        turns=Turns(cos, sin, said, levels),
        up=up,
        keys=rounded(keys, by[0]),
        values=rounded(values, by[1]),
        heads=heads,
        inner=torch.full((tokens, dim + fed), torch.nan, dtype=dtype, device=device),
        firsts=firsts,
        scales=scales,
    )


def feed_plainly(scene: PromptScene, last: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and inner as they must be afterwards, in float64, NaN where nothing is to be written. `last`: only
    the last token of each run looks."""
    dim, page = scene.dim, scene.keys.shape[2]
    keys, values = scene.keys.double(), scene.values.double()
    inner = torch.full(scene.inner.shape, torch.nan, dtype=torch.float64, device=keys.device)
    inner[:, dim:] = torch.nn.functional.gelu(scene.up[:, 3 * dim :].double(), approximate="tanh")
    turned, by = {}, (None, None) if scene.scales is None else scene.scales.unbind()
    for i, piece in enumerate(scene.pieces):
        q, k, v = _parts(scene, i)
        pages = _pages(scene, i, torch.arange(piece.position + piece.count, device=keys.device))
        at = torch.arange(piece.position, piece.position + piece.count, device=keys.device)
        keys[pages[at], :, at % page] = told(k.to(scene.up.dtype).double(), by[0])
        values[pages[at], :, at % page] = told(v.to(scene.up.dtype).double(), by[1])
        turned[i] = q, pages
    for i, piece in enumerate(scene.pieces):
        q, pages = turned[i]
        first, at = scene.firsts[i], torch.arange(piece.position + piece.count, device=keys.device)
        k, v = keys[pages, :, at % page], values[pages, :, at % page]
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        hidden = at >= scene.runs.sees[first : first + piece.count, None]
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        seen = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        rows = slice(first + piece.count - 1 if last else first, first + piece.count)
        inner[rows, :dim] = seen[-1:] if last else seen
    return keys, values, inner


def copied_tails(scene: PromptScene) -> Tensor:
    """The keys with each run's own copy of what lay in a page of its own."""
    keys, page = scene.keys.clone(), scene.keys.shape[2]
    for i, piece in enumerate(scene.pieces):
        source, rest = int(scene.runs.runs[i, 4]), piece.tail % page
        keys[scene.runs.tables[i + 1, piece.tail // page], :, :rest] = keys[source, :, :rest]
    return keys


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    """How far, relatively; infinite if NaN, which is where nothing was to be written, is elsewhere."""
    if not torch.equal(found.isnan(), right.isnan()):
        return torch.inf
    found, right = found.double().nan_to_num(), right.double().nan_to_num()
    return float((found - right).norm() / right.norm())


def _pages(scene: PromptScene, i: int, at: Tensor) -> Tensor:
    """Of positions of a run's sequence."""
    page, tail = scene.keys.shape[2], scene.pieces[i].tail
    held = scene.runs.tables[i + 1, at // page]
    return torch.where((at < tail) & (at >= tail // page * page), int(scene.runs.runs[i, 4]), held)


def _parts(scene: PromptScene, i: int) -> tuple[Tensor, Tensor, Tensor]:
    """A run's queries and keys, turned, and values, [count, H, D]."""
    piece, first, turns = scene.pieces[i], scene.firsts[i], scene.turns
    rows = slice(first, first + piece.count)
    at = torch.arange(piece.position, piece.position + piece.count, device=scene.up.device)
    q, k, v = scene.up[rows, : 3 * scene.dim].double().view(piece.count, 3, scene.heads, -1).unbind(1)
    if turns.said is not None and turns.levels is not None:
        of_q, of_v = turns.said[rows].double().tanh().view(piece.count, 2, -1).unbind(1)
        q = q * (of_q + turns.levels[at].double())[..., None]
        v = v * (of_v + turns.levels[at].double())[..., None]
    cos, sin = turns.cos[at].double()[:, None], turns.sin[at].double()[:, None]
    return _turned(q, cos, sin), _turned(k, cos, sin), v


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width = cos.shape[-1]
    turning, rest = x[..., :width], x[..., width:]
    swapped = torch.cat((turning[..., width // 2 :], turning[..., : width // 2]), dim=-1)
    return torch.cat((turning * cos + swapped * sin, rest), dim=-1)
