"""Tilings and crops against the reference's numbers, and their properties for any size and setting."""

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gapless.config import ImageLimits
from gapless.errors import InvalidCheckpoint
from gapless.images.crops import CropSpec, cut, tiling
from gapless.images.picture import cut_here, digest, mirrored, prepare

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
FOLDERS = ("moondream2-2025-06-21-a", "moondream2-2025-06-21-b")
SPEC = CropSpec()

# (width, height), tiling, size of the copy the tiles are cut from
CHECKS = [
    ((378, 378), (1, 1), (378, 378)),
    ((1, 1), (1, 1), (378, 378)),
    ((379, 379), (3, 3), (910, 910)),
    ((500, 500), (3, 3), (910, 910)),
    ((768, 768), (3, 3), (910, 910)),
    ((1024, 1024), (3, 3), (910, 910)),
    ((640, 480), (2, 4), (1176, 644)),
    ((800, 600), (2, 4), (1176, 644)),
    ((600, 400), (2, 4), (1176, 644)),
    ((480, 640), (4, 2), (644, 1176)),
    ((1024, 768), (3, 4), (1176, 910)),
    ((1280, 720), (2, 4), (1176, 644)),
    ((1920, 1080), (2, 4), (1176, 644)),
    ((3840, 2160), (2, 4), (1176, 644)),
    ((4000, 3000), (2, 4), (1176, 644)),
    ((1080, 1920), (4, 2), (644, 1176)),
    ((2000, 500), (1, 6), (1708, 378)),
    ((4000, 400), (1, 9), (2506, 378)),
    ((4000, 300), (1, 1), (378, 378)),
    ((10000, 600), (1, 15), (4102, 378)),
    ((600, 10000), (15, 1), (378, 4102)),
]


@pytest.mark.parametrize(("size", "tiles", "copy"), CHECKS, ids=str)
def test_tilings_of_the_check_table(size, tiles, copy):
    assert tiling(*size, SPEC) == tiles
    rows, cols = tiles
    assert (266 * cols + 112, 266 * rows + 112) == copy


@pytest.mark.parametrize(
    ("size", "tiles"), [((644, 378), (1, 1)), ((2000, 378), (1, 1)), ((378, 2000), (1, 1)), ((4000, 50), (1, 1))]
)
def test_s_img_13_one_short_side_means_one_tile(size, tiles):
    """S-IMG-13: the layout is the reference's for every size, also where a user expected more tiles."""
    assert tiling(*size, SPEC) == tiles


def reference_tiling(width, height):
    """The rule as the reference has it, which may exceed its own budget."""
    h, w, c, budget = height - 112, width - 112, 266, 12
    if h <= c or w <= c:
        return 1, 1
    rows, cols = math.ceil(h / c), math.ceil(w / c)
    if rows * cols > budget:
        r = math.sqrt(budget / (rows * cols))
        return max(1, math.floor(rows * r)), max(1, math.floor(cols * r))
    ht, wt = math.floor(math.sqrt(budget * h / w)), math.floor(math.sqrt(budget * w / h))
    ht, wt = max(ht, rows), max(wt, cols)
    if ht * wt > budget:
        if wt > ht:
            wt = math.floor(budget / ht)
        else:
            ht = math.floor(budget / wt)
    return max(1, ht), max(1, wt)


def test_equal_to_the_reference_beyond_its_budget_too():
    sides = [*range(1, 1200, 37), 378, 379, 644, 645, 1500, 2049, 4000, 6000, 10000, 100_000]
    over = 0
    for width in sides:
        for height in sides:
            rows, cols = reference_tiling(width, height)
            assert tiling(width, height, SPEC) == (rows, cols)
            if rows * cols > 12:
                over += 1
                assert max(width, height) > 12 * min(width, height) and min(rows, cols) == 1
    assert over > 0


