"""Adapter files to their pairs of matrices: everything is checked before anything is used.

In: a folder or a file (safetensors, or a `.pt` of tensors alone), what the model's branches are, and how its files name
them. Out: for each branch its A and B, whose product is added to what a linear says: y += B (A x). Nothing is scaled:
whoever trained it has folded that in. Everything that does not fit is said in one `InvalidAdapter`. Which adapters a
program may read is its caller's affair: no path here comes from a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from gapless.errors import GaplessError, InvalidAdapter, shown
from gapless.weights.pickled import read_pickled
from gapless.weights.stored import PICKLED, Header, Stored, open_files

MAX_RANK = 64
LISTED = 6
"""How many faults of a kind an error spells out; the rest are counted."""
FLOATS = ("F32", "F16", "BF16")
SCALES = ("alpha", "lora_alpha", "scale", "scaling")
"""What a file may say of a factor. By what is published of these adapters it is folded in, so none is applied."""
NOTES = (*SCALES, "rank", "lora_rank", "r", "step", "steps", "epoch", "name", "version", "format")
"""What a `.pt` may say beside its tensors, as a number or a text."""
FILES = ("adapter.safetensors", "final.safetensors", "final.pt", "adapter.pt")
_INSIDE = "lora_state_dict"
_log = logging.getLogger("gapless.weights")

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
    path: Path, branches: Mapping[str, Branch], canonical: Callable[[Iterable[str]], Mapping[str, str]]
) -> dict[str, Pair]:
    """Read A [rank, into] and B [out, rank] (with experts [experts, ...]) of every branch, on the CPU, in their dtype.

    `canonical` finds `<branch>.A` and `<branch>.B` among the names of a file: those in the file by what they mean. It
    raises `ValueError` with what is wrong. Names, ranks, shapes and dtypes are checked before a number is looked at.
    Raises `InvalidAdapter`.
    """
    file = adapter_file(path)
    with opened(file) as stored:
        try:
            names = canonical(stored.headers)
        except ValueError as error:
            raise InvalidAdapter(f"the adapter {file} {error}", param="adapter") from error
        faults = faults_of({new: stored.headers[old] for new, old in names.items()}, branches)
        if not faults:
            found = {new: stored.read(old).clone() for new, old in names.items()}
            faults = [
                f"{new} has values that are not finite" for new, tensor in found.items() if not tensor.isfinite().all()
            ]
    if faults:
        raise InvalidAdapter(
            f"the adapter {file} does not fit the model: {'; '.join(_first(faults, 3 * LISTED))}. Use one that was "
            "trained for this model, with all of its tensors.",
            param="adapter",
        )
    return {name: (found[f"{name}.A"], found[f"{name}.B"]) for name in branches}


@contextmanager
def opened(file: Path) -> Iterator[Stored]:
    """An adapter's file. Raises `InvalidAdapter` for one that is damaged; logs what a `.pt` says that is not used."""
    try:
        if file.suffix in PICKLED:
            pickled = read_pickled(file, _INSIDE, NOTES, "adapter")
            unused = [f"{name} {shown(value)}" for name, value in pickled.notes.items() if name in SCALES]
            if unused:
                _log.warning("The adapter %s says %s: nothing is scaled by it, see docs/adapters.md.", file, unused[0])
            yield Stored((file,), pickled.headers, (), pickled.tensors.__getitem__)
            return
        with open_files([file]) as stored:
            yield stored
    except InvalidAdapter:
        raise
    except GaplessError as error:
        raise InvalidAdapter(f"the adapter {error}", param="adapter") from error


def rank_of(pairs: Mapping[str, Pair], branches: Mapping[str, Branch]) -> int:
    """The largest rank of any branch, as slots are measured: that of all experts of a token together."""
    return max(a.shape[-2] * branches[name].share for name, (a, _) in pairs.items())


def adapter_file(path: Path) -> Path:
    """The file of an adapter that is a folder or a file. Raises `InvalidAdapter`."""
    remedy = "give a folder or file with its weights"
    try:
        known = [at for at in (path, *(path / name for name in FILES)) if at.is_file()]
        there = "is neither a folder nor a file" if path.exists() else "does not exist"
        what = f"holds none of {', '.join(FILES)}" if path.is_dir() else there
    except OSError as error:  # longer than any path, or behind a locked folder
        said = f"the adapter {shown(str(path))} cannot be looked at ({error.strerror}); {remedy}"
        raise InvalidAdapter(said, param="adapter") from error
    if known:
        return known[0]
    raise InvalidAdapter(f"the adapter {path} {what}; {remedy}", param="adapter")


def faults_of(found: Mapping[str, Header], branches: Mapping[str, Branch]) -> list[str]:
    """Everything that can be told without a tensor being read."""
    wanted = {f"{name}.{side}" for name in branches for side in "AB"}
    misfits = []
    for name, branch in branches.items():
        a, b = found.get(f"{name}.A"), found.get(f"{name}.B")
        if a is not None and b is not None:
            misfits += _misfit(name, branch, a, b)
    missing = [f"missing {name}" for name in sorted(wanted - found.keys())]
    unexpected = [f"unexpected {name}" for name in sorted(found.keys() - wanted)]
    return [*_first(missing), *_first(unexpected), *_first(misfits)]


def _first(faults: list[str], most: int = LISTED) -> list[str]:
    more = [f"and {len(faults) - most} more like these"] if len(faults) > most else []
    return [*faults[:most], *more]


def _misfit(name: str, branch: Branch, a: Header, b: Header) -> list[str]:
    outer = (branch.experts,) if branch.experts else ()
    rank = a.shape[-2] if len(a.shape) >= 2 else 0
    faults = []
    for side, header, shape in (("A", a, (*outer, rank, branch.into)), ("B", b, (*outer, branch.out, rank))):
        if header.shape != shape or not rank:
            said = [*outer, "rank", branch.into] if side == "A" else [*outer, branch.out, rank or "rank"]
            faults.append(f"{name}.{side} has shape {list(header.shape)}, expected [{', '.join(map(str, said))}]")
        elif header.dtype not in FLOATS:
            faults.append(f"{name}.{side} is {header.dtype}, expected {', '.join(FLOATS)}")
    if rank * branch.share > MAX_RANK:
        faults.append(
            f"{name} has rank {rank * branch.share}, the most is {MAX_RANK}: train it with a smaller one, or cut B A "
            "down to its largest singular values"
        )
    return faults
