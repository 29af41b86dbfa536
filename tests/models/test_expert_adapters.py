"""Adapters of Moondream 3: drawn tiny models against the naive implementation, and what their files may look like."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.fakes.micro import micro_config
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Stage
from tests.fakes.sim_clock import SimClock
from tests.models.naive_adapters import NaiveAdapted
from tests.models.naive_moondream import Naive, Row
from tests.models.test_naive_agreement import (
    NEAR,
    PLAIN,
    SEEDS,
    TOLERANCE,
    VOCAB,
    configs,
    drawn,
    off,
    picture_of,
    requests,
    rows_of,
    settled,
)
from torch import Tensor

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import build_table
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.errors import InvalidAdapter
from gapless.kernels.graphed import Graphed
from gapless.models.base import RowAdapters
from gapless.models.moondream.adapter_seen import inspect_adapter
from gapless.models.moondream.adapters import ALIGNED, Layout, pack, read
from gapless.models.moondream.config import MoondreamConfig, read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import random_config
from gapless.models.moondream.templates import Templates
from gapless.records import Adapter

Tensors = dict[str, Tensor]
SETS = {"reference": None, "graphed": Graphed(), "fixed rows": Graphed(16)}
MICRO = read_config(micro_config(third=True))
RANK = 24
"""Of the slots; more than any that is drawn."""


def finetune(raw: dict[str, Any], seed: int, own: int = 2) -> Tensors:
    """An adapter under its own names, layers of experts numbered as blocks; `own`: the rank of each expert."""
    g, text, tensors = torch.Generator().manual_seed(seed), raw["text"], {}
    moe, dim = text["moe"], text["dim"]
    rank, inner = own * moe["experts_per_token"], moe["expert_inner_dim"]
    for layer in range(text["n_layers"]):
        if layer < moe["start_layer"]:
            ups, downs, name = (rank, dim, text["ff_dim"]), (rank, text["ff_dim"], dim), f"dense.{layer}"
            outer: tuple[int, ...] = ()
        else:
            ups, downs, name = (own, dim, 2 * inner), (own, inner, dim), f"moe.{layer}"
            outer = (moe["num_experts"],)
        for part, (r, into, out) in (("up", ups), ("down", downs)):
            tensors[f"{name}.{part}_a"] = torch.randn((*outer, r, into), generator=g) / into**0.5
            tensors[f"{name}.{part}_b"] = torch.randn((*outer, out, r), generator=g) / r**0.5
    return tensors


def renumbered(tensors: Tensors, start: int, prefix: str = "") -> Tensors:
    """Layers of experts numbered from 0."""
    new = {}
    for name, tensor in tensors.items():
        kind, layer, part = name.split(".")
        new[f"{prefix}{kind}.{int(layer) - (start if kind == 'moe' else 0)}.{part}"] = tensor
    return new


def packed(tensors: Tensors, config: MoondreamConfig, rank: int = RANK) -> Tensor:
    """Through a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "adapter.safetensors")
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
        return pack(read(path, config), config.text, rank, torch.float32)


@st.composite
def thirds(draw: st.DrawFn) -> dict[str, Any]:
    """A tiny Moondream 3, at least one of its layers of experts more often than not."""
    raw: dict[str, Any] = draw(configs(draw(st.sampled_from(["erf", "tanh"]))))
    raw["revision"], layers = "moondream3", raw["text"]["n_layers"]
    experts = draw(st.integers(1, 6))
    raw["text"]["moe"] = {
        "num_experts": experts, "start_layer": draw(st.integers(0, layers)),
        "experts_per_token": draw(st.integers(1, experts)), "expert_inner_dim": draw(st.sampled_from([4, 12])),
    }  # fmt: skip
    return raw


class Drawn:
    """A model with two adapters in slots 1 and 3, and the naive ones: none, first, second."""

    def __init__(self, raw: dict[str, Any], seed: int, kernels: Graphed | None = None) -> None:
        tensors = drawn(raw, seed, bare=False)
        self.model = Moondream(read_config(raw), tensors, kernels)
        arrays = {name: t.numpy() for name, t in tensors.items()}
        files = [finetune(raw, seed + 1, own=1 + seed % 3), finetune(raw, seed + 2, own=2)]
        self.naives: list[Naive] = [Naive(raw, arrays)]
        self.naives += [NaiveAdapted(raw, arrays, {n: t.numpy() for n, t in file.items()}) for file in files]
        start = raw["text"]["moe"]["start_layer"]
        self.packed = [packed(files[0], self.model.config), packed(renumbered(files[1], start), self.model.config)]

    def bank(self) -> Any:
        bank = self.model.new_adapters(4, RANK)
        for slot, weights in zip((1, 3), self.packed, strict=True):
            bank.load(slot, weights)
        return bank