@settings(deadline=None, derandomize=True, max_examples=300)
@given(
    st.integers(1, 20000) | st.integers(1, 300_000),
    st.integers(1, 900) | st.integers(1, 20000),
    st.booleans(),
    st.sampled_from([SPEC, CropSpec(224, 14, 2, 4), CropSpec(56, 14, 1, 1), CropSpec(112, 14, 0, 7)]),
)
def test_never_more_tiles_than_the_picture_s_size_foretells(long, short, upright, spec):
    width, height = (short, long) if upright else (long, short)
    rows, cols = tiling(width, height, spec)
    assert rows >= 1
    assert cols >= 1
    assert rows * cols <= spec.most_tiles(width * height)
    assert min(rows, cols) == 1 or rows * cols <= spec.max_crops


def test_the_most_tiles_of_the_default_limit_and_its_picture():
    """100 million pixels, 379 high: 263852 wide, 992 windows; sqrt(12 * 992 / 2) is 77.1."""
    most = SPEC.most_tiles(ImageLimits().max_pixels)
    assert most == 77 == math.prod(tiling(100_000_000 // 379, 379, SPEC))
    assert SPEC.bytes_of(most) == 78 * 378 * 378 * 3
    assert SPEC.most_tiles(640 * 480) == 12 and SPEC.most_tiles(1) == 12


def test_a_long_picture_is_cut_into_all_its_tiles():
    rgb = np.random.default_rng(5).integers(0, 256, (600, 10000, 3), dtype=np.uint8)
    crops, tiles = cut(rgb, SPEC)
    assert (crops.shape, tiles) == ((16, 378, 378, 3), (1, 15))
    copy = np.asarray(Image.fromarray(rgb).resize((4102, 378), Image.Resampling.LANCZOS))
    assert np.array_equal(crops[15], copy[:, 14 * 266 : 14 * 266 + 378])


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("name", ["small_100x80", "square_378", "photo_640x480", "tall_700x1600"])
def test_golden_crops(folder, name):
    expected = json.loads((GOLDEN / folder / "expected.json").read_text())[name]
    picture = prepare(GOLDEN / folder / f"{name}.png", SPEC)
    assert picture.tiling == tuple(expected["tiling"])
    assert picture.crops.shape == (expected["n_crops"], 378, 378, 3)
    assert picture.crops.dtype == np.uint8
    digests = [hashlib.sha256(np.ascontiguousarray(picture.crops[i]).tobytes()).hexdigest() for i in (0, -1)]
    assert digests == [expected["crop_sha256"]["global_crop"], expected["crop_sha256"]["last_crop"]]


@pytest.mark.parametrize("spec", [SPEC, CropSpec(224, 14, 2, 4), CropSpec(56, 14, 1, 6)], ids=str)
def test_tiles_overlap_by_the_margin_and_cover_the_copy(spec):
    rgb = np.random.default_rng(3).integers(0, 256, (700, 900, 3), dtype=np.uint8)
    crops, (rows, cols) = cut(rgb, spec)
    side, step = spec.crop_size, spec.window
    assert (rows, cols) != (1, 1)
    assert crops.shape == (1 + rows * cols, side, side, 3)
    size = (step * cols + spec.margin, step * rows + spec.margin)
    copy = np.asarray(Image.fromarray(rgb).resize(size, Image.Resampling.LANCZOS))
    seen = np.zeros(copy.shape[:2], dtype=bool)
    for i in range(rows):
        for j in range(cols):
            view = (slice(step * i, step * i + side), slice(step * j, step * j + side))
            assert np.array_equal(crops[1 + i * cols + j], copy[view])
            seen[view] = True
    assert seen.all()
    assert np.array_equal(crops[0], np.asarray(Image.fromarray(rgb).resize((side, side), Image.Resampling.LANCZOS)))


def test_s_det_03_crop_grid_maps_to_the_picture_without_shift():
    """S-DET-03: a bright square sits at the same relative place in the global crop for every aspect ratio."""
    for width, height in [(1000, 1000), (1200, 1200), (900, 600), (300, 2000)]:
        rgb = np.zeros((height, width, 3), dtype=np.uint8)
        x, y, w, h = round(0.6 * width), round(0.2 * height), round(0.2 * width), round(0.2 * height)
        rgb[y : y + h, x : x + w] = 255
        crops, _ = cut(rgb, SPEC)
        rows, cols = np.nonzero(crops[0, :, :, 0] > 127)
        centre = ((cols.mean() + 0.5) / 378, (rows.mean() + 0.5) / 378)
        assert centre == pytest.approx(((x + w / 2) / width, (y + h / 2) / height), abs=0.01)


@pytest.mark.parametrize("spec", [(378, 14, 14, 12), (377, 14, 4, 12), (378, 14, 4, 0), (378, 0, 4, 12)])
def test_impossible_settings_are_refused(spec):
    with pytest.raises(InvalidCheckpoint):
        CropSpec(*spec)


def test_digest_covers_pixels_shape_and_settings():
    rgb = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    same = digest(rgb.copy(), CropSpec())
    assert digest(rgb, CropSpec()) == same
    assert len(same) == 64
    other = rgb.copy()
    other[0, 0, 0] ^= 1
    assert digest(other, SPEC) != same
    assert digest(rgb.reshape(3, 2, 3), SPEC) != same
    assert digest(rgb, CropSpec(max_crops=11)) != same
    assert digest(np.asfortranarray(rgb), SPEC) == same


def test_prepared_picture_knows_its_upright_size_and_shares_no_memory_with_the_source():
    rgb = np.zeros((30, 50, 3), dtype=np.uint8)
    picture = prepare(rgb, SPEC, ImageLimits())
    rgb[:] = 255
    assert (picture.width, picture.height) == (50, 30)
    assert not picture.crops.any()


@pytest.mark.parametrize("size", [(40, 30), (379, 500), (640, 480), (1999, 500), (501, 1111)])
def test_a_mirrored_picture_has_the_crops_of_the_mirrored_pixels(size):
    rgb = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    there, back = prepare(rgb, SPEC), prepare(np.ascontiguousarray(rgb[:, ::-1]), SPEC)
    turned = mirrored(there)
    assert np.array_equal(turned.crops, back.crops) and turned.crops.flags.c_contiguous
    assert (turned.tiling, turned.width, turned.height) == (back.tiling, back.width, back.height)
    assert turned.digest not in (there.digest, back.digest) and len(turned.digest) == 64
    assert np.array_equal(mirrored(turned).crops, there.crops)


@pytest.mark.parametrize("size", [(640, 480), (57, 90), (1, 1)])
def test_a_picture_that_a_device_cuts_is_the_same_but_for_its_crops(size):
    pixels = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    here, there = prepare(pixels, SPEC), prepare(pixels, SPEC, device_cuts=True)
    assert there.uncut and not here.uncut and np.array_equal(there.crops, pixels)
    assert (there.digest, there.tiling, there.width, there.height) == (here.digest, here.tiling, *size)
    assert np.array_equal(cut_here(there, SPEC).crops, here.crops) and cut_here(here, SPEC) is here
    turned = mirrored(there)
    assert turned.uncut and np.array_equal(turned.crops, pixels[:, ::-1]) and turned.crops.flags.c_contiguous
    assert turned.digest == mirrored(here).digest and np.array_equal(cut_here(turned, SPEC).crops, mirrored(here).crops)


def test_a_picture_too_large_to_cross_is_cut_here_all_the_same():
    spec = CropSpec(crop_size=56, overlap_margin=1, max_crops=4)
    pixels = np.zeros((300, 300, 3), dtype=np.uint8)
    assert prepare(pixels, spec, device_cuts=True).crops.shape == (5, 56, 56, 3)
    assert prepare(pixels[:200], spec, device_cuts=True).crops.shape == (200, 300, 3)
