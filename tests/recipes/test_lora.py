"""Low-rank branches compute their formula (attn.proj's from the block's input), start at zero, and travel in a file."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
import sys

import numpy as np
import pytest
import torch
from recipes.glint import lora
from recipes.glint.low_rank import LEAVES, Branches, attach, branch_names, load_adapter, merge, save_adapter, tensors_of
from recipes.glint.model import Glint, packed_mask
from recipes.glint.new_word import SHAPES, Stage
from recipes.glint.streams import ASSETS, Vocabulary
from safetensors.torch import load_file, save_file

WEIGHTS = ASSETS / "model.safetensors"
CPU = torch.device("cpu")
MICRO = {
    "vision": {
        "enc_dim": 16, "enc_patch_size": 4, "enc_n_layers": 1, "enc_ff_dim": 16, "enc_n_heads": 1, "proj_out_dim": 32,
        "crop_size": 8, "in_channels": 3, "overlap_margin": 1, "proj_inner_dim": 16,
    },
    "text": {"dim": 32, "ff_dim": 48, "n_layers": 2, "vocab_size": 40, "n_heads": 2, "prefix_attn": 5},
    "region": {
        "dim": 32, "coord_feat_dim": 8, "coord_out_dim": 1024, "size_feat_dim": 8, "size_out_dim": 2048, "inner_dim": 8,
    },
}  # fmt: skip


def micro(seed: int = 0) -> Glint:
    torch.manual_seed(seed)
    return Glint(MICRO).double()


def fill(branches: Branches, only: tuple[str, ...] = LEAVES) -> None:
    for name, branch in branches.items():
        if name.endswith(only):
            torch.nn.init.normal_(branch.B, std=0.3)


def adapted(net: Glint, rank: int = 3) -> Branches:
    branches = attach(net, rank)
    net.double()
    return branches


def hidden(net: Glint) -> torch.Tensor:
    torch.manual_seed(1)
    image, x = torch.randn(2, 4, 32).double(), torch.randn(2, 6, 32).double()
    slot = torch.tensor([[1, 1, 1, 2, 2, 2]] * 2)
    position = torch.tensor([[5, 6, 7, 5, 6, 7]] * 2)
    return net.packed(image, x, position, packed_mask(slot, slot > 0, 5).double())


def by_hand(net: Glint, branches: Branches, x: np.ndarray, proj_reads: str) -> np.ndarray:
    """The first block of a plain network with the branches added, over positions that all see each other."""
    w = {k: t.numpy() for k, t in net.text.blocks[0].state_dict().items()}
    low = {leaf: branches[f"text.blocks.0.{leaf}"] for leaf in LEAVES}

    def linear(leaf: str, value: np.ndarray, reads: np.ndarray) -> np.ndarray:
        a, b = low[leaf].A.detach().numpy(), low[leaf].B.detach().numpy()
        return value @ w[f"{leaf}.weight"].T + w[f"{leaf}.bias"] + (reads @ a.T) @ b.T

    n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w["ln.weight"] + w["ln.bias"]
    t, heads, d = len(x), 2, 16
    q, k, v = linear("attn.qkv", n, n).reshape(t, 3, heads, d).transpose(1, 2, 0, 3)
    angle = np.arange(t)[:, None] * 1e4 ** (-np.arange(4) / 4)
    cos, sin = np.cos(angle), np.sin(angle)

    def turn(z: np.ndarray) -> np.ndarray:
        a, b = z[..., :4], z[..., 4:8]
        return np.concatenate([a * cos - b * sin, a * sin + b * cos, z[..., 8:]], -1)

    scores = np.exp(turn(q) @ turn(k).swapaxes(1, 2) / math.sqrt(d))
    seen = ((scores / scores.sum(-1, keepdims=True)) @ v).transpose(1, 0, 2).reshape(t, -1)
    out = linear("attn.proj", seen, {"block": n, "attention": seen}[proj_reads])
    up = linear("mlp.fc1", n, n)
    act = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
    return x + out + linear("mlp.fc2", act, act)


def test_a_block_computes_its_formula_and_proj_reads_the_normed_input():
    net = micro()
    torch.nn.init.normal_(net.text.blocks[0].ln.weight)
    plain = copy.deepcopy(net)
    branches = adapted(net)
    fill(branches)
    x = torch.randn(1, 7, 32).double()
    cos, sin = net.text.angles(torch.arange(7)[None])
    with torch.no_grad():
        got, _ = net.text.blocks[0].step(x, cos, sin, None, None)
        packed = net.text.blocks[0](x, cos, sin, torch.zeros(1, 1, 0, 7), 7)
    # Rotations are computed in single precision.
    assert np.abs(got[0].numpy() - by_hand(plain, branches, x[0].numpy(), "block")).max() < 1e-5
    assert np.abs(packed[0].numpy() - by_hand(plain, branches, x[0].numpy(), "block")).max() < 1e-5
    assert np.abs(got[0].numpy() - by_hand(plain, branches, x[0].numpy(), "attention")).max() > 0.05


def test_new_branches_change_no_bit_and_nothing_else_is_trained():
    net = micro()
    before = hidden(net)
    branches = adapted(net)
    assert torch.equal(hidden(net), before)
    hidden(net).sum().backward()
    learning = {id(p) for branch in branches.values() for p in branch.parameters()}
    assert {id(p) for p in net.parameters() if p.requires_grad} == learning
    assert all(branch.B.grad is not None and branch.B.grad.abs().sum() > 0 for branch in branches.values())
    fill(branches)
    assert not torch.equal(hidden(net), before)


def test_merging_is_exact_for_three_of_the_four_and_wrong_for_proj():
    for only, exact in ((("attn.qkv", "mlp.fc1", "mlp.fc2"), True), (("attn.proj",), False)):
        net, merged = micro(), micro()
        branches = adapted(net)
        fill(branches, only)
        merge(merged, {f"{n}.{leaf}": p.detach() for n, b in branches.items() for leaf, p in b.named_parameters()})
        with torch.no_grad():
            away = (hidden(net) - hidden(merged)).abs().max().item()
        assert away < 1e-5 if exact else away > 0.05


def test_the_file_has_the_published_names_and_comes_back(tmp_path):
    path = tmp_path / "adapter.safetensors"
    net = Glint(Vocabulary().config)
    branches = attach(net, 8)
    fill(branches)
    save_adapter(branches, path)
    tensors = load_file(str(path))
    dims = {"attn.qkv": (256, 768), "attn.proj": (256, 256), "mlp.fc1": (256, 512), "mlp.fc2": (512, 256)}
    assert len(tensors) == 6 * 4 * 2
    for i in range(6):
        for leaf, (inner, outer) in dims.items():
            assert tensors[f"text.blocks.{i}.{leaf}.A"].shape == (8, inner)
            assert tensors[f"text.blocks.{i}.{leaf}.B"].shape == (outer, 8)
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16} and path.stat().st_size < 400_000
    again = tensors_of(load_adapter(Glint(Vocabulary().config), path))
    assert all(torch.equal(again[name], t) for name, t in tensors.items())


def test_a_file_for_another_model_is_refused_with_the_name_and_the_remedy(tmp_path):
    path = tmp_path / "adapter.safetensors"
    branches = attach(micro(), 4)
    save_adapter(branches, path)
    with pytest.raises(ValueError, match=r"text\.blocks\.0\.attn\.proj\.A.*\(4, 32\).*\(4, 256\).*trained for this"):
        load_adapter(Glint(Vocabulary().config), path)
    tensors = tensors_of(branches)
    del tensors["text.blocks.1.mlp.fc2.B"]
    save_file(tensors, str(path))
    with pytest.raises(ValueError, match=r"text\.blocks\.1\.mlp\.fc2\.B: the file has None"):
        load_adapter(micro(), path)
    with pytest.raises(ValueError, match=r"ranks \[\]"):
        save_file({"a": torch.zeros(1)}, str(path))
        load_adapter(micro(), path)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(SHAPES["moon"], Vocabulary())


def test_a_few_steps_reduce_the_loss_of_a_batch(stage):
    net = lora.fresh_net(WEIGHTS, CPU)
    seen = lora.look(net, stage, random.Random(3), 1, 1.0)
    batch = lora.batch_of(seen, stage, random.Random(4), 100)
    torch.manual_seed(0)
    branches, low = attach(net, 4), torch.zeros(1, 1, 1, dtype=torch.bool)
    adam = torch.optim.AdamW([p for b in branches.values() for p in b.parameters()], lr=4e-3)
    losses = []
    for _ in range(6):
        loss = lora.loss_of(net, batch, low)
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert losses[-1] < 0.6 * losses[0]


def test_the_command_writes_an_adapter_and_a_card_of_these_weights(stage, tmp_path, monkeypatch, capsys):
    argv = ["lora", "--weights", str(WEIGHTS), "--out", str(tmp_path), "--rank", "2", "--scenes", "3", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", [*argv, "--pictures", "1", "--threads", "1", "--device", "cpu", "--fresh", "1"])
    lora.main()
    card = json.loads((tmp_path / "adapter.json").read_text())
    assert card["base"]["sha256"] == hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()
    assert (card["word"], card["rank"], card["trained"]["steps"]) == ("moon", 2, 2)
    assert load_file(str(tmp_path / "adapter.safetensors")).keys() == {
        f"{name}.{leaf}" for name in branch_names(lora.fresh_net(WEIGHTS, CPU)) for leaf in "AB"
    }
    card["base"]["sha256"] = "0" * 64
    (tmp_path / "adapter.json").write_text(json.dumps(card))
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--evaluate"])
    with pytest.raises(SystemExit, match="trained for other weights"):
        lora.main()