def check_numbers(raw: dict[str, Any], seed: int, kernels: Graphed | None) -> None:
    """A picture and a prompt each under its own adapter or none, then two decode steps of all in one batch."""
    d = Drawn(raw, seed, kernels)
    m, bank = d.model, d.bank()
    slots, which = [0, 1, 3, 1, 0], [0, 1, 2, 1, 0]
    shown, prefix = picture_of(raw, seed), raw["text"]["prefix_attn"]
    seen, block = (
        m.encode_picture(torch.from_numpy(shown.crops), shown.tiling),
        d.naives[0].picture(shown.crops, shown.tiling),
    )
    cache, tables = m.new_cache(60, 4), torch.arange(1, 56).view(5, 11)
    ids = torch.randint(10, VOCAB, (5, 5), generator=torch.Generator().manual_seed(seed))
    found = []
    for row, slot in enumerate(slots):
        own = (RowAdapters(bank, torch.tensor([slot])),) if slot else ()
        m.prefill_prefix(seen, cache, tables[row], *own)
        x, at = m.embed(ids[row, :3], torch.tensor([PLAIN] * 3)), torch.arange(prefix, prefix + 3)
        found.append([m.forward(x, at, tables[row : row + 1], cache, *own)])
    for step in (3, 4):
        x, at = m.embed(ids[:, step], torch.tensor([PLAIN] * 5)), torch.full((5,), prefix + step)
        together = m.forward(x, at, tables, cache, RowAdapters(bank, torch.tensor(slots)))
        for row in range(5):
            found[row].append(together[row : row + 1])
    plain = None
    for row, number in enumerate(which):
        naive = d.naives[number]
        rows = [
            Row(naive.w["text.wte"][0], 0),
            *(Row(x, 0) for x in block),
            *(naive.word(i) for i in ids[row].tolist()),
        ]
        assert off(torch.cat(found[row]), naive.hidden(rows)[prefix:]) < TOLERANCE
        if row == 1:
            plain = d.naives[0].hidden(rows)[prefix:]
            assert off(torch.cat(found[row]), plain) > 1e-3, "adapters that change nothing"


@pytest.mark.parametrize("kernels", SETS)
@settings(settled, max_examples=4)
@given(thirds(), SEEDS)
@torch.inference_mode()
def test_numbers_with_adapters(kernels: str, raw: dict[str, Any], seed: int) -> None:
    check_numbers(raw, seed, SETS[kernels])


@pytest.mark.slow
@pytest.mark.parametrize("kernels", SETS)
@settings(settled, max_examples=80)
@given(thirds(), SEEDS)
@torch.inference_mode()
def test_many_numbers_with_adapters(kernels: str, raw: dict[str, Any], seed: int) -> None:
    check_numbers(raw, seed, SETS[kernels])


