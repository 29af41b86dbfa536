"""A model whose weights were laid out for fused steps says what it said before: in prompts, pictures and adapters too.

The fused step itself needs a GPU; here a set of kernels packs the weights and leaves every step to the layers.
"""

from __future__ import annotations

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from tests.models.test_adapter_numbers import drawn
from torch import Tensor

from gapless.kernels.fused import Decoder, StepAdapters
from gapless.kernels.graphed import Graphed
from gapless.kernels.triton.folding import pack
from gapless.models.base import RowAdapters
from gapless.models.moondream.adapters import pack as pack_adapter
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream

CONFIG = read_config(micro_config())
TOLERANCE = 5e-6


class Packed:
    """Weights laid out anew; with `answers`, what a step is answered with."""

    def __init__(self, decoder: Decoder, answers: bool) -> None:
        self.weights = pack(decoder).decoder
        self.answers = answers
        self.asked: list[tuple[int, StepAdapters | None]] = []

    def fits(self, rows: int, keys: Tensor) -> bool:
        return self.answers

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        keys: Tensor,
        values: Tensor,
        adapters: StepAdapters | None = None,
        scales: Tensor | None = None,
    ) -> Tensor:
        self.asked.append((len(x), adapters))
        return x + 1

    def logits(self, hidden: Tensor) -> Tensor:
        norm, head = self.weights.ln, self.weights.head
        n = torch.nn.functional.layer_norm(hidden, norm.weight.shape, norm.weight, norm.bias, 1e-5)
        return n @ head.weight.T + head.bias


class Packing(Graphed):
    """Graphed kernels that lay weights out."""

    def __init__(self, answers: bool = False) -> None:
        super().__init__()
        self._answers = answers

    def fuse(self, decoder: Decoder) -> Packed:
        return Packed(decoder, self._answers)


def tensors():
    """The micro model's, with norms that scale and shift."""
    g = torch.Generator().manual_seed(5)
    found = micro_tensors(micro_config())
    for name in found:
        if name.startswith("text.") and "ln." in name:
            found[name] = torch.randn(found[name].shape, generator=g) * 0.3 + (name.endswith("weight"))
    return found


def models(answers=False):
    return Moondream(CONFIG, tensors(), Graphed()), Moondream(CONFIG, tensors(), Packing(answers))


def everything(model: Moondream, adapter: Tensor | None) -> Tensor:
    """Logits behind a picture, a prompt and a step of two rows."""
    g = torch.Generator().manual_seed(1)
    picture = torch.randn((model.prefix - 1, CONFIG.text.dim), generator=g)
    cache, tables = model.new_cache(40, 16), torch.arange(1, 25).view(2, 12)
    own, both = None, None
    if adapter is not None:
        bank = model.new_adapters(2, 4)
        bank.load(1, adapter)
        own, both = RowAdapters(bank, torch.tensor([1])), RowAdapters(bank, torch.tensor([1, 0]))
    hidden = []
    for table in tables:
        model.prefill_prefix(picture, cache, table, own)
        ids = torch.arange(3, 12)
        hidden.append(
            model.forward(model.embed(ids, None), torch.arange(9) + model.prefix, table[None], cache, own)[-1]
        )
    at = torch.full((2,), model.prefix + 9)
    step = model.forward(model.embed(torch.tensor([7, 8]), None), at, tables, cache, both)
    return model.logits(torch.cat([torch.stack(hidden), step]))


@pytest.mark.parametrize("adapted", [False, True])
@torch.inference_mode()
def test_the_numbers_are_those_of_the_weights_as_they_came(adapted):
    pairs = drawn(3)
    names = {name.removesuffix(".A") for name in pairs if name.endswith(".A")}
    own = {name: (pairs[f"{name}.A"], pairs[f"{name}.B"]) for name in names}
    adapter = pack_adapter(own, CONFIG.text, 4, torch.float32) if adapted else None
    plain, folded = (everything(model, adapter) for model in models())
    torch.testing.assert_close(folded, plain, atol=TOLERANCE, rtol=TOLERANCE)


@torch.inference_mode()
def test_no_weight_is_kept_twice():
    model = models()[1]
    block, laid = model.text.blocks[1], model.text.fused.weights.blocks[1]

    def memory(tensor):
        return tensor.untyped_storage().data_ptr()

    assert memory(block.qkv.weight) == memory(block.mlp.fc1.weight) == memory(laid.qkv.weight)
    assert memory(block.proj.weight) == memory(block.mlp.fc2.weight) == memory(laid.proj.weight)


@torch.inference_mode()
def test_steps_are_fused_with_adapters_too_and_prompts_are_not():
    model = models(answers=True)[1]
    cache, tables = model.new_cache(40, 16), torch.arange(1, 25).view(2, 12)
    bank = model.new_adapters(2, 4)
    x, at = torch.ones(2, CONFIG.text.dim), torch.tensor([1, 2])
    assert torch.equal(model.forward(x, at, tables, cache), x + 1)
    slots = torch.tensor([0, 1])
    assert torch.equal(model.forward(x, at, tables, cache, RowAdapters(bank, slots)), x + 1)
    model.forward(x, at, tables[:1], cache)
    model.forward(x, at, tables, cache, RowAdapters(bank, torch.tensor([1])))  # one for all, as prompts have it
    assert [count for count, _ in model.text.fused.asked] == [2, 2]
    plain, adapted = (adapters for _, adapters in model.text.fused.asked)
    assert plain is None and adapted.bank is bank.bank and torch.equal(adapted.slots, slots)


def test_a_fused_step_finds_every_matrix_of_a_slot_and_its_rank():
    """What the kernels read by place is what the layers read by view."""
    pairs = drawn(3)
    names = {name.removesuffix(".A") for name in pairs if name.endswith(".A")}
    own = {name: (pairs[f"{name}.A"], pairs[f"{name}.B"]) for name in names}
    slots = models()[0].new_adapters(3, 5)
    slots.load(2, pack_adapter(own, CONFIG.text, 5, torch.float32))
    bank = slots.bank
    ranks = {a.shape[0] for a, _ in own.values()}
    assert bank.rank == 5 and bank.flat[:, bank.rank_at].tolist() == [0, 0, max(ranks)]
    for layer, at in zip(slots.layers, bank.blocks, strict=True):
        for name, branch in zip(
            ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"), (at.qkv, at.proj, at.fc1, at.fc2), strict=True
        ):
            for begin, matrix in ((branch.a, layer[name].a[2]), (branch.b, layer[name].b[2])):
                assert matrix.any() and torch.equal(bank.flat[2, begin : begin + matrix.numel()], matrix.flatten())
