"""A Moondream 3 whose weights were laid out for sparse steps says what it said before, to the bit, and counts experts.

The step itself needs a GPU; here a set of kernels lays the weights out and leaves every step to the layers, or answers.
"""

from __future__ import annotations

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.kernels.sparse import Mixture, SparseDecoder
from gapless.kernels.triton.sparse_room import dims_of, packed
from gapless.models.base import RowAdapters
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.prompts import beside

RAW = micro_config(third=True)
CONFIG = read_config(RAW)


class Laid:
    """Weights laid out anew; with `answers`, what a step is answered with."""

    def __init__(self, decoder: SparseDecoder, answers: bool) -> None:
        self.layers = [packed(block) for block in decoder.blocks]
        blocks = [layer.block for layer in self.layers]
        self.weights = SparseDecoder(blocks, decoder.ln, decoder.head, decoder.heads, decoder.cos, decoder.sin)
        self.taken = torch.arange(len(blocks))[:, None].expand(-1, CONFIG.text.moe.num_experts)
        self.answers = answers
        self.asked: list[int] = []

    source = "laid"

    def fits(self, rows: int, keys: Tensor) -> bool:
        return self.answers

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        keys: Tensor,
        values: Tensor,
        scales: Tensor | None = None,
    ) -> Tensor:
        self.asked.append(len(x))
        return x + 1

    def logits(self, hidden: Tensor) -> Tensor:
        ln, head = self.weights.ln, self.weights.head
        return reference.linear(reference.layer_norm(hidden, ln.weight, ln.bias), head.weight, head.bias).float()


class Laying(Graphed):
    """Graphed kernels that lay weights out."""

    def __init__(self, answers: bool = False) -> None:
        super().__init__(reference.ROWS)
        self._answers = answers

    def fuse_sparse(self, decoder: SparseDecoder) -> Laid:
        return Laid(decoder, self._answers)

    def compile_ahead(self, step: Laid, batches: tuple[int, ...], page_size: int) -> None:
        step.asked += [*batches, page_size]


def model(kernels: Graphed) -> Moondream:
    return Moondream(CONFIG, micro_tensors(RAW), kernels)


def everything(of: Moondream) -> Tensor:
    """Logits behind a picture, a prompt and a step of two rows."""
    g = torch.Generator().manual_seed(1)
    picture = torch.randn((of.prefix - 1, CONFIG.text.dim), generator=g)
    cache, tables = of.new_cache(40, 16), torch.arange(1, 25).view(2, 12)
    hidden = []
    for table in tables:
        of.prefill_prefix(picture, cache, table)
        ids = torch.arange(3, 12)
        hidden.append(of.forward(of.embed(ids, None), torch.arange(9) + of.prefix, table[None], cache)[-1])
    step = of.forward(of.embed(torch.tensor([7, 8]), None), torch.full((2,), of.prefix + 9), tables, cache)
    return of.logits(torch.cat([torch.stack(hidden), step]))


@torch.inference_mode()
def test_the_numbers_are_those_of_the_weights_as_they_came() -> None:
    assert torch.equal(everything(model(Laying())), everything(model(Graphed(reference.ROWS))))


@torch.inference_mode()
def test_no_weight_is_kept_twice_and_what_fills_up_is_zero() -> None:
    of = model(Laying())
    for block, layer in zip(of.text.blocks, of.text.sparse.layers, strict=True):
        other = block.mlp.router if isinstance(layer.block.mlp, Mixture) else block.mlp.fc1
        memory = {t.untyped_storage().data_ptr() for t in (layer.w, block.qkv.weight, other.weight)}
        real = len(block.qkv.bias) + len(other.bias)
        assert len(memory) == 1 and len(layer.w) % 64 == 0
        if not isinstance(layer.block.mlp, Mixture):
            down = (layer.down, block.proj.weight, block.mlp.fc2.weight)
            assert len({t.untyped_storage().data_ptr() for t in down}) == 1
            assert beside(*down[1:], 1) is not None and beside(block.qkv.weight, other.weight, 0) is not None
        assert not layer.w[real:].any() and not layer.bias[real:].any()
        assert layer.routed == (len(layer.w) - len(block.qkv.bias) if isinstance(layer.block.mlp, Mixture) else 0)
    moe = CONFIG.text.moe
    dims = dims_of(of.text.sparse.weights)
    assert (dims.experts, dims.share, dims.expert_inner) == (
        moe.num_experts,
        moe.experts_per_token,
        moe.expert_inner_dim,
    )


def test_what_steps_need_is_compiled_beforehand_where_there_are_such_steps() -> None:
    of = model(Laying())
    of.compile_ahead((1, 8), 16)
    model(Graphed(reference.ROWS)).compile_ahead((1, 8), 16)
    assert of.text.sparse.asked == [1, 8, 16]


@torch.inference_mode()
def test_only_steps_without_adapters_go_this_way() -> None:
    of = model(Laying(answers=True))
    cache, tables = of.new_cache(40, 16), torch.arange(1, 25).view(2, 12)
    x, at = torch.ones(2, CONFIG.text.dim), torch.tensor([1, 2])
    assert torch.equal(of.forward(x, at, tables, cache), x + 1)
    of.forward(x, at, tables, cache, RowAdapters(of.new_adapters(2, 4), torch.tensor([0, 1])))
    of.forward(x, at, tables[:1], cache)
    assert of.text.sparse.asked == [2]


@pytest.mark.parametrize("third", [False, True])
def test_experts_are_counted_where_a_step_counts_them(third: bool) -> None:
    raw = micro_config(third=third)
    of = Moondream(read_config(raw), micro_tensors(raw), Laying() if third else Graphed())
    if third:
        first = CONFIG.text.moe.start_layer
        assert of.experts_taken[:, 0].tolist() == list(range(first, CONFIG.text.n_layers))
    else:
        assert of.experts_taken is None
