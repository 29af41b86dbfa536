"""Adapters of Moondream 2 in float32: against an independent implementation, and the same bits in any company."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.fakes.micro import micro_config, micro_tensors

from gapless.errors import InvalidAdapter, InvalidRequest
from gapless.images.crops import CropSpec
from gapless.images.picture import prepare
from gapless.kernels import reference
from gapless.kernels.graphed import Graphed
from gapless.models.base import RowAdapters
from gapless.models.moondream.adapters import branches, pack, read
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.registry import load_model
from gapless.skills.settings import adapter_name

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
FOLDERS = ("moondream2-2025-06-21-a", "moondream2-2025-06-21-b")
PICTURES = ("small_100x80", "square_378", "photo_640x480", "tall_700x1600")
RANK = 8
CONFIG = read_config(micro_config())


@cache
def golden(folder):
    loaded = load_model(GOLDEN / folder)
    bank = loaded.model.new_adapters(3, RANK)
    pairs = read(GOLDEN / folder / "adapter.safetensors", loaded.config)
    bank.load(2, pack(pairs, loaded.config.text, RANK, torch.float32))
    return loaded, bank


@pytest.mark.parametrize(
    ("folder", "picture"),
    [
        pytest.param(folder, picture, marks=pytest.mark.slow if (i + j) % 2 else ())
        for i, folder in enumerate(FOLDERS)
        for j, picture in enumerate(PICTURES)
    ],
)
@torch.inference_mode()
def test_prefill_logits_with_the_golden_adapter(folder, picture):
    loaded, bank = golden(folder)
    model, vision = loaded.model, loaded.config.vision
    wanted = load_file(GOLDEN / folder / "adapter_expected.safetensors")[f"{picture}.query_lora_prefill_logits"]
    spec = CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)
    shown = prepare(GOLDEN / folder / f"{picture}.png", spec)
    prompts = json.loads((GOLDEN / folder / "expected.json").read_text())[picture]
    ids = torch.tensor(prompts["query_prompt_ids"])
    cache, pages = model.new_cache(60, 16), torch.arange(1, 60)
    own = RowAdapters(bank, torch.tensor([2]))
    model.prefill_prefix(model.encode_picture(torch.from_numpy(shown.crops), shown.tiling), cache, pages[:46], own)
    x = model.embed(ids, torch.full((len(ids), 2), -1.0))
    positions = torch.arange(model.prefix, model.prefix + len(ids))
    found = model.logits(model.forward(x, positions, pages[None], cache, own))[-1]
    assert float((found - wanted).norm() / wanted.norm()) < 5e-6


def micro(kernels, config=CONFIG):
    return Moondream(config, micro_tensors(micro_config()), kernels)


def drawn(seed, rank=4, config=CONFIG):
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, branch in branches(config.text).items():
        outer = (branch.experts,) if branch.experts else ()
        tensors[f"{name}.A"] = torch.randn((*outer, rank, branch.into), generator=generator) / branch.into**0.5
        tensors[f"{name}.B"] = torch.randn((*outer, branch.out, rank), generator=generator) / rank**0.5
    return tensors


def saved(tmp_path, tensors, name="adapter.safetensors"):
    path = tmp_path / name
    save_file(tensors, path)
    return path


@pytest.mark.parametrize("kernels", [reference, Graphed(16), Graphed()], ids=["reference", "fixed rows", "any rows"])
@torch.inference_mode()
def test_company_and_slot_do_not_show(tmp_path, kernels):
    """Rows of two adapters and none in one batch: each the bits it has alone; without adapter, those of no bank."""
    model = micro(kernels)
    packed = [pack(read(saved(tmp_path, drawn(i)), CONFIG), CONFIG.text, RANK, torch.float32) for i in (1, 2)]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((9, 64), generator=generator)

    def run(rows, slots, order):
        bank, cache = model.new_adapters(4, RANK), model.new_cache(40, 16)
        for slot, which in order.items():
            bank.load(slot, packed[which])
        tables = torch.arange(1, 37).view(9, 4)
        adapters = None if slots is None else RowAdapters(bank, torch.tensor(slots))
        outs = []
        for position in range(3):
            at = torch.full((len(rows),), position)
            outs.append(model.forward(x[rows] + position, at, tables[rows], cache, adapters))
        return torch.stack(outs, 1)

    every = list(range(9))
    mixed = run(every, [0, 1, 2, 1, 0, 2, 2, 0, 1], {1: 0, 2: 1})
    moved = run(every, [0, 3, 1, 3, 0, 1, 1, 0, 3], {3: 0, 1: 1})
    plain = run(every, None, {})
    assert torch.equal(mixed, moved)
    assert torch.equal(mixed[[0, 4, 7]], plain[[0, 4, 7]])
    assert not any(torch.equal(mixed[i], plain[i]) for i in (1, 2, 3, 5, 6, 8))
    if kernels is not reference and kernels.rows is None:
        return  # GEMMs of other sizes may round differently
    for row, slot in ((1, 1), (2, 2), (8, 1)):
        assert torch.equal(run([row], [slot], {1: 0, 2: 1})[0], mixed[row])
        assert torch.equal(run([row, 0, 4], [slot, 0, 0], {1: 0, 2: 1})[0], mixed[row])


@pytest.mark.parametrize("kernels", [reference, Graphed(), Graphed(16)], ids=["reference", "any rows", "fixed rows"])
@torch.inference_mode()
def test_the_kernel_equals_merged_weights(kernels):
    """S-LOR-07: nothing is scaled, whatever the rank; what is beyond a rank is zeros."""
    generator = torch.Generator().manual_seed(3)
    a, b = torch.zeros((3, 8, 32)), torch.zeros((3, 48, 8))
    for slot, rank in ((1, 3), (2, 8)):
        a[slot, :rank] = torch.randn((rank, 32), generator=generator)
        b[slot, :, :rank] = torch.randn((48, rank), generator=generator)
    x, weight = torch.randn((16, 32), generator=generator), torch.randn((48, 32), generator=generator)
    y = x @ weight.T
    slots = torch.tensor([0, 1, 2, 2] * 4)
    found = kernels.lora(y, x, a, b, slots)
    for row, slot in enumerate(slots.tolist()):
        torch.testing.assert_close(found[row], (weight + b[slot] @ a[slot]) @ x[row], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        kernels.lora(y, x, a, b, torch.tensor([2])), x @ (weight + b[2] @ a[2]).T, rtol=1e-4, atol=1e-4
    )
    assert torch.equal(kernels.lora(y, x, a, b, torch.tensor([0])), y)


def spoilt(kind):
    tensors = drawn(1)
    first = "text.blocks.0.attn.qkv"
    match kind:
        case "prefix":
            return {f"base.{name}": t for name, t in tensors.items()}, ["missing text.blocks.0", "unexpected base."]
        case "peft":
            made = {f"base_model.model.{name[:-2]}.lora_{name[-1]}.weight": t for name, t in tensors.items()}
            return made, ["has the names of PEFT (base_model.model.text.blocks.", "B multiplied by alpha / rank"]
        case "half":
            return {n: t for n, t in tensors.items() if "blocks.1" not in n}, ["missing text.blocks.1.attn.proj.A"]
        case "extra":
            return {**tensors, "text.alpha": torch.ones(1)}, ["unexpected text.alpha"]
        case "shape":
            return {**tensors, f"{first}.B": torch.ones(7, 4)}, [f"{first}.B has shape [7, 4], expected [192, 4]"]
        case "ranks":
            return {**tensors, f"{first}.A": torch.ones(5, 64)}, [f"{first}.B has shape [192, 4], expected [192, 5]"]
        case "rank":
            wide = {f"{first}.A": torch.ones(65, 64), f"{first}.B": torch.ones(192, 65)}
            return {**tensors, **wide}, [f"{first} has rank 65, the most is 64"]
        case "dtype":
            return {**tensors, f"{first}.A": torch.ones(4, 64, dtype=torch.int32)}, ["I32, expected F32, F16, BF16"]
        case "flat":
            return {**tensors, f"{first}.A": torch.ones(64)}, [f"{first}.A has shape [64], expected [rank, 64]"]
    return {**tensors, f"{first}.A": torch.full((4, 64), np.nan)}, [f"{first}.A has values that are not finite"]


KINDS = ("prefix", "peft", "half", "extra", "shape", "ranks", "rank", "dtype", "flat", "nan")


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_that_does_not_fit_is_refused_by_name(tmp_path, kind):
    """S-LOR-02: names with a prefix, half the layers, tensors too many, wrong ranks, shapes, dtypes, values."""
    tensors, said = spoilt(kind)
    with pytest.raises(InvalidAdapter) as caught:
        read(saved(tmp_path, tensors), CONFIG)
    for words in said:
        assert words in str(caught.value)


def test_damaged_and_missing_files_are_refused(tmp_path):
    """S-LOR-05: a folder without weights, nothing at all, a file that is cut short, a pickle that runs code."""
    whole = saved(tmp_path, drawn(1))
    (tmp_path / "cut.safetensors").write_bytes(whole.read_bytes()[:5000])
    (tmp_path / "empty").mkdir()
    torch.save({"lora_state_dict": {"x": print}}, tmp_path / "evil.pt")
    for name, said in (
        ("cut.safetensors", "not a complete safetensors file"),
        ("empty", "holds none of adapter.safetensors"),
        ("nothing", "does not exist"),
        ("long" * 100, "cannot be looked at .File name too long.; give a folder or file"),
        ("evil.pt", "none of it was run"),
    ):
        with pytest.raises(InvalidAdapter, match=said) as told:
            read(tmp_path / name, CONFIG)
        assert "adapter" in str(told.value) and "model's safetensors" not in str(told.value)


def test_nothing_is_allocated_for_a_file_that_does_not_fit(tmp_path, monkeypatch):
    """Eight kilobytes that claim rank 1,000,000, and a whole model's weights: told by names and shapes alone."""
    claims = {n: torch.ones(1).expand(*((10**6, t.shape[1]) if n[-1] == "A" else (t.shape[0], 10**6)))
              for n, t in drawn(1).items()}  # fmt: skip
    torch.save(claims, tmp_path / "claims.pt")
    assert (tmp_path / "claims.pt").stat().st_size < 20_000
    with pytest.raises(InvalidAdapter, match="for which it has too few bytes"):
        read(tmp_path / "claims.pt", CONFIG)
    weights = GOLDEN / "moondream2-2025-06-21-a" / "model.safetensors"

    def never(*_):
        raise AssertionError("a tensor was read")

    monkeypatch.setattr("gapless.weights.stored.Stored.read", never)
    with pytest.raises(InvalidAdapter, match="holds a model's weights and is no adapter"):
        read(weights, CONFIG)
    with pytest.raises(InvalidAdapter, match="rank 65, the most is 64: train it with a smaller one"):
        read(saved(tmp_path, spoilt("rank")[0]), CONFIG)


