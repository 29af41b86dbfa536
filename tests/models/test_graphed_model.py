"""The model on graphed kernels: fit for a CUDA graph, and the reference's answers.

What a GPU would have to wait for shows on shapes alone, at the published dimensions (with fewer layers).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.fakes.capture_watch import DEVICE, CaptureWatch, HostRead
from tests.fakes.micro import micro_config, micro_crops, micro_tensors
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.models.base import RowAdapters
from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import random_config
from gapless.models.moondream.weights_map import tensor_shapes

PREFIX = 17
LENGTHS = [1, 15, 16, 47, 80, 210]


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


# -- on shapes alone ---------------------------------------------------------------------------------------------------


@cache
def full_size(rows: int | None, third: bool = False) -> Moondream:
    """Moondream 2's dimensions, or Moondream 3's with a dense layer and one of experts; two layers each, no data."""
    base = random_config("moondream-3" if third else "moondream-2")
    moe = replace(base.text.moe, start_layer=1) if base.text.moe else None
    text, vision = replace(base.text, n_layers=2, moe=moe), replace(base.vision, enc_n_layers=2)
    config = replace(base, text=text, vision=vision)
    shapes = tensor_shapes(config)
    tensors = {name: torch.empty(shape, dtype=torch.bfloat16, device=DEVICE) for name, shape in shapes.items()}
    return Moondream(config, tensors, Graphed(rows, grouped=rows is None))


def ints(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=DEVICE)


@pytest.mark.parametrize("rows", [None, 16])
@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize(("bucket", "width"), [(1, 64), (16, 128), (48, 50)])
def test_a_decode_step_asks_nothing(third: bool, rows: int | None, bucket: int, width: int) -> None:
    m = full_size(rows, third)
    cache, tables = m.new_cache(4000, 16), ints(bucket, 128)
    values = torch.empty(bucket, 2, device=DEVICE)
    watch = CaptureWatch()
    with watch:
        hidden = m.forward(m.embed(ints(bucket), values), ints(bucket), tables[:, :width], cache)
        logits, coords, sizes = m.logits(hidden), m.coord_value(hidden), m.size_value(hidden)
    assert [tuple(t.shape) for t in (hidden, logits, coords, sizes)] == [
        (bucket, 2048),
        (bucket, 51200),
        (bucket,),
        (bucket, 2),
    ]
    assert hidden.dtype is torch.bfloat16
    assert logits.dtype is torch.float32
    assert watch.peak < 1.5e9


@pytest.mark.parametrize("third", [False, True])
def test_steps_prompts_and_blocks_with_adapters_ask_nothing(third: bool) -> None:
    """Eight slots of rank 64; a step of 64 rows gathers what its pairs take and copies no bank."""
    m = full_size(None, third)
    bank, cache, tables = m.new_adapters(9, 64), m.new_cache(4000, 16), ints(64, 64)
    assert bank.flat.numel() * 2 == 9 * m.adapter_bytes(64)
    with CaptureWatch() as watch:
        values = torch.empty(64, 2, device=DEVICE)
        m.forward(m.embed(ints(64), values), ints(64), tables, cache, RowAdapters(bank, ints(64)))
    assert watch.peak < 1e9
    with CaptureWatch():
        own = RowAdapters(bank, ints(1))
        m.prefill_prefix(torch.empty(729, 2048, dtype=torch.bfloat16, device=DEVICE), cache, ints(46), own)
        x = m.embed(ints(300), torch.empty(300, 2, device=DEVICE))
        assert m.forward(x, ints(300), ints(1, 128), cache, own).shape == (300, 2048)


def test_the_reference_would_ask() -> None:
    config = full_size(None).config
    tensors = {name: torch.empty(s, dtype=torch.bfloat16, device=DEVICE) for name, s in tensor_shapes(config).items()}
    m = Moondream(config, tensors, reference)
    cache, x = m.new_cache(200, 16), m.text.wte[:16]
    with pytest.raises(HostRead, match="_local_scalar_dense"), CaptureWatch():
        m.forward(x, ints(16), ints(16, 128), cache)


@pytest.mark.parametrize(("rows", "length"), [(None, 1), (None, 23), (None, 600), (16, 1), (16, 40)])
@pytest.mark.parametrize(("third", "shared"), [(False, True), (False, False), (True, True)])
def test_a_prompt_asks_nothing(rows: int | None, length: int, third: bool, shared: bool) -> None:
    m = full_size(rows, third)
    cache, table = m.new_cache(200, 16), ints(1, 128)
    values = torch.empty(length, 2, device=DEVICE)
    watch = CaptureWatch()
    with watch:
        tables = table if shared else table.expand(length, -1)
        hidden = m.forward(m.embed(ints(length), values), ints(length), tables, cache)
    assert hidden.shape == (length, 2048)
    assert watch.peak < 1.5e9


@pytest.mark.parametrize("rows", [None, 16])
@pytest.mark.parametrize(("third", "tiling"), [(False, (1, 1)), (False, (3, 4)), (True, (2, 1))])
def test_a_picture_and_its_block_ask_nothing(rows: int | None, third: bool, tiling: tuple[int, int]) -> None:
    m = full_size(rows, third)
    cache = m.new_cache(200, 16)
    crops = torch.empty(1 + tiling[0] * tiling[1], 378, 378, 3, dtype=torch.uint8, device=DEVICE)
    with CaptureWatch():
        picture = m.encode_picture(crops, tiling)
        m.prefill_prefix(picture, cache, ints(46))
        m.prefill_inset(picture, 750, cache, ints(128))
        cache.copy_page(45, 50)
        cache.poison((3, 7))
    assert picture.shape == (729, 2048)


# -- against the reference ---------------------------------------------------------------------------------------------


@cache
def weights(shape: str) -> tuple[MoondreamConfig, dict[str, Tensor]]:
    raw = micro_config(max_context=512)
    if shape == "wide":
        raw["text"] |= {"dim": 256, "ff_dim": 512, "vocab_size": 1000}
        raw["vision"]["proj_out_dim"] = 256
        raw["region"] |= {"dim": 256, "inner_dim": 128}
    return read_config(raw), micro_tensors(raw, seed=5)


def make(shape: str, kernels: Graphed | None, dtype: torch.dtype = torch.float32) -> Moondream:
    config, tensors = weights(shape)
    return Moondream(config, {name: tensor.to(dtype) for name, tensor in tensors.items()}, kernels)


class Run:
    """Six sequences behind one picture, in shuffled pages; page 0 is scrap and all that is not written is NaN."""

    def __init__(self, m: Moondream, width: int = 32, shared: bool = True) -> None:
        self.m, self.width, self.shared = m, width, shared
        self.cache = m.new_cache(200, 16)
        self.cache.poison(tuple(range(200)))
        self.tables = (torch.randperm(192, generator=torch.Generator().manual_seed(2)) + 1).view(6, 32)
        self.picture = m.encode_picture(torch.from_numpy(micro_crops()), (1, 2))
        for row in range(6):
            m.prefill_prefix(self.picture, self.cache, self.tables[row])

    def prompt(self, row: int, ids: Tensor, values: Tensor) -> Tensor:
        table = self.tables[row : row + 1, : self.width]
        tables = table if self.shared else table.expand(len(ids), -1)
        return self.m.forward(self.m.embed(ids, values), torch.arange(PREFIX, PREFIX + len(ids)), tables, self.cache)

    def step(self, rows: list[int], ids: Tensor, values: Tensor, positions: list[int]) -> Tensor:
        x = self.m.embed(ids, values)
        return self.m.forward(x, torch.tensor(positions), self.tables[rows, : self.width], self.cache)

    def all(self) -> dict[str, Tensor]:
        """Prompts, then decode steps with two rows of padding; every output by name."""
        g = torch.Generator().manual_seed(1)
        hidden = [self.prompt(row, *tokens(self.m, n, g)) for row, n in enumerate(LENGTHS)]
        scrap = torch.zeros(2, self.width, dtype=torch.int64)
        for s in range(5):
            ids, values = tokens(self.m, 6, g)
            x = self.m.embed(torch.cat((ids, ids.new_zeros(2))), torch.cat((values, values.new_full((2, 2), -1.0))))
            positions = torch.tensor([PREFIX + n + s for n in LENGTHS] + [0, 0])
            tables = torch.cat((self.tables[:, : self.width], scrap))
            hidden.append(self.m.forward(x, positions, tables, self.cache)[:6])
        last, m = hidden[-1], self.m
        return {
            "picture": self.picture,
            "hidden": torch.cat(hidden),
            "logits": m.logits(last),
            "values": torch.cat((m.coord_value(last)[:, None], m.size_value(last)), dim=1),
        }


def tokens(m: Moondream, count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random ids, many of them coordinates and sizes, some of which carry values."""
    ids = torch.randint(1, m.vocab, (count,), generator=g)
    ids = torch.where(torch.rand(count, generator=g) < 0.3, torch.randint(5, 7, (count,), generator=g), ids)
    return ids, torch.rand(count, 2, generator=g) - 0.3


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest magnitude."""
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


@cache
def truth(shape: str) -> dict[str, Tensor]:
    return Run(make(shape, None)).all()


@pytest.mark.parametrize("shape", ["micro", "wide"])
@pytest.mark.parametrize("rows", [None, 16])
@pytest.mark.parametrize(("width", "shared"), [(32, True), (15, True), (32, False)])
def test_answers_are_the_references(shape: str, rows: int | None, width: int, shared: bool) -> None:
    ours = Run(make(shape, Graphed(rows)), width, shared).all()
    for name, tensor in truth(shape).items():
        assert torch.isfinite(ours[name]).all()
        assert apart(ours[name], tensor) < 1e-5, name


def test_half_precision_is_as_near_as_the_references() -> None:
    exact = truth("wide")["hidden"]
    theirs, ours = (Run(make("wide", k, torch.bfloat16)).all()["hidden"].float() for k in (None, Graphed()))
    assert (ours - exact).norm() < 1.2 * (theirs - exact).norm()


@pytest.mark.parametrize("shape", ["micro", "wide"])
def test_with_fixed_rows_company_and_place_do_not_matter(shape: str) -> None:
    m = make(shape, Graphed(16))
    run, g = Run(m), torch.Generator().manual_seed(4)
    for row, n in enumerate(LENGTHS):
        run.prompt(row, *tokens(m, n, g))
    ids, values = tokens(m, 6, g)
    positions = [PREFIX + n for n in LENGTHS]
    together = run.step(list(range(6)), ids, values, positions)
    order = [3, 0, 5, 1, 4, 2]
    assert torch.equal(run.step(order, ids[order], values[order], [positions[i] for i in order]), together[order])
    heads: list[Callable[[Tensor], Tensor]] = [m.logits, m.coord_value, m.size_value]
    for row in range(6):
        alone = run.step([row], ids[row : row + 1], values[row : row + 1], [positions[row]])
        assert torch.equal(alone[0], together[row])
        for head in heads:
            assert torch.equal(head(alone)[0], head(together)[row])


@pytest.mark.parametrize("shape", ["micro", "wide"])
@pytest.mark.parametrize("prompt", [1, 16, 21])
def test_with_fixed_rows_decoded_and_prefilled_again_are_the_same(shape: str, prompt: int) -> None:
    m = make(shape, Graphed(16))
    ids, values = tokens(m, prompt + 12, torch.Generator().manual_seed(prompt))
    decoded = Run(m)
    hidden = [decoded.prompt(0, ids[:prompt], values[:prompt])]
    for row in (1, 2):
        decoded.prompt(row, ids[: 5 * row], values[: 5 * row])
    for i in range(prompt, prompt + 12):
        three, three_values = ids[[0, i, 1]], values[[0, i, 1]]
        step = decoded.step([1, 0, 2], three, three_values, [PREFIX + 5, PREFIX + i, PREFIX + 10])
        hidden.append(step[1:2])
    assert torch.equal(Run(m).prompt(0, ids, values), torch.cat(hidden))


def test_other_sizes_of_page_are_the_same_to_the_last_bit() -> None:
    config, tensors = weights("micro")
    outs = []
    for page_size in (16, 64):
        m = Moondream(config, tensors, Graphed(16))
        cache = m.new_cache(1 + 512 // page_size, page_size)
        pages = torch.arange(1, 1 + 512 // page_size)
        m.prefill_prefix(torch.randn(16, 64, generator=torch.Generator().manual_seed(0)), cache, pages)
        ids, values = tokens(m, 40, torch.Generator().manual_seed(0))
        outs.append(m.forward(m.embed(ids, values), torch.arange(PREFIX, PREFIX + 40), pages[None], cache))
    assert torch.equal(outs[0], outs[1])
