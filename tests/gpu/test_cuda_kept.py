"""Keys and values in FP8 on a GPU: steps, prompts and tails against float64, and the same bits every time."""

from __future__ import annotations

import pytest
import torch
from tests.kernels import drawn_decoder, drawn_sparse
from tests.kernels.drawn_kept import kept, read
from tests.kernels.drawn_prompts import Piece, copied_tails, draw_prompts, feed_plainly, off
from tests.kernels.drawn_sparse import MOONDREAM_3

from gapless.kernels.choose import choose
from gapless.kernels.kept import as_stored, narrowed

pytestmark = pytest.mark.gpu

MOONDREAM_2 = {"dim": 2048, "inner": 8192, "heads": 32, "vocab": 51200}
BF16_ERROR = 1e-2


def error(found, right):
    assert torch.isfinite(found).all()
    return float((found.double() - right).norm() / right.norm())


def caches_of(scene):
    """As they are kept: bytes that the scene's numbers come from."""
    return [kept(cache, by) for cache, by in zip((scene.keys, scene.values), scene.scales.unbind(1), strict=True)]


def check(fused, scene, step) -> None:
    """Right, in its caches too, and a hundred times the same bits."""
    caches = caches_of(scene)
    args = scene.x, scene.positions, scene.tables
    with torch.inference_mode():
        hidden = fused.forward(*args, *caches, scales=scene.scales).clone()
        stored = [as_stored(cache).clone() for cache in caches]
        for _ in range(100):
            assert torch.equal(fused.forward(*args, *caches, scales=scene.scales), hidden)
        assert all(torch.equal(as_stored(a), b) for a, b in zip(caches, stored, strict=True))
        right = step(scene)[0]
    assert error(hidden, right) < BF16_ERROR
    for cache, by, own in zip(caches, scene.scales.unbind(1), (scene.keys, scene.values), strict=True):
        mine = read(cache, by)
        assert torch.equal(mine.isnan(), own.isnan())
        assert error(mine.nan_to_num(), own.nan_to_num().double()) < BF16_ERROR


@pytest.mark.parametrize(("rows", "dtype", "page"), [(1, "bfloat16", 16), (8, "float16", 64), (64, "bfloat16", 16)])
def test_a_dense_step(rows, dtype, page):
    scene = drawn_decoder.draw(
        rows, rows, **MOONDREAM_2, page=page, dtype=getattr(torch, dtype), device="cuda", longest=900, fp8=True
    )
    fused = choose(torch.device("cuda")).fuse(scene.decoder)
    assert fused is not None and fused.fits(rows, as_stored(scene.keys).to(torch.float8_e4m3fn))
    check(fused, scene, drawn_decoder.step)


@pytest.mark.parametrize("rows", [1, 24])
def test_a_sparse_step(rows):
    scene = drawn_sparse.draw(rows, rows, MOONDREAM_3, dtype=torch.bfloat16, device="cuda", longest=160, fp8=True)
    fused = choose(torch.device("cuda")).fuse_sparse(scene.decoder)
    assert fused is not None
    taken = torch.zeros(rows, MOONDREAM_3.experts, dtype=torch.bool, device="cuda")

    def step(of):
        chosen = fused._room.chosen[: rows * MOONDREAM_3.share].view(rows, -1).long()
        return drawn_sparse.step(of, forced=[taken[:, :0], taken.scatter(1, chosen, True)])

    check(fused, scene, step)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("last", [False, True])
def test_prompts(last, dtype):
    given = choose(torch.device("cuda")).prompts
    pieces = [Piece(760, blocks=((0, 730),), tail=730), Piece(30, 730, tail=730), Piece(1), Piece(90, position=400)]
    scene = draw_prompts(
        pieces, 1, dim=2048, heads=32, fed=8192, tau=last, tile=given.tile, spare=3, dtype=getattr(torch, dtype),
        device="cuda", fp8=True,
    )  # fmt: skip
    right, caches, up, found = feed_plainly(scene, last), [], scene.up.clone(), []
    for _ in range(20):
        caches = [kept(cache, by) for cache, by in zip((scene.keys, scene.values), scene.scales, strict=True)]
        scene.up.copy_(up)
        scene.inner.fill_(torch.nan)
        given.place(scene.up, *caches, scene.runs, scene.turns, scene.inner, scene.scales)
        given.attend(scene.up, *caches, scene.runs, scene.turns, scene.inner, last, scene.scales)
        found.append((as_stored(caches[0]), as_stored(caches[1]), scene.inner.nan_to_num(7.0)))
        assert all(torch.equal(a, b) for a, b in zip(found[0], found[-1], strict=True))
    scene.keys, scene.values = (read(cache, by) for cache, by in zip(caches, scene.scales, strict=True))
    assert max(off(scene.keys, right[0]), off(scene.values, right[1]), off(scene.inner, right[2])) < BF16_ERROR
    copied = copied_tails(scene)
    given.tails(caches[0][None], caches[1][None], scene.runs)
    assert torch.equal(read(caches[0], scene.scales[0]).nan_to_num(7.0), copied.nan_to_num(7.0))


def test_rounding_is_torchs_to_the_bit():
    """A token's key with nothing to turn it, at every kind of number that FP8 has or rounds."""
    given, heads = choose(torch.device("cuda")).prompts, 4
    scene = draw_prompts([Piece(1000)], 3, dim=256, heads=heads, fed=512, tile=given.tile, device="cuda", fp8=True,
                         dtype=torch.bfloat16)  # fmt: skip
    bits = torch.arange(1000 * 256, device="cuda") % 2**16
    v = bits.to(torch.int32).to(torch.int16).view(torch.bfloat16).view(1000, 256)
    scene.up[:, 512:768] = v
    caches = [kept(cache, by) for cache, by in zip((scene.keys, scene.values), scene.scales, strict=True)]
    given.place(scene.up, *caches, scene.runs, scene.turns, scene.inner, scene.scales)
    at = torch.arange(1000, device="cuda")
    stored = as_stored(caches[1])[scene.runs.tables[1, at // 16], :, at % 16]
    right = as_stored(narrowed(v.view(1000, heads, 64), scene.scales[1]))
    real = ~v.isnan().view(1000, heads, 64)
    assert torch.equal(stored[real], right[real]) and (stored[~real] & 0x7F == 0x7F).all()
