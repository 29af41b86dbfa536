"""What a layer of experts takes with one choice of tiles or another, on the GPU, and whether it is right.

In: sizes of experts, the kind of their weights, choices. Out: see `Trial`; its batch sizes are the rows of a tile, and
as many tokens are routed at random as make those the usual choice. Layers take turns within a graph, so that no cache
holds them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from statistics import median

import torch
from torch import Tensor

from gapless.bench.tune_trial import AGAIN, ERROR, error_of, replayed
from gapless.kernels import grouped, reference
from gapless.kernels.stacks import FP8, Stack
from gapless.kernels.triton import experts
from gapless.kernels.triton.tiles import Tile, Tiles, tiles_of
from gapless.models.moondream.config import MoeConfig

PARTS = ("up", "down")
FULL = 1.5
"""Rows of a tile for each pair that an expert has on average."""
LAYERS = 2
_log = logging.getLogger("gapless.tune")


class ExpertsTrial:
    """See `Trial`. Products are compiled as they are met."""

    def __init__(self, dim: int, moe: MoeConfig, kind: str, dtype: torch.dtype, device: torch.device) -> None:
        self._moe, self._dim, self._dtype, self._device = moe, dim, dtype, device
        self._g = torch.Generator(device).manual_seed(0)
        inner, count = moe.expert_inner_dim, moe.num_experts
        shapes = ((count, 2 * inner, dim), (count, dim, inner))
        self._layers = [(self._stack(kind, shapes[0]), self._stack(kind, shapes[1])) for _ in range(LAYERS)]
        self._routed: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def prepare(self, rows: int, choices: Sequence[Tiles]) -> None:
        """See `Trial`."""

    @torch.inference_mode()
    def right(self, rows: int, choice: Tiles) -> bool:
        """See `Trial`."""
        x, weights, chosen, right = self._given(rows)
        first = experts.experts(x, weights, chosen, *self._layers[0], choice)
        again = all(
            torch.equal(experts.experts(x, weights, chosen, *self._layers[0], choice), first) for _ in range(AGAIN)
        )
        good = error_of(first, right) <= ERROR
        if not (good and again):
            how = "differently each time" if good else "wrongly"
            _log.warning("%s computes experts %s, and is passed by", choice, how)
        return good and again

    @torch.inference_mode()
    def times(self, rows: int, choices: Sequence[Tiles], turns: int) -> list[float | None]:
        """See `Trial`; of a layer."""
        graphs = [self._captured(rows, choice) for choice in choices]
        taken: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in graphs]
        for _ in range(turns):
            for graph, own in zip(graphs, taken, strict=True):
                if graph is not None:
                    own.append(replayed(graph))
        torch.cuda.synchronize(self._device)
        return [1e3 * median(a.elapsed_time(b) for a, b in own) / LAYERS if own else None for own in taken]

    def _captured(self, rows: int, choice: Tiles) -> torch.cuda.CUDAGraph | None:
        x, weights, chosen, _ = self._given(rows)
        graph = torch.cuda.CUDAGraph()
        try:
            experts.experts(x, weights, chosen, *self._layers[0], choice)
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph):
                for up, down in self._layers:
                    experts.experts(x, weights, chosen, up, down, choice)
            graph.replay()
        except Exception as error:  # whatever a compiler says of tiles that nobody tried before
            _log.info("%s cannot be used: %s", choice, str(error).strip()[:200])
            return None
        return graph

    def _stack(self, kind: str, shape: tuple[int, ...]) -> Stack:
        values = torch.empty(shape, dtype=self._dtype, device=self._device)
        values.normal_(0.0, shape[-1] ** -0.5, generator=self._g)
        if kind != "float8":
            return Stack(values)
        scales = values.abs().amax(-1).float() / torch.finfo(FP8).max
        return Stack((values / scales[..., None]).to(FP8), scales)

    def _given(self, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens, weights, choices, and what is right, in float32 of what the stacks hold."""
        if rows not in self._routed:
            moe = self._moe
            tokens = max(1, int(rows / FULL * moe.num_experts / moe.experts_per_token))
            x = torch.empty(tokens, self._dim, dtype=self._dtype, device=self._device).normal_(generator=self._g)
            logits = torch.empty(tokens, moe.num_experts, device=self._device).normal_(generator=self._g)
            weights, chosen = reference.route(logits, moe.experts_per_token)
            wide = [
                Stack(torch.stack([stack.wide(e, torch.float32) for e in range(stack.count)]).float())
                for stack in self._layers[0]
            ]
            right = grouped.for_all(x.float(), weights.float(), chosen, *wide)
            self._routed[rows] = x, weights.to(self._dtype), chosen, right
        return self._routed[rows]


def menu(part: str, now: Tiles, rows: int, itemsize: int, shared: int) -> list[Tiles]:
    """Tiles that differ from `now` in one of `PARTS` and fit as they are; `now` is not among them."""
    found: dict[Tiles, None] = {}
    for tile in _tiles(rows):
        other = replace(now, up=tile) if part == "up" else replace(now, down=tile)
        if tiles_of(rows, itemsize, shared, {itemsize: {rows: other}}) == other != now:
            found[other] = None
    return list(found)


def _tiles(rows: int) -> Iterator[Tile]:
    for lines, deep, warps, stages in product((32, 64, 128, 256), (64, 128, 256), (4, 8), (2, 3, 4, 5)):
        if lines * deep <= 2**15 and rows * lines <= 2**12 * warps:
            yield Tile(rows, lines, deep, warps, stages)