def check_answers(raw: dict[str, Any], seed: int) -> None:
    """Every program, a third each with no adapter, the first and the second, in one slot or two."""
    d = Drawn(raw, seed)
    m, table = d.model, build_table(Templates.of(d.model.config).rules())
    known = [None, *(Adapter(f"a{i}", i, weights) for i, weights in enumerate(d.packed, 1))]
    asked = [replace(r, adapter=known[(r.id + seed) % 3]) for r in requests(raw, seed, insets=True)]
    config = EngineConfig(
        depth=2, max_rows=4, page_size=4, pages=120, lookahead=8, adapters=1 + seed % 2, adapter_rank=RANK
    )
    clock, mailbox = SimClock(), ThreadMailbox()
    device = Refereed(HostDevice(m, table, config, HostDeviceConfig(threads=1, poison=True)), table)
    try:
        stage = Stage(Engine(device, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = stage.play([Entry(request) for request in asked])
    finally:
        device.close()
    for request in asked:
        one, sampling = heard[request.id], request.sampling
        assert one.finish is not None and one.finish.error is None
        naive = d.naives[0 if request.adapter is None else request.adapter.version]
        right = naive.answer(request.program, rows_of(naive, request.prompt), sampling.max_tokens, sampling.max_objects)
        certain = next((i for i, said in enumerate(right) if said.gap < NEAR), len(right))
        assert [t.id for t in one.tokens[:certain]] == [said.id for said in right[:certain]]
        assert len(one.tokens) == len(right) or certain < len(right)


@settings(settled, max_examples=2)
@given(thirds(), SEEDS)
def test_answers_with_adapters(raw: dict[str, Any], seed: int) -> None:
    check_answers(raw, seed)


@pytest.mark.slow
@settings(settled, max_examples=60)
@given(thirds(), SEEDS)
def test_many_answers_with_adapters(raw: dict[str, Any], seed: int) -> None:
    check_answers(raw, seed)


# -- files -------------------------------------------------------------------------------------------------------------


def test_both_numberings_all_names_and_pickles_read_the_same(tmp_path: Path) -> None:
    """Layers of experts from 0 or by their block; with the prefix of the original or without; inside a checkpoint."""
    tensors = finetune(micro_config(third=True), 1)
    wanted = packed(tensors, MICRO)
    counted = renumbered(tensors, 1)
    assert counted.keys() != tensors.keys()
    for other in (counted, renumbered(tensors, 1, "text_lora."), renumbered(tensors, 0, "text_lora.")):
        assert torch.equal(packed(other, MICRO), wanted)
    internal = {}
    for name, tensor in tensors.items():
        _, layer, part = name.split(".")
        internal[f"text.blocks.{layer}.mlp.{'fc1' if part[:2] == 'up' else 'fc2'}.{part[-1].upper()}"] = tensor
    assert torch.equal(packed(internal, MICRO), wanted)
    torch.save({"lora_state_dict": renumbered(tensors, 1, "text_lora."), "step": 7}, tmp_path / "final.pt")
    assert torch.equal(pack(read(tmp_path, MICRO), MICRO.text, RANK, torch.float32), wanted)


def test_dense_and_expert_layers_keep_their_numbers_when_the_dense_ones_come_first() -> None:
    """Four layers, of which the last two have experts: moe 0 and 1 are blocks 2 and 3, and so are moe 2 and 3."""
    raw = micro_config(third=True)
    raw["text"] |= {"n_layers": 4}
    raw["text"]["moe"]["start_layer"] = 2
    config, tensors = read_config(raw), finetune(raw, 3)
    assert torch.equal(packed(renumbered(tensors, 2), config), packed(tensors, config))
    view = Layout.of(config.text, RANK).view(packed(renumbered(tensors, 2), config), "text.blocks.3.mlp.fc1.A")
    assert torch.equal(view[:, :2], tensors["moe.3.up_a"]) and not view[:, 2:].any()


def test_a_layer_that_is_missing_is_named_in_either_numbering(tmp_path: Path) -> None:
    """Counted by themselves, what is left of the layers of experts is not taken for dense ones."""
    raw = micro_config(third=True)
    raw["text"] |= {"n_layers": 4}
    raw["text"]["moe"]["start_layer"] = 2
    tensors = renumbered(finetune(raw, 3), 2)
    without = {name: t for name, t in tensors.items() if not name.startswith("moe.1")}
    with pytest.raises(InvalidAdapter, match=r"model: missing text\.blocks\.3\.mlp\.fc1\.A; missing .*\.fc1\.B;"):
        packed(without, read_config(raw))
    save_file(tensors | {"moe.1.up_b": torch.ones(6, 48, 3)}, tmp_path / "adapter.safetensors")
    seen = inspect_adapter(tmp_path)
    assert (seen.linears, seen.rank, seen.fits) == (8, 16, ())
    assert seen.problems == (
        "text.blocks.5.mlp.fc1.A [6, 2, 64] and text.blocks.5.mlp.fc1.B [6, 48, 3] have no rank in common",
    )


def spoilt(kind: str) -> tuple[Tensors, str]:
    tensors = finetune(micro_config(third=True), 1)
    fc1, fc2 = "text.blocks.1.mlp.fc1", "text.blocks.1.mlp.fc2"
    match kind:
        case "experts":
            cut = {n: t[:5] if n.startswith("moe") else t for n, t in tensors.items()}
            return cut, f"{fc1}.A has shape [5, 2, 64], expected [6, rank, 64]"
        case "flat":
            return {**tensors, "moe.1.up_a": torch.ones(2, 64)}, f"{fc1}.A has shape [2, 64], expected [6, rank, 64]"
        case "halves":
            return {**tensors, "moe.1.up_b": torch.ones(6, 24, 2)}, f"{fc1}.B has shape [6, 24, 2], expected [6, 48, 2]"
        case "inner":
            wide = {**tensors, "moe.1.down_a": torch.ones(6, 2, 48)}
            return wide, f"{fc2}.A has shape [6, 2, 48], expected [6, rank, 24]"
        case "ranks":
            return {**tensors, "moe.1.up_a": torch.ones(6, 3, 64)}, f"{fc1}.B has shape [6, 48, 2], expected [6, 48, 3]"
        case "rank":
            wide = {"moe.1.up_a": torch.ones(6, 33, 64), "moe.1.up_b": torch.ones(6, 48, 33)}
            return {**tensors, **wide}, f"{fc1} has rank 66, the most is 64"
        case "missing":
            return {n: t for n, t in tensors.items() if n != "moe.1.down_b"}, f"missing {fc2}.B"
        case "half":
            return {n: t for n, t in tensors.items() if n.startswith("dense")}, f"missing {fc1}.A"
        case "layers":
            more = {n.replace("moe.1", "moe.0"): t for n, t in tensors.items() if n.startswith("moe")}
            return {**tensors, **more}, "unexpected text.blocks.2.mlp.fc1.A"  # counted from the first, block 1
        case "twice":
            more = {n.replace("moe.1", "moe.0"): t for n, t in tensors.items() if n.startswith("moe")}
            return {**tensors, **more, "text_lora.dense.0.up_a": torch.ones(2, 64)}, "Keep one of them"
        case "beyond":
            return {n.replace("moe.1", "moe.2"): t for n, t in tensors.items()}, "unexpected text.blocks.2.mlp.fc1.A"
        case "attention":
            return {**tensors, "text.blocks.0.attn.qkv.A": torch.ones(2, 64)}, "unexpected text.blocks.0.attn.qkv.A"
        case "vision":
            return {**tensors, "vision_lora.proj_a": torch.ones(2, 64)}, "unexpected vision_lora.proj_a"
    spoiled = tensors["moe.1.down_a"].clone()
    spoiled[3, 0, 7] = torch.inf
    return {**tensors, "moe.1.down_a": spoiled}, f"{fc2}.A has values that are not finite"


KINDS = (
    "experts", "flat", "halves", "inner", "ranks", "rank", "missing", "half", "layers", "twice", "beyond", "attention",
    "vision", "infinite",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_does_not_fit_the_experts_is_refused_by_name(kind: str) -> None:
    tensors, said = spoilt(kind)
    with pytest.raises(InvalidAdapter) as caught:
        packed(tensors, MICRO)
    assert said in str(caught.value)


@pytest.mark.parametrize(("slots", "own", "named"), [(3, 2, 4), (4, 3, 6), (1, 1, 2)])
def test_a_rank_is_that_of_all_experts_of_a_token(slots: int, own: int, named: int) -> None:
    """Two experts a token: of rank 2 each they are rank 4, and slots must be made for it; dense layers have rank 1."""
    tensors = finetune(micro_config(third=True), 1, own=own)
    for name in [name for name in tensors if name.startswith("dense")]:
        tensors[name] = tensors[name][:1] if name.endswith("_a") else tensors[name][:, :1]
    with pytest.raises(
        InvalidAdapter, match=f"rank {named}, .* slots were made for {slots}; .*max_adapter_rank={named}"
    ):
        packed(tensors, MICRO, slots)
    packed(tensors, MICRO, named)
    assert packed(tensors, MICRO)[Layout.of(MICRO.text, RANK).rank_at] == named


def test_how_large_the_slots_of_the_published_size_are() -> None:
    """Rank 64, eight a token: 3.7 million numbers a layer of experts, 1.3 million a dense one; and the rank itself."""
    text = random_config("moondream-3").text
    experts = 64 * (8 * (2048 + 2048) + 8 * (1024 + 2048))
    dense = 2 * 64 * (2048 + 8192)
    assert Layout.of(text, 64).width - ALIGNED == 20 * experts + 4 * dense == 78_643_200
    assert (Layout.of(text, 8).width - ALIGNED) * 8 == 78_643_200


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_matrices_lie_apart_and_each_begins_where_products_are_the_same_in_every_slot(rank: int) -> None:
    raw = micro_config(third=True)
    raw["text"]["ff_dim"], raw["text"]["moe"] = 90, {**raw["text"]["moe"], "expert_inner_dim": 5, "num_experts": 3}
    layout, end = Layout.of(read_config(raw).text, rank), 0
    assert layout.width % ALIGNED == 0 and len(layout.places) == 8
    for at, shape in sorted(layout.places.values()):
        assert at >= end and at % ALIGNED == 0
        end = at + prod(shape)
    assert end <= layout.width


def test_values_that_the_models_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    tensors = finetune(micro_config(third=True), 1)
    tensors["moe.1.down_b"][4, 7, 1] = 7e4
    save_file(tensors, tmp_path / "adapter.safetensors")
    pairs = read(tmp_path, MICRO)
    pack(pairs, MICRO.text, RANK, torch.bfloat16)
    with pytest.raises(InvalidAdapter, match="values beyond float16; load the model in float32"):
        pack(pairs, MICRO.text, RANK, torch.float16)
