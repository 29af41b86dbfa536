"""Pictures inside a prompt, against attention computed whole with an explicit mask, without pages and pieces."""

import math
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from tests.fakes.micro import PREFIX_POSITIONS, micro_config, micro_tensors
from torch import Tensor

from gapless.kernels.graphed import Graphed
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream

INSET = PREFIX_POSITIONS - 1
FRONT, A, B = "front", "a", "b"
Layout = tuple[int | str, ...]
"""Pictures by name and stretches of text by length, from position 0 on; a layout without `FRONT` begins with BOS."""
LAYOUTS: dict[str, Layout] = {
    "front and inset": (FRONT, 3, A, 5),
    "text, inset, text": (20, A, 30),
    "two adjacent": (FRONT, 7, A, B, 2),
    "inset right behind the front": (FRONT, A, 4),
    "inset right behind BOS": (1, A, 9),
    "many, and one picture twice": (70, A, 17, B, 1, A, 1),
}


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@cache
def model(kernels: Graphed | None = None) -> Moondream:
    config = micro_config(max_context=256)
    return Moondream(read_config(config), micro_tensors(config, seed=3), kernels)


def parts(layout: Layout, seed: int = 0) -> list[tuple[str | None, Tensor, Tensor]]:
    """Each part's name (None: text), embeddings [T, dim] of pictures, and ids [T] of text."""
    g = torch.Generator().manual_seed(seed)
    pictures = {name: torch.randn(INSET, 64, generator=g) for name in (FRONT, A, B)}
    nothing = torch.zeros(0)
    return [
        (part, pictures[part], nothing)
        if isinstance(part, str)
        else (None, nothing, torch.randint(10, 128, (part,), generator=g))
        for part in layout
    ]


def plain(ids: Tensor) -> Tensor:
    return model().embed(ids, torch.full((len(ids), 2), -1.0))


def naive(layout: Layout) -> Tensor:
    """Hidden states of all positions, from one mask [T, T] that says who sees whom."""
    m = model()
    rows, blocks = [], []
    for name, picture, ids in parts(layout):
        start = sum(len(row) for row in rows)
        bos = [plain(torch.zeros(1, dtype=torch.int64))] if name == FRONT else []
        rows.append(torch.cat([*bos, picture]) if name else plain(ids))
        if name:
            blocks.append(slice(start, start + len(rows[-1])))
    x = torch.cat(rows)
    mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    for block in blocks:
        mask[block, block] = True
    half = m.config.text.rotary_dims // 2
    cos, sin = m.text.cos[: len(x), None, :half], m.text.sin[: len(x), None, -half:]

    def turned(t: Tensor) -> Tensor:
        a, b, rest = t[..., :half], t[..., half : 2 * half], t[..., 2 * half :]
        return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1)

    for layer in m.text.blocks:
        n = F.layer_norm(x, (64,), layer.ln.weight, layer.ln.bias)
        q, k, v = F.linear(n, layer.qkv.weight, layer.qkv.bias).view(len(x), 3, 4, 16).unbind(1)
        scores = torch.einsum("qhd,khd->hqk", turned(q), turned(k)) / math.sqrt(16)
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
        seen = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        x = x + F.linear(seen, layer.proj.weight, layer.proj.bias) + layer.mlp(n)
    return x


def paged(layout: Layout, m: Moondream, page_size: int = 16, pool_seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hidden states of the text, and where it stands; pages lie in any order, and what is not written is NaN."""
    cache = m.new_cache(40, page_size)
    cache.poison(tuple(range(40)))
    table = torch.randperm(39, generator=torch.Generator().manual_seed(pool_seed))[: 256 // page_size] + 1
    at, hidden, places = 0, [], []
    for name, picture, ids in parts(layout):
        if name == FRONT:
            m.prefill_prefix(picture, cache, table[: -(-PREFIX_POSITIONS // page_size)])
            at += PREFIX_POSITIONS
        elif name:
            m.prefill_inset(picture, at, cache, table)
            at += INSET
        else:
            positions = torch.arange(at, at + len(ids))
            hidden.append(m.forward(plain(ids), positions, table[None], cache))
            places.append(positions)
            at += len(ids)
    return torch.cat(hidden), torch.cat(places)


@pytest.mark.parametrize("kernels", [None, Graphed(), Graphed(16)], ids=["reference", "graphed", "fixed rows"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_is_what_the_mask_says(layout: Layout, kernels: Graphed | None) -> None:
    m, right = model(kernels), naive(layout)
    hidden, places = paged(layout, m)
    torch.testing.assert_close(hidden, right[places], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(m.logits(hidden), model().logits(right[places]), atol=1e-5, rtol=1e-5)


def test_the_mask_matters() -> None:
    """A causal block, one that does not see what is before it, and swapped pictures are far away."""
    layout: Layout = (FRONT, 7, A, B, 2)
    right, _ = paged(layout, model())
    swapped, _ = paged((FRONT, 7, B, A, 2), model())
    assert torch.equal(swapped[:7], right[:7])
    assert (swapped[7:] - right[7:]).abs().max() > 1e-2
    m, picture = model(), parts((A,))[0][1]
    for first in (0, 5):
        cache, table = m.new_cache(4, 16), torch.tensor([1, 2, 3])
        other = m.new_cache(4, 16)
        ids = torch.arange(20, 26)
        for there, word in ((cache, ids), (other, torch.cat((ids[:first] + 30, ids[first:])))):
            m.forward(plain(word), torch.arange(6), table[None], there)
            m.prefill_inset(picture, 6, there, table)
        assert torch.equal(cache.keys[1, 1, :, 6:], other.keys[1, 1, :, 6:]) == (first == 0)
    causal = m.new_cache(4, 16)
    m.forward(plain(ids), torch.arange(6), table[None], causal)
    m.forward(picture, torch.arange(6, 6 + INSET), table[None], causal)
    assert (causal.keys[1, 1, :, 6] - cache.keys[1, 1, :, 6]).abs().max() > 1e-2, "its first position sees its last"


def test_page_size_and_place_do_not_show_in_a_bit() -> None:
    for layout in LAYOUTS.values():
        outs = [paged(layout, model(), size, seed)[0] for size, seed in ((16, 0), (16, 1), (64, 2), (8, 3))]
        assert all(torch.equal(out, outs[0]) for out in outs[1:])


def test_nothing_but_its_own_positions_is_written() -> None:
    m = model()
    cache, table = m.new_cache(5, 16), torch.tensor([4, 2, 1])
    m.forward(plain(torch.arange(10, 20)), torch.arange(10), table[None], cache)
    before = cache.keys.clone()
    m.prefill_inset(parts((A,))[0][1], 10, cache, table)
    changed = (cache.keys != before).any(dim=(0, 2, 4))
    assert changed.nonzero().tolist() == [[2, o] for o in range(10)] + [[4, o] for o in range(10, 16)]
