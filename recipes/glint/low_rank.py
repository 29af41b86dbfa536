"""Low-rank branches (LoRA) beside the text layers of glint, in the layout of Moondream 2's published variants.

Goes in: a :class:`~recipes.glint.model.Glint` with its weights loaded. Comes out: the same network with a branch
``B (A x)`` beside ``attn.qkv``, ``attn.proj``, ``mlp.fc1`` and ``mlp.fc2`` of every text layer, and the tensors of an
``adapter.safetensors``: ``text.blocks.{i}.attn.qkv.A [rank, in]``, ``...B [out, rank]`` and so on, bfloat16.

Always: no factor like alpha / rank (it is part of B). The branch of ``attn.proj`` is fed what the *block* is fed, its
LayerNorm'd input n, not the attention's output as the name says: so were the published variants trained, so an engine
must run them. Therefore the branch is a second path around the whole of attention, it is not a change of ``proj``'s
weight, and no merged checkpoint equals the adapter. Vision, regions and embeddings have no branch.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from recipes.glint.model import MLP, Glint
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

LEAVES = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")


class LowRank(nn.Module):
    """``B (A x)``; B starts at zero, so a new branch changes nothing."""

    def __init__(self, like: nn.Linear, rank: int) -> None:
        super().__init__()
        device = like.weight.device
        self.A = nn.Parameter(torch.randn(rank, like.in_features).to(device) / math.sqrt(like.in_features))
        self.B = nn.Parameter(torch.zeros(like.out_features, rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in] -> [..., out]``."""
        return (x @ self.A.T) @ self.B.T


class Adapted(nn.Module):
    """A module and a branch with the same input, added."""

    def __init__(self, base: nn.Module, branch: LowRank) -> None:
        super().__init__()
        self.base, self.branch = base, branch

    def forward(self, x: Tensor) -> Tensor:
        """``base(x) + B (A x)``."""
        out: Tensor = self.base(x) + self.branch(x)
        return out


Branches = dict[str, LowRank]


def linear_of(net: Glint, name: str) -> nn.Linear:
    """The layer that a branch is named after, such as ``text.blocks.0.attn.qkv``, before branches are attached."""
    found = net.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def branch_names(net: Glint) -> list[str]:
    """Names of all branches, in the order of the layers."""
    return [f"text.blocks.{i}.{leaf}" for i in range(len(net.text.blocks)) for leaf in LEAVES]


def attach(net: Glint, rank: int) -> Branches:
    """Freeze the network and add zero branches to it, in place; only the branches can be trained afterwards.

    A block is ``x + proj(attention) + mlp(n)`` with n the LayerNorm'd input of both, so the branch of ``attn.proj``,
    which reads n, stands beside the MLP here.
    """
    net.requires_grad_(False)
    branches = {name: LowRank(linear_of(net, name), rank) for name in branch_names(net)}
    for i, block in enumerate(net.text.blocks):
        qkv, proj, fc1, fc2 = (branches[f"text.blocks.{i}.{leaf}"] for leaf in LEAVES)
        mlp = block.mlp
        assert isinstance(mlp, MLP), "this network has branches already: load the weights into a new one"
        block.attn.qkv = Adapted(block.attn.qkv, qkv)
        mlp.fc1, mlp.fc2 = Adapted(mlp.fc1, fc1), Adapted(mlp.fc2, fc2)
        block.mlp = Adapted(mlp, proj)
    return branches


def tensors_of(branches: Branches) -> dict[str, Tensor]:
    """What the file holds."""
    pairs = ((name, leaf, p) for name, branch in branches.items() for leaf, p in branch.named_parameters())
    return {f"{name}.{leaf}": p.detach().to("cpu", torch.bfloat16).contiguous() for name, leaf, p in pairs}


def save_adapter(branches: Branches, path: Path) -> None:
    """Write ``adapter.safetensors``."""
    save_file(tensors_of(branches), str(path), metadata={"format": "pt"})


def load_adapter(net: Glint, path: Path) -> Branches:
    """Attach branches to a network and fill them from a file.

    Raises ValueError when the file's names or shapes are not those of the network.
    """
    tensors = load_file(str(path))
    ranks = {t.shape[0] for name, t in tensors.items() if name.endswith(".A")}
    if len(ranks) != 1:
        raise ValueError(f"{path.name}: ranks {sorted(ranks)}; every A [rank, in] of an adapter has the same rank")
    branches = attach(net, ranks.pop())
    want = {name: tuple(t.shape) for name, t in tensors_of(branches).items()}
    got = {name: tuple(t.shape) for name, t in tensors.items()}
    if got != want:
        odd = sorted(name for name in want.keys() | got.keys() if want.get(name) != got.get(name))
        raise ValueError(
            f"{path.name} does not fit this model, first at {odd[0]}: the file has {got.get(odd[0])}, the model needs "
            f"{want.get(odd[0])}; use an adapter trained for this model"
        )
    for name, branch in branches.items():
        branch.load_state_dict({leaf: tensors[f"{name}.{leaf}"].float() for leaf in ("A", "B")})
    return branches


@torch.no_grad()
def merge(net: Glint, tensors: dict[str, Tensor]) -> None:
    """Add ``B A`` to the weights of a plain network: what merging tools do, and not what the adapter computes.

    It is exact for qkv, fc1 and fc2 and wrong for proj, whose branch reads another vector than proj does.
    """
    for name in branch_names(net):
        weight = linear_of(net, name).weight
        a, b = (tensors[f"{name}.{leaf}"].to(weight) for leaf in ("A", "B"))
        weight += b @ a
