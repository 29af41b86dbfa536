"""Values on a GPU: embedding them and reading them, against plain lines; what nobody wants is not read."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.drawn_region import draw, embedded, scores

from gapless.kernels.choose import choose

pytestmark = pytest.mark.gpu

SIZES = {
    "moondream-2": {"dim": 2048, "inner": 8192, "bins": 1024, "wide": (128, 256)},
    "glint": {"dim": 256, "inner": 512, "bins": 1024, "wide": (64, 128)},
}
ROWS = (1, 2, 8, 16, 24, 32, 64, 128)
BF16_ERROR = 1e-2


@pytest.fixture(scope="module", params=[(name, dtype) for name in SIZES for dtype in (torch.bfloat16, torch.float16)],
                ids=str)  # fmt: skip
def region(request):
    name, dtype = request.param
    heads = draw(5, **SIZES[name], dtype=dtype, device="cuda")
    fused = choose(torch.device("cuda")).fuse_region(heads)
    assert fused is not None and type(fused).__name__ == "TritonRegion"
    return heads, fused


@pytest.mark.parametrize("rows", [*ROWS, 700])
def test_embedding(region, rows):
    heads, fused = region
    g = torch.Generator("cuda").manual_seed(rows)
    kind = {"generator": g, "device": "cuda"}
    dim = len(heads.coord.encoder.bias)
    words = torch.randn(50, dim, **kind).to(heads.coord.features.dtype)
    ids = torch.randint(0, 50, (rows,), **kind)
    ids[::3] = 7
    values = torch.rand(rows, 2, **kind)
    values[torch.rand(rows, **kind) < 0.4] = -1
    launched = fused.launches
    with torch.inference_mode():
        x = fused.embed(ids, values, words, 7)
    assert fused.launches == launched + 1
    right = embedded(heads, ids, values, words, 7)
    assert float((x.double() - right).norm() / right.norm()) < BF16_ERROR
    plain = values[:, 0] < 0
    assert torch.equal(x[plain], words[ids[plain]])


@pytest.mark.parametrize("rows", ROWS)
def test_reading_what_is_wanted(region, rows):
    heads, fused = region
    g = torch.Generator("cuda").manual_seed(rows)
    kind = {"generator": g, "device": "cuda"}
    hidden = torch.randn(rows, len(heads.coord.encoder.bias), **kind).to(heads.coord.features.dtype)
    said = scores(heads, hidden)
    levels = torch.stack([heads.coord.values, heads.size.values, heads.size.values]).double()
    mixed = torch.randint(0, 4, (rows,), **kind, dtype=torch.int32)
    for wanted in (None, mixed, mixed & 1, mixed & 2, mixed * 0):
        fused._scores.fill_(torch.nan)
        fused._thought.fill_(torch.nan)
        with torch.inference_mode():
            coords, sizes = fused.values(hidden, wanted)
            again = [fused.values(hidden, wanted) for _ in range(20)]
        assert all(torch.equal(c, coords) and torch.equal(s, sizes) for c, s in again)
        bits = torch.full((rows,), 3, device="cuda") if wanted is None else wanted
        wish = torch.stack([bits & 1, bits & 2, bits & 2], dim=1) != 0
        found = torch.cat([coords[:, None], sizes], dim=1).double()
        assert torch.equal(found[~wish], torch.zeros_like(found[~wish]))
        near = said >= (said.amax(-1, keepdim=True) - 2.0**-6 * said.abs().amax(-1, keepdim=True))
        hit = ((levels[None] == found[..., None]) & near).any(-1)
        assert bool(hit[wish].all()), "a value that is not the likeliest bin's, nor nearly"
        best = levels[torch.arange(3, device="cuda")[None], said.argmax(-1)]
        assert float((best == found)[wish].double().mean() if bool(wish.any()) else 1.0) > 0.8
