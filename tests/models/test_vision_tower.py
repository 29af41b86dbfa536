"""Patches, pixel levels, stitching, and what a picture's embedding depends on."""

import numpy as np
import pytest
import torch
from tests.fakes.micro import micro_config, micro_crops, micro_model, micro_tensors
from tests.models.naive_moondream import Naive

from gapless.images.crops import CropSpec, cut
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.vision import CROPS_AT_ONCE, pixel_levels, stitch


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def test_patches_are_row_major_and_channel_first_inside() -> None:
    crops = torch.from_numpy(micro_crops(tiling=(1, 1)))
    patches = micro_model().vision.patches(crops)
    assert patches.shape == (2, 16, 588)
    for index in (0, 5, 15):
        row, column = divmod(index, 4)
        window = crops[1, 14 * row : 14 * row + 14, 14 * column : 14 * column + 14]
        assert torch.equal(patches[1, index], window.permute(2, 0, 1).flatten().int())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_pixel_is_rounded_three_times(dtype: torch.dtype) -> None:
    levels = pixel_levels(dtype)

    def rounded(value: float) -> float:
        return float(torch.tensor(value, dtype=torch.float64).to(torch.float32).to(dtype))

    for level in range(256):
        step = rounded(rounded(rounded(float(level)) / 255) - 0.5) / 0.5
        assert float(levels[level]) == rounded(step)


@pytest.mark.parametrize(
    ("tiling", "grid", "margin"), [((1, 1), 27, 4), ((2, 4), 27, 4), ((3, 1), 16, 2), ((2, 2), 4, 1), ((2, 3), 6, 0)]
)
def test_stitching_undoes_cutting(tiling: tuple[int, int], grid: int, margin: int) -> None:
    """Tiles cut from one map come back as that map; each tile's given-up border is spoilt to show it is not used."""
    rows, columns = tiling
    step = grid - 2 * margin
    shape = (rows * step + 2 * margin, columns * step + 2 * margin)
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(*shape, 1)
    tiles = []
    for i in range(rows):
        for j in range(columns):
            tile = whole[i * step : i * step + grid, j * step : j * step + grid].clone()
            if i > 0:
                tile[:margin] = -1
            if i < rows - 1:
                tile[grid - margin :] = -1
            if j > 0:
                tile[:, :margin] = -1
            if j < columns - 1:
                tile[:, grid - margin :] = -1
            tiles.append(tile)
    assert torch.equal(stitch(torch.stack(tiles), tiling, margin), whole)


@pytest.mark.parametrize("tiling", [(1, 1), (1, 2), (2, 2), (4, 1), (1, 5)])
def test_any_tiling_gives_one_grid(tiling: tuple[int, int]) -> None:
    m = micro_model()
    crops = torch.from_numpy(micro_crops(tiling=tiling))
    embedding = m.encode_picture(crops, tiling)
    assert embedding.shape == (16, 64)
    assert torch.isfinite(embedding).all()
    assert torch.equal(m.encode_picture(crops, tiling), embedding)


@pytest.mark.parametrize("size", [(40, 90), (130, 150), (200, 100)])
def test_uncut_pixels_give_what_their_crops_give(size: tuple[int, int]) -> None:
    m = micro_model()
    pixels = torch.randint(0, 256, (*size, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    crops, tiling = cut(pixels.numpy(), CropSpec(56, 14, m.config.vision.overlap_margin, 4))
    assert (tiling == (1, 1)) == (size == (40, 90))
    assert torch.equal(m.encode_picture(pixels, tiling), m.encode_picture(torch.from_numpy(crops), tiling))


def test_crops_do_not_see_one_another() -> None:
    m = micro_model()
    crops = torch.from_numpy(micro_crops(tiling=(1, 2)))
    features = m.vision.encode(crops)
    other = crops.clone()
    other[2] = 255 - other[2]
    changed = m.vision.encode(other)
    assert torch.equal(changed[:2], features[:2])
    assert not torch.allclose(changed[2], features[2], atol=1e-2)


@pytest.mark.parametrize("tiling", [(1, 15), (5, 6)])
def test_more_crops_than_go_through_at_once(tiling: tuple[int, int]) -> None:
    """They end where they would have alone, and a second implementation agrees."""
    m, count = micro_model(), 1 + tiling[0] * tiling[1]
    assert count > CROPS_AT_ONCE
    crops = micro_crops(tiling=tiling)
    features = m.vision.encode(torch.from_numpy(crops))
    assert features.shape[0] == count
    for at in (0, CROPS_AT_ONCE - 1, CROPS_AT_ONCE, count - 1):
        alone = m.vision.encode(torch.from_numpy(crops[at : at + 1]))[0]
        assert torch.allclose(features[at], alone, atol=1e-4)
    raw = micro_config()
    naive = Naive({"revision": "2025-06-21", **raw}, {n: t.numpy() for n, t in micro_tensors(raw).items()})
    right = torch.from_numpy(np.array(naive.picture(crops, tiling)))
    seen = m.encode_picture(torch.from_numpy(crops), tiling)
    assert float((seen.double() - right).norm() / right.norm()) < 5e-6


def test_the_whole_picture_crop_comes_first() -> None:
    """The first half of what is projected is crop 0's feature at that very position."""
    config = micro_config()
    tensors = micro_tensors(config)
    tensors["vision.proj_mlp.fc1.weight"][:, 32:] = 0
    m = Moondream(read_config(config), tensors)
    crops = torch.from_numpy(micro_crops(tiling=(1, 2)))
    picture = m.encode_picture(crops, (1, 2))
    expected = m.vision.proj_mlp(torch.cat((m.vision.encode(crops)[0], torch.zeros(16, 32)), dim=-1))
    assert torch.allclose(picture, expected, atol=1e-4)


def test_the_bundled_geometry_runs() -> None:
    config = micro_config()
    config["text"] |= {"prefix_attn": 257, "max_context": 1024}
    config["vision"] |= {"crop_size": 224, "overlap_margin": 2, "max_crops": 4}
    m = Moondream(read_config(config), micro_tensors(config))
    crops = np.random.default_rng(0).integers(0, 256, (5, 224, 224, 3), dtype=np.uint8)
    picture = m.encode_picture(torch.from_numpy(crops), (2, 2))
    assert picture.shape == (256, 64)
    cache = m.new_cache(70, 16)
    pages = torch.arange(1, 65)
    m.prefill_prefix(picture, cache, pages[:17])
    last = m.forward(picture[:1], torch.tensor([1023]), pages[None], cache)
    assert torch.isfinite(last).all()
