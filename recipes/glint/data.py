"""Batches: worker processes make scenes and packed streams as numbers, the GPU renders the crops.

A batch has fixed shapes: the same count of pictures per tiling, the same packed length, and index lists of fixed size
for the positions that carry a loss (padded with weight 0, the rare overflow is dropped).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from recipes.glint.compression import compress
from recipes.glint.paint import MOST, paint_ground, paint_light, paint_thing
from recipes.glint.prompts import fill
from recipes.glint.scenes import Scene, make_scene, pack
from recipes.glint.streams import Vocabulary, blank, pack_streams
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

SIDE, WINDOW, MARGIN, GRID = 224, 168, 56, 16
TILINGS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 1), (1, 4), (4, 1))
SHARES = (75 / 192, 30 / 192, 30 / 192, 33 / 192, 6 / 192, 6 / 192, 6 / 192, 6 / 192)
ASPECTS = ((0.6, 1.7), (1.0, 2.6), (1 / 2.6, 1.0), (0.6, 1.7), (1.9, 4.0), (1 / 4.0, 1 / 1.9), (3.5, 5.5),
           (1 / 5.5, 1 / 3.5))  # fmt: skip
SMALL = (96, 128, 176)
PER_PICTURE = {"token": 172, "coord": 30, "size": 6.6, "aim": 27}
Groups = tuple[tuple[int, int, int], ...]


def groups(pictures: int) -> Groups:
    """(pictures, rows, columns) for every tiling; the shares of a batch."""
    counts = [round(pictures * share) for share in SHARES]
    counts[0] += pictures - sum(counts)
    return tuple((n, rows, cols) for n, (rows, cols) in zip(counts, TILINGS, strict=True) if n)


def small_pictures(tilings: Groups) -> list[tuple[int, int, int]]:
    """(first, end, side) of the pictures that are small: three in ten of those with one tile, which come first."""
    share = tilings[0][0] // 10 if tilings[0][1:] == (1, 1) else 0
    return [(i * share, (i + 1) * share, side) for i, side in enumerate(SMALL) if share]


def random_aspect(rng: random.Random, rows: int, cols: int) -> float:
    """An aspect ratio that such a tiling sees in practice; small pictures have one tile whatever their ratio."""
    low, high = ASPECTS[TILINGS.index((rows, cols))]
    if rows * cols == 1 and rng.random() < 0.3:
        low, high = 1 / 3, 3.0
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def scene_arrays(scenes: Sequence[Scene]) -> dict[str, np.ndarray]:
    """Packed things, ground and printed ink, and for dense targets looks ``[B, 8, 3]`` and boxes ``[B, 8, 4]``.

    Looks and boxes go from left to right, the renderer's things in painting order.
    """
    packed = [pack(s) for s in scenes]
    looks, boxes = np.zeros((len(scenes), MOST, 3), np.int64), np.zeros((len(scenes), MOST, 4), np.float32)
    for b, s in enumerate(scenes):
        for i, t in enumerate(s.things):
            looks[b, i] = (t.size, t.colour, t.kind)
            boxes[b, i] = s.box(t)
    return {
        "things": np.stack([t for t, _, _ in packed]), "ground": np.stack([g for _, g, _ in packed]),
        "letters": np.stack([ink for _, _, ink in packed]),
        "aspect": np.asarray([s.aspect for s in scenes], np.float32), "looks": looks, "boxes": boxes,
    }  # fmt: skip


def patch_of(x: float, y: float) -> int:
    """Index of the patch that holds a point."""
    return min(GRID - 1, int(y * GRID)) * GRID + min(GRID - 1, int(x * GRID))


def aims(scene: Scene) -> list[int]:
    """The patches of all things and then of the printed text: what an answer's words are about."""
    text = scene.text_box()
    return [patch_of(t.x, t.y) for t in scene.things] + ([patch_of(*text[:2])] if text else [])


def loss_positions(packed: dict[str, np.ndarray], pictures: int) -> dict[str, np.ndarray]:
    """Flat indices of positions with a loss, ``at_<kind> [capacity]``, and 0/1 weights ``on_<kind>``."""
    live = {
        "token": packed["target"] >= 0, "coord": packed["coord_target"] >= 0,
        "size": packed["size_target"][..., 0] >= 0, "aim": packed["aim"] >= 0,
    }  # fmt: skip
    out: dict[str, np.ndarray] = {}
    for name, where in live.items():
        capacity = int(PER_PICTURE[name] * pictures)
        found = np.flatnonzero(where)[:capacity]
        at, on = np.zeros(capacity, np.int64), np.zeros(capacity, np.float32)
        at[: len(found)], on[: len(found)] = found, 1
        out["at_" + name], out["on_" + name] = at, on
    return out


@dataclass
class Batches(IterableDataset[dict[str, Tensor]]):
    """An endless stream of batches; every worker has its own seeds."""

    seed: int
    pictures: int
    length: int
    jitter: float = 3.0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        info = get_worker_info()
        worker, vocabulary, count = (info.id if info else 0), Vocabulary(), 0
        torch.set_num_threads(1)
        while True:
            rng = random.Random(((self.seed + 1) << 48) + (worker << 32) + count)
            yield {k: torch.from_numpy(v) for k, v in self.make(rng, vocabulary).items()}
            count += 1

    def scenes(self, rng: random.Random) -> list[Scene]:
        """Scenes in the order of their tilings; where they will be small, their letters are larger."""
        tilings = groups(self.pictures)
        aspects = [random_aspect(rng, rows, cols) for n, rows, cols in tilings for _ in range(n)]
        sides = [float(SIDE)] * self.pictures
        for first, end, side in small_pictures(tilings):
            sides[first:end] = [side / math.sqrt(max(a, 1 / a)) for a in aspects[first:end]]
        return [make_scene(rng, aspect, side) for aspect, side in zip(aspects, sides, strict=True)]

    def make(self, rng: random.Random, vocabulary: Vocabulary) -> dict[str, np.ndarray]:
        """One batch as arrays."""
        packed = blank(self.pictures, self.length)
        scenes = self.scenes(rng)
        for row, scene in enumerate(scenes):
            streams = fill(scene, rng, vocabulary, self.length, self.jitter)
            pack_streams(packed, row, streams, aims(scene))
        return {**packed, **scene_arrays(scenes), **loss_positions(packed, self.pictures)}


