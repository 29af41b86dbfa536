"""A row's result is the same bits alone or among others, in any place, decoded or prefilled again, in any page layout.

Shapes: the micro model, one as wide as the bundled model (256 wide, heads of 64), since GEMM kernels differ, the micro
model of the third generation, and both generations with keys and values in FP8.
"""

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from torch import Tensor

from gapless.models.moondream.cache import PagedKV
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream

PREFIX = 17
COORD, SIZE = 5, 6
THIRD = pytest.param("third fp8", 15, marks=pytest.mark.slow)


@cache
def model(shape: str) -> Moondream:
    config: dict[str, Any] = micro_config(max_context=512, third=shape.startswith("third"))
    if shape == "wide":
        config["text"] |= {"dim": 256, "ff_dim": 512, "vocab_size": 1000}
        config["vision"]["proj_out_dim"] = 256
        config["region"] |= {"dim": 256, "inner_dim": 128}
    return Moondream(
        read_config(config), micro_tensors(config, seed=5), kv_dtype="fp8" if shape.endswith("fp8") else "auto"
    )


def tokens(m: Moondream, count: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random ids with values on the coord and size ids; some of those ids are plain words all the same."""
    ids = torch.randint(1, m.vocab, (count,), generator=g)
    ids[torch.rand(count, generator=g) < 0.2] = COORD
    ids[torch.rand(count, generator=g) < 0.1] = SIZE
    values = torch.rand(count, 2, generator=g)
    values[(ids != COORD) & (ids != SIZE)] = -1.0
    values[torch.rand(count, generator=g) < 0.05] = -1.0
    return ids, values


class Sequences:
    """Rows with a picture block each, fed by prompt or by decode steps, in pages of one size at shuffled places."""

    def __init__(self, m: Moondream, count: int, page_size: int = 16, width: int = 24, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        pages = -(-width * 16 // page_size)
        self.m = m
        self.cache: PagedKV = m.new_cache(1 + count * pages, page_size)
        self.cache.poison(tuple(range(1, 1 + count * pages)))
        places = torch.randperm(count * pages, generator=torch.Generator().manual_seed(page_size)) + 1
        self.tables = places.view(count, pages)
        self.pictures = torch.randn(count, PREFIX - 1, m.config.text.dim, generator=g)
        for row in range(count):
            m.prefill_prefix(self.pictures[row], self.cache, self.tables[row])

    def prompt(self, row: int, ids: Tensor, values: Tensor, at: int = PREFIX) -> Tensor:
        positions = torch.arange(at, at + ids.shape[0])
        tables = self.tables[row].expand(ids.shape[0], -1)
        return self.m.forward(self.m.embed(ids, values), positions, tables, self.cache)

    def step(self, rows: list[int], ids: Tensor, values: Tensor, positions: list[int]) -> Tensor:
        x = self.m.embed(ids, values)
        return self.m.forward(x, torch.tensor(positions), self.tables[rows], self.cache)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize(("shape", "seed"), [*product(("micro", "wide", "third"), range(3)), ("fp8", 0), THIRD])
def test_a_row_alone_among_sixteen_and_in_any_order(shape: str, seed: int) -> None:
    m = model(shape)
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 200, (16,), generator=g).tolist()
    s = Sequences(m, 16, seed=seed)
    for row, length in enumerate(lengths):
        s.prompt(row, *tokens(m, length, g))
    ids, values = tokens(m, 16, g)
    positions = [PREFIX + length for length in lengths]
    together = s.step(list(range(16)), ids, values, positions)
    assert torch.isfinite(together).all()
    heads = m.logits(together), m.coord_value(together), m.size_value(together)
    order = torch.randperm(16, generator=g).tolist()
    permuted = s.step(order, ids[order], values[order], [positions[i] for i in order])
    assert torch.equal(permuted, together[order])
    for head, whole in zip((m.logits, m.coord_value, m.size_value), heads, strict=True):
        assert torch.equal(head(permuted), whole[order])
    for row in order[:6]:
        alone = s.step([row], ids[row : row + 1], values[row : row + 1], [positions[row]])
        assert torch.equal(alone[0], together[row])
        for head, whole in zip((m.logits, m.coord_value, m.size_value), heads, strict=True):
            assert torch.equal(head(alone)[0], whole[row])


@pytest.mark.parametrize(
    ("shape", "prompt"), [*product(("micro", "wide", "third"), (1, 15, 16, 21)), ("fp8", 15), THIRD]
)
def test_decoded_and_prefilled_again_are_the_same(shape: str, prompt: int) -> None:
    m = model(shape)
    g = torch.Generator().manual_seed(prompt)
    ids, values = tokens(m, prompt + 40, g)
    others, other_values = tokens(m, 7, g)
    decoded = Sequences(m, 8)
    hidden = [decoded.prompt(0, ids[:prompt], values[:prompt])]
    for row in range(1, 8):
        decoded.prompt(row, ids[: 3 * row], values[: 3 * row])
    for i in range(40):
        place = i % 8
        order = [*range(1, 1 + place), 0, *range(1 + place, 8)]
        mixed = torch.cat((others[:place], ids[prompt + i : prompt + i + 1], others[place:]))
        mixed_values = torch.cat((other_values[:place], values[prompt + i : prompt + i + 1], other_values[place:]))
        positions = [PREFIX + prompt + i if row == 0 else PREFIX + 3 * row + i for row in order]
        hidden.append(decoded.step(order, mixed, mixed_values, positions)[place : place + 1])
    again = Sequences(m, 8, page_size=64)
    assert torch.equal(again.prompt(0, ids, values), torch.cat(hidden))


def test_page_size_and_table_width_do_not_show() -> None:
    m = model("micro")
    ids, values = tokens(m, 90, torch.Generator().manual_seed(1))
    outs = []
    for page_size, width in ((16, 7), (16, 32), (64, 8), (64, 32), (128, 16)):
        s = Sequences(m, 1, page_size, width)
        outs.append(s.prompt(0, ids, values))
    assert all(torch.equal(out, outs[0]) for out in outs[1:])


def test_several_prompts_in_one_call_are_the_same_as_one_by_one() -> None:
    m = model("micro")
    g = torch.Generator().manual_seed(2)
    parts = [tokens(m, length, g) for length in (9, 30, 4)]
    apart, joined = Sequences(m, 3), Sequences(m, 3)
    expected = torch.cat([apart.prompt(row, *part) for row, part in enumerate(parts)])
    ids, values = (torch.cat(column) for column in zip(*parts, strict=True))
    rows = [row for row, part in enumerate(parts) for _ in part[0]]
    positions = [PREFIX + i for part in parts for i in range(len(part[0]))]
    assert torch.equal(joined.step(rows, ids, values, positions), expected)


@pytest.mark.parametrize("shape", ["micro", "fp8"])
def test_a_prompt_in_two_pieces_is_the_same_as_in_one(shape: str) -> None:
    m = model(shape)
    ids, values = tokens(m, 50, torch.Generator().manual_seed(3))
    whole, pieces = Sequences(m, 1), Sequences(m, 1)
    first = pieces.prompt(0, ids[:23], values[:23])
    second = pieces.prompt(0, ids[23:], values[23:], at=PREFIX + 23)
    assert torch.equal(torch.cat((first, second)), whole.prompt(0, ids, values))


@pytest.mark.parametrize("shape", ["micro", "fp8"])
def test_a_forked_prefix_is_as_good_as_ones_own(shape: str) -> None:
    m = model(shape)
    ids, values = tokens(m, 20, torch.Generator().manual_seed(4))
    own = Sequences(m, 1)
    expected = own.prompt(0, ids, values)
    shared = Sequences(m, 1)
    table = shared.tables[0].clone()
    spare = int(table[10])
    shared.cache.copy_page(int(table[1]), spare)
    shared.tables[0, 1] = spare
    assert torch.equal(shared.prompt(0, ids, values), expected)