def test_an_adapter_of_the_other_generation_is_told_as_that(tmp_path):
    third = {f"{kind}.0.{way}_{side}": torch.ones(1) for kind in ("dense", "moe") for way in ("up", "down")
             for side in "ab"}  # fmt: skip
    path = saved(tmp_path, third)
    with pytest.raises(InvalidAdapter, match=r"was made for a model with experts .* Use one") as told:
        read(path, CONFIG)
    assert str(path) in str(told.value)
    with pytest.raises(InvalidAdapter, match=r"whose attention is adapted \(Moondream 2\).* Use one"):
        read(saved(tmp_path, drawn(1)), read_config(micro_config(third=True)))


def test_what_a_pickle_says_of_itself_is_harmless_but_its_alpha_is_not_applied(tmp_path, caplog):
    tensors = drawn(1)
    wanted = pack(read(saved(tmp_path, tensors, "a.safetensors"), CONFIG), CONFIG.text, 8, torch.float32)
    for number, content in enumerate(
        ({**tensors, "rank": 4, "step": 9}, {**tensors, "alpha": 16}, {"lora_state_dict": tensors, "alpha": 16})
    ):
        caplog.clear()
        torch.save(content, tmp_path / "a.pt")
        assert torch.equal(pack(read(tmp_path / "a.pt", CONFIG), CONFIG.text, 8, torch.float32), wanted)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == (number > 0) and all("alpha 16: nothing is scaled by it" in words for words in said)
    torch.save({**tensors, "optimizer": {}}, tmp_path / "a.pt")
    with pytest.raises(InvalidAdapter, match=r"'optimizer' is \{\} \(dict\)"):
        read(tmp_path / "a.pt", CONFIG)