def crop_frames(tilings: Groups) -> np.ndarray:
    """Where every crop lies, ``[N, 5]``: picture index, x0, dx, y0, dy (normalised; dx per crop pixel).

    The order is the one :meth:`Glint.features` expects: global crops, then local crops of pictures with several tiles.
    """
    total = sum(n for n, _, _ in tilings)
    rows_out = [(b, 0.0, 1 / SIDE, 0.0, 1 / SIDE) for b in range(total)]
    start = 0
    for n, rows, cols in tilings:
        width, height = WINDOW * cols + MARGIN, WINDOW * rows + MARGIN
        if rows * cols > 1:
            rows_out += [
                (start + b, WINDOW * j / width, 1 / width, WINDOW * i / height, 1 / height)
                for b in range(n) for i in range(rows) for j in range(cols)
            ]  # fmt: skip
        start += n
    return np.asarray(rows_out, np.float64)


def _coordinates(frame: Tensor, root: Tensor, soft: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and the width of the soft edge in units, for crops with frames ``[N, 4]``."""
    step = torch.arange(SIDE, device=frame.device, dtype=torch.float32) + 0.5
    x = ((frame[:, 0:1] + step * frame[:, 1:2]) * root[:, None])[:, None, :]
    y = ((frame[:, 2:3] + step * frame[:, 3:4]) / root[:, None])[:, :, None]
    return x, y, (soft * (frame[:, 1] * frame[:, 3]).sqrt())[:, None, None]


def _develop(x: Tensor, y: Tensor, ground: Tensor, gain: Tensor, bias: Tensor, planes: list[Tensor]) -> Tensor:
    """Crops ``[N, 3, 224, 224]`` in -1..1, in steps of a byte, from painted planes."""
    lit = paint_light(torch, x, y, ground, planes)
    lit = [(0.5 + (p - 0.5) * gain[:, None, None] + bias[:, None, None]).clamp(0, 1) for p in lit]
    return torch.stack([(p * 255).round() / 127.5 - 1 for p in lit], 1)


def blow_up(crops: Tensor, side: int) -> Tensor:
    """Crops as a picture of ``side`` pixels gives them after its enlargement."""
    few = F.interpolate(crops, (side, side), mode="bilinear", antialias=True)
    return F.interpolate(few, crops.shape[-2:], mode="bicubic").clamp(-1, 1)


class Renderer:
    """Renders the crops of a batch on a device; edges are softened at random, as resizing would.

    ``worn`` is the share of crops that are compressed as a JPEG file would be; when it is above 0, brightness and
    contrast of every picture vary a little too, and :func:`small_pictures` are blown up from few pixels. For training:
    at 0 the crops are those of the clean picture.
    """

    def __init__(self, tilings: Groups, device: torch.device, compiled: bool = False, worn: float = 0.0) -> None:
        frames = torch.from_numpy(crop_frames(tilings)).to(device)
        self.picture, self.frame, self.worn = frames[:, 0].long(), frames[:, 1:].float(), worn
        self.small = small_pictures(tilings) if worn > 0 else []
        steps: tuple[Callable[..., Any], ...] = (paint_ground, paint_thing, _develop, compress)
        if compiled:  # step by step: one function for all shapes takes a minute longer to compile
            steps = tuple(torch.compile(step, dynamic=False) for step in steps)
        self.ground, self.thing, self.develop, self.compress = steps

    @torch.no_grad()
    def __call__(self, batch: dict[str, Tensor], softness: tuple[float, float] = (0.8, 2.2)) -> Tensor:
        """Crops ``[N, 3, 224, 224]``."""
        root, p = batch["aspect"].sqrt(), self.picture
        light = self.worn > 0
        soft = torch.empty_like(root).uniform_(*softness)
        gain = 1 + light * torch.empty_like(root).uniform_(-0.08, 0.08)
        bias = light * torch.empty_like(root).uniform_(-0.03, 0.03)
        noise = torch.randn(len(p), 3, SIDE, SIDE, device=root.device)
        x, y, pixel = _coordinates(self.frame, root[p], soft[p])
        things, ground = batch["things"][p].unbind(1), batch["ground"][p]
        planes = self.ground(torch, x, y, pixel, ground, noise, batch["letters"], p[:, None, None])
        for thing in things:
            planes = self.thing(torch, x, y, pixel, thing.contiguous(), planes)
        crops: Tensor = self.develop(x, y, ground, gain[p], bias[p], planes)
        for first, end, side in self.small:
            crops[first:end] = blow_up(crops[first:end], side)
        some = round(self.worn * len(p))
        if some:
            chosen = torch.randperm(len(p), device=root.device)[:some]
            step = torch.empty(some, device=root.device).uniform_(0.01, 0.06)
            crops[chosen] = self.compress(crops[chosen], step)
        return crops
