"""Resizing and cutting on a device gives Pillow's bytes: for any size, up and down, whatever is in the picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from gapless.images.crops import CropSpec, crossable, cut, tiling
from gapless.kernels.pixels import TURNS, cut_crops, height_first, resize, taps

SPEC = CropSpec(crop_size=56, patch=14, overlap_margin=1, max_crops=4)


def drawn(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Noise, hard edges that ring, or a flat colour."""
    kind = rng.integers(0, 4)
    if kind == 0:
        return (rng.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    if kind == 1:
        return np.full((height, width, 3), rng.integers(0, 256, 3), dtype=np.uint8)
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def by_pillow(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))


@pytest.mark.parametrize("seed", range(4))
def test_any_size_to_any_size(seed: int) -> None:
    rng, orders = np.random.default_rng(seed), set()
    for _ in range(60):
        w, h, width, height = (int(2 ** rng.uniform(0, 7)) for _ in range(4))
        pixels = drawn(rng, w, h)
        orders.add(height_first(h, w, height, width))
        found = resize(torch.from_numpy(pixels), width, height).numpy()
        assert np.array_equal(found, by_pillow(pixels, width, height)), (w, h, width, height)
    assert orders == {False, TURNS}


@pytest.mark.parametrize(
    ("size", "out"),
    [((1, 900), (64, 3)), ((900, 1), (3, 64)), ((640, 480), (378, 378)), ((2, 2), (300, 2)), ((77, 50), (77, 50))],
)
def test_extreme_shapes_and_none_at_all(size: tuple[int, int], out: tuple[int, int]) -> None:
    pixels = drawn(np.random.default_rng(9), *size)
    assert np.array_equal(resize(torch.from_numpy(pixels), *out).numpy(), by_pillow(pixels, *out))


def test_the_order_of_the_passes_shows() -> None:
    """So the tests of any size can tell which one is taken."""
    tensor = torch.from_numpy(drawn(np.random.default_rng(2), 60, 60))
    assert not height_first(60, 60, 40, 50) and not height_first(60, 60, 50, 40)
    turned = resize(tensor.transpose(0, 1), 40, 50).transpose(0, 1)
    assert not torch.equal(resize(tensor, 50, 40), turned)
    assert (
        height_first(300, 40, 56, 30) == TURNS
        and not height_first(40, 300, 56, 30)
        and not height_first(60, 60, 40, 50)
    )


@pytest.mark.parametrize("seed", range(3))
def test_crops_are_those_that_are_cut_here(seed: int) -> None:
    rng = np.random.default_rng(40 + seed)
    sizes = [(57, 57), (300, 60), (60, 310)] + [tuple(int(2 ** rng.uniform(2, 8)) for _ in range(2)) for _ in range(9)]
    met = set()
    for width, height in sizes:
        pixels = drawn(rng, width, height)
        right, tiles = cut(pixels, SPEC)
        assert tiles == tiling(width, height, SPEC)
        if not crossable(width, height, SPEC):
            continue
        met.add(tiles)
        out = torch.full(right.shape, 7, dtype=torch.uint8)
        cut_crops(torch.from_numpy(pixels), tiles, SPEC.window, out)
        assert np.array_equal(out.numpy(), right), (width, height)
    assert len(met) > 2


def test_what_may_cross_is_bounded() -> None:
    spec = CropSpec()
    assert all(crossable(*size, spec) for size in ((1, 1), (640, 480), (1920, 1080), (3000, 2400), (2400, 3000)))
    assert not crossable(4000, 3000, spec), "too many bytes"
    assert not crossable(7000, 100, spec) and not crossable(100, 7000, spec), "made too much smaller"
    for width, height in ((640, 480), (6048, 300), (300, 6048)):
        for out in (378, 1176):
            assert max(taps(width, out), taps(height, out)) <= 128 or not crossable(width, height, spec)


def test_an_older_pillow_begins_with_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.from_numpy(drawn(np.random.default_rng(5), 40, 90))
    monkeypatch.setattr("gapless.kernels.pixels.TURNS", True)
    assert height_first(90, 40, 60, 30)
    new = resize(tensor, 30, 60)
    monkeypatch.setattr("gapless.kernels.pixels.TURNS", False)
    assert not height_first(90, 40, 60, 30) and not torch.equal(resize(tensor, 30, 60), new)
    monkeypatch.setattr("gapless.images.crops._OLD", True)
    assert crossable(640, 480, CropSpec()) and not crossable(20, 3000, CropSpec())
    monkeypatch.setattr("gapless.images.crops._OLD", False)
    assert crossable(20, 3000, CropSpec())
