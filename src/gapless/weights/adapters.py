"""Adapter files to their pairs of matrices: everything is checked before anything is used.

In: a folder or a file (safetensors, or a `.pt` of tensors alone), what the model's branches are, and how its files name
them. Out: for each branch its A and B, whose product is added to what a linear says: y += B (A x). Nothing is scaled:
whoever trained it has folded that in. Everything that does not fit is said in one `InvalidAdapter`. Which adapters a
program may read is its caller's affair: no path here comes from a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gapless.errors import GaplessError, InvalidAdapter
from gapless.weights.pickled import read_pickled
from gapless.weights.stored import PICKLED, open_files

MAX_RANK = 64
LISTED = 6
"""How many faults of a kind an error spells out; the rest are counted."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_FILES = ("adapter.safetensors", "final.safetensors", "final.pt", "adapter.pt")
_INSIDE = "lora_state_dict"

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Branch:
    """A linear that an adapter adds to, from `into` to `out` numbers; `experts` of them, or 0 for a single one.

    A rank is that of all `share` experts that a token takes: each has rank / share.
    """

    into: int
    out: int
    experts: int = 0
    share: int = 1


def read_adapter(
    path: Path, branches: Mapping[str, Branch], canonical: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
) -> dict[str, Pair]:
    """Read A [rank, into] and B [out, rank] (with experts [experts, ...]) of every branch, on the CPU, in their dtype.

    `canonical` turns the names of a file into `<branch>.A` and `<branch>.B`. Raises `InvalidAdapter`.
    """
    file = _file(path)
    try:
        found = canonical(_tensors(file))
    except InvalidAdapter:
        raise
    except GaplessError as error:
        raise InvalidAdapter(f"the adapter {error}", param="adapter") from error
    faults = _faults(found, branches)
    if faults:
        raise InvalidAdapter(
            f"the adapter {file} does not fit the model: {'; '.join(faults)}. Use one that was trained "
            "for this model, with all of its tensors.",
            param="adapter",
        )
    return {name: (found[f"{name}.A"], found[f"{name}.B"]) for name in branches}


def rank_of(pairs: Mapping[str, Pair], branches: Mapping[str, Branch]) -> int:
    """The largest rank of any branch, as slots are measured: that of all experts of a token together."""
    return max(a.shape[-2] * branches[name].share for name, (a, _) in pairs.items())


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    known = [path / name for name in _FILES if (path / name).is_file()]
    if known:
        return known[0]
    what = f"holds none of {', '.join(_FILES)}" if path.is_dir() else "does not exist"
    raise InvalidAdapter(f"the adapter {path} {what}; give a folder or file with its weights", param="adapter")


def _tensors(file: Path) -> dict[str, Tensor]:
    if file.suffix in PICKLED:
        return read_pickled(file, inside=_INSIDE)[0]
    with open_files([file]) as stored:
        return {name: stored.read(name).clone() for name in stored.headers}


def _faults(found: Mapping[str, Tensor], branches: Mapping[str, Branch]) -> list[str]:
    wanted = {f"{name}.{side}" for name in branches for side in "AB"}
    misfits = []
    for name, branch in branches.items():
        a, b = found.get(f"{name}.A"), found.get(f"{name}.B")
        if a is not None and b is not None:
            misfits += _misfit(name, branch, a, b)
    missing = [f"missing {name}" for name in sorted(wanted - found.keys())]
    unexpected = [f"unexpected {name}" for name in sorted(found.keys() - wanted)]
    return [*_first(missing), *_first(unexpected), *_first(misfits)]


def _first(faults: list[str]) -> list[str]:
    more = [f"and {len(faults) - LISTED} more like these"] if len(faults) > LISTED else []
    return [*faults[:LISTED], *more]


def _misfit(name: str, branch: Branch, a: Tensor, b: Tensor) -> list[str]:
    outer = (branch.experts,) if branch.experts else ()
    rank = a.shape[-2] if a.dim() >= 2 else 0
    faults = []
    for side, tensor, shape in (("A", a, (*outer, rank, branch.into)), ("B", b, (*outer, branch.out, rank))):
        if tuple(tensor.shape) != shape or not rank:
            said = [*outer, "rank", branch.into] if side == "A" else [*outer, branch.out, rank or "rank"]
            faults.append(f"{name}.{side} has shape {list(tensor.shape)}, expected [{', '.join(map(str, said))}]")
        elif tensor.dtype not in DTYPES:
            dtype = str(tensor.dtype).removeprefix("torch.")
            faults.append(f"{name}.{side} is {dtype}, expected float32, float16 or bfloat16")
        elif not bool(tensor.isfinite().all()):
            faults.append(f"{name}.{side} has values that are not finite")
    if rank * branch.share > MAX_RANK:
        faults.append(f"{name} has rank {rank * branch.share}, the most is {MAX_RANK}")
    return faults