def test_a_rank_beyond_the_slots_names_the_remedy(tmp_path):
    pairs = read(saved(tmp_path, drawn(1, rank=16)), CONFIG)
    with pytest.raises(InvalidAdapter, match="max_adapter_rank=16"):
        pack(pairs, CONFIG.text, 8, torch.float32)
    with pytest.raises(InvalidAdapter, match="the adapter moon has rank 16"):
        pack(pairs, CONFIG.text, 8, torch.float32, "moon")


def test_internal_names_and_pickles_read_the_same(tmp_path):
    tensors = drawn(1)
    swaps = (
        ("text.blocks", "text_model.transformer.h"),
        (".attn.qkv", ".mixer.Wqkv"),
        (".attn.proj", ".mixer.out_proj"),
    )
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in swaps:
            name = name.replace(old, new)  # noqa: PLW2901
        renamed[f"{name[:-1]}parametrizations.weight.0.{name[-1]}"] = tensor
    torch.save(renamed, tmp_path / "final.pt")
    torch.save({"lora_state_dict": tensors}, tmp_path / "nested.pt")
    wanted = pack(read(saved(tmp_path, tensors, "a.safetensors"), CONFIG), CONFIG.text, 8, torch.float32)
    for path in (tmp_path, tmp_path / "nested.pt"):
        assert torch.equal(pack(read(path, CONFIG), CONFIG.text, 8, torch.float32), wanted)


@pytest.mark.parametrize("name", ["", " ", "../x", "a/b", "-a", "x" * 65, "é", 7, None])
def test_names_that_cannot_be(name):
    with pytest.raises(InvalidRequest, match="adapter must be a name"):
        adapter_name(name)
    assert adapter_name("moon@12.v-1_b") == "moon@12.v-1_b"
