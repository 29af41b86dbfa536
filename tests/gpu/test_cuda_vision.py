"""Pictures on a GPU: Pillow's bytes, the fused tower against float64, the same bits every time, and that it is used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.kernels.drawn_tower import draw, draw_crops, encoded, projected

import gapless
from gapless.device.pictures import CROP_BUCKETS
from gapless.images.crops import CropSpec, crossable, cut
from gapless.images.picture import cut_here
from gapless.kernels import pixels as plain
from gapless.kernels.choose import choose
from gapless.kernels.fused import FusedTower, Tower

pytestmark = pytest.mark.gpu

MOONDREAM_2 = {"dim": 1152, "heads": 16, "inner": 4304, "grid": 27, "size": 14, "margin": 4, "wide": 8192, "text": 2048}
GLINT = {"dim": 192, "heads": 3, "inner": 384, "grid": 16, "size": 14, "margin": 2, "wide": 512, "text": 256}
HALF_ERROR = 1e-2
SIZES = [(640, 480), (480, 640), (1280, 720), (379, 379), (1, 1), (5, 700), (900, 2300), (3000, 600), (1024, 768)]


def error(found, right):
    assert torch.isfinite(found).all()
    return float((found.double() - right).norm() / right.norm())


def opened(tower: Tower) -> FusedTower:
    fused = choose(torch.device("cuda")).fuse_tower(tower)
    assert fused is not None and type(fused).__name__ == "TritonTower"
    return fused


def run(fused: FusedTower, tower: Tower, crops: torch.Tensor) -> torch.Tensor:
    out = torch.full((len(crops), tower.grid**2, len(tower.ln.bias)), torch.nan, dtype=tower.levels.dtype)
    out = out.cuda()
    fused.encode(crops, out)
    return out


@pytest.mark.parametrize("seed", range(3))
def test_crops_are_pillows_to_the_byte(seed):
    rng, spec, kernels = np.random.default_rng(seed), CropSpec(), choose(torch.device("cuda"))
    sizes = SIZES + [(int(2 ** rng.uniform(2, 11)), int(2 ** rng.uniform(2, 11))) for _ in range(20)]
    met = set()
    for number, (width, height) in enumerate(sizes):
        if not crossable(width, height, spec):
            continue
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        if number % 2:
            pixels = (pixels & 1) * np.uint8(255)
        right, tiling = cut(pixels, spec)
        met.add(tiling)
        found = torch.full(right.shape, 7, dtype=torch.uint8, device="cuda")
        kernels.cut_crops(torch.from_numpy(pixels).cuda(), tiling, spec.window, found)
        assert np.array_equal(found.cpu().numpy(), right), (width, height)
        slow = torch.full_like(found, 8)
        plain.cut_crops(torch.from_numpy(pixels).cuda(), tiling, spec.window, slow)
        assert torch.equal(slow, found), (width, height)
    assert len(met) > 4


@pytest.mark.parametrize("count", [1, 2, 5, 9, 13, 18])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("dims", [MOONDREAM_2, GLINT], ids=["moondream-2", "glint"])
def test_a_tower_against_float64(dims, dtype, count):
    tower = draw(count, **dims, dtype=dtype, device="cuda")
    fused, crops = opened(tower), draw_crops(3 * count, count, tower)
    with torch.inference_mode():
        found = run(fused, tower, crops)
        assert error(found, encoded(tower, crops)) < HALF_ERROR
        if count > 1:
            tiling = (1, count - 1) if count % 2 == 0 else ((count - 1) // 2, 2)
            for own in fused.project([found, found], [tiling, tiling]):
                assert error(own, projected(tower, found, tiling)) < HALF_ERROR


def test_crops_do_not_see_each_other():
    tower = draw(5, **MOONDREAM_2, dtype=torch.bfloat16, device="cuda")
    fused, crops = opened(tower), draw_crops(6, 9, tower)
    with torch.inference_mode():
        first = run(fused, tower, crops)
        crops[4] = 255 - crops[4]
        second = run(fused, tower, crops)
    assert not torch.equal(first[4], second[4])
    others = [i for i in range(9) if i != 4]
    assert torch.equal(first[others], second[others])


@pytest.mark.parametrize("count", [2, 9, 18])
def test_a_hundred_relaunches_of_a_graph_are_the_same_bits(count):
    tower = draw(count, **MOONDREAM_2, dtype=torch.bfloat16, device="cuda")
    fused, crops = opened(tower), draw_crops(count, count, tower)
    with torch.inference_mode():
        out = run(fused, tower, crops)
        first = out.clone()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            fused.encode(crops, out)
            with torch.cuda.graph(graph, stream=stream):
                fused.encode(crops, out)
        torch.cuda.synchronize()
        for _ in range(100):
            out.fill_(torch.nan)
            graph.replay()
            assert torch.equal(out, first)


def test_the_library_cuts_and_encodes_there():
    """A picture handed over uncut gives the answers of the one cut here; all of them went through graphs."""
    rng = np.random.default_rng(1)
    pictures = [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in ((300, 400), (90, 100), (230, 700))]
    with gapless.load("glint", device="cuda", max_rows=4) as vlm:
        device = vlm.desk.runner._device
        shown = [vlm.encode_image(picture) for picture in pictures]
        assert all(image.picture.uncut for image in shown)
        before = device.graphs.replays["pictures"]
        there = [vlm.caption(image, settings={"max_tokens": 12})["caption"] for image in shown]
        assert device.graphs.replays["pictures"] - before == len(pictures)
        here = [
            type(image)(replace(cut_here(image.picture, image.crops), digest=f"{number:064x}"), image.crops)
            for number, image in enumerate(shown)  # names of their own, so that nothing is remembered of the others
        ]
        assert [vlm.caption(image, settings={"max_tokens": 12})["caption"] for image in here] == there
        assert device.graphs.replays["pictures"] - before == 2 * len(pictures)
        assert device.plan.graphs > len(CROP_BUCKETS)


def test_attention_of_many_crops_goes_where_it_is_faster():
    """On a Hopper through cuDNN, elsewhere and for few crops through Triton: the same within rounding."""
    tower = draw(2, **MOONDREAM_2, dtype=torch.bfloat16, device="cuda")
    fused, crops = opened(tower), draw_crops(2, 9, tower)
    with torch.inference_mode():
        usual = run(fused, tower, crops)
        hopper = torch.cuda.get_device_capability() == (9, 0)
        assert (fused._cudnn_from is not None) == hopper, "cuDNN was asked, and declined"
        fused._cudnn_from = None
        scanned = run(fused, tower, crops)
        assert torch.equal(usual, scanned) == (not hopper)
        right = encoded(tower, crops)
    assert error(usual, right) < HALF_ERROR and error(scanned, right) < HALF_ERROR
