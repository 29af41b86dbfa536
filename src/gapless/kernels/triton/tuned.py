"""Which table a GPU has for a model's sizes: one that `gapless tune` wrote on it, over the one that comes with gapless.

In: a card and what is to be computed. Out: a `Table`, or None: then Triton's kernels are not used. Files lie in the
user's cache folder, a JSON file for each card and sizes. One that is of other kernels, of another Triton, or no table
at all is passed by, with one warning a process that says what to do.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from gapless.config import tune_folder
from gapless.errors import shown as quoted
from gapless.kernels.triton.choices import Dims
from gapless.kernels.triton.sparse_choices import SparseDims
from gapless.kernels.triton.table import Table, built_in, parse, shown

FORMAT = 1
LONGEST = 2**20
"""Bytes of a file; a whole table has about 8 KB."""
SOURCES = {
    "decode": ("parts_jit.py", "experts_jit.py", "kept_jit.py", "adapters_jit.py", "step_jit.py"),
    "experts": ("experts_jit.py",),
    "sparse": (
        "parts_jit.py",
        "experts_jit.py",
        "kept_jit.py",
        "adapters_jit.py",
        "step_jit.py",
        "sparse_jit.py",
        "lone_jit.py",
        "cut_jit.py",
        "narrow_jit.py",
    ),
}
"""What the tiles of each part were measured with."""
_log = logging.getLogger("gapless.kernels")


@dataclass(frozen=True, slots=True)
class Card:
    """A kind of GPU."""

    name: str
    capability: tuple[int, int]

    @classmethod
    def of(cls, device: torch.device) -> Card:
        """The GPU `device`."""
        return cls(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device))


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is computed: `part` of `SOURCES`, and its dimensions and number format in one word."""

    part: str
    word: str

    @classmethod
    def decode(cls, dims: Dims, dtype: torch.dtype) -> Sizes:
        """Decode steps."""
        numbers = (dims.dim, dims.inner, dims.heads, dims.rotary, dims.vocab)
        return cls("decode", "-".join(("decode", "x".join(map(str, numbers)), str(dtype).removeprefix("torch."))))

    @classmethod
    def sparse(cls, dims: SparseDims, dtype: torch.dtype) -> Sizes:
        """Decode steps with experts in them."""
        numbers = (dims.dim, dims.ff, dims.heads, dims.rotary, dims.vocab, dims.experts, dims.share, dims.expert_inner)
        kind = "float8" if dims.expert_itemsize == 1 else "half"
        return cls("sparse", f"sparse-{'x'.join(map(str, numbers))}-{kind}-{str(dtype).removeprefix('torch.')}")

    @classmethod
    def experts(cls, count: int, width: int, inner: int, kind: str) -> Sizes:
        """Experts: how many, the model's width, theirs, and the kind of their weights."""
        return cls("experts", f"experts-{count}x{width}x{inner}-{kind}")


@dataclass(frozen=True, slots=True)
class Tuned:
    """A file: whose it is, its table, and how it was made. `measured`: microseconds before and after, for people."""

    card: Card
    sizes: Sizes
    table: Table
    when: str
    measured: Mapping[str, Any]


def path_of(card: Card, sizes: Sizes) -> Path:
    """Where its file is, if there is one."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", card.name).strip("-")[:80]
    return Path(tune_folder()) / f"{name}-{sizes.word}.json"


def table_for(card: Card, sizes: Sizes) -> Table | None:
    """The table to use. Says so in the log."""
    usual, own = built_in(card.capability), _own(str(path_of(card, sizes)), card, sizes)
    found = usual if own is None else own if usual is None else own.over(usual)
    if found is None:
        _log.info("no tiles for %s (%s): torch's kernels compute them; see gapless tune", card.name, sizes.word)
    else:
        _log.info("tiles of %s: %s", sizes.word, found.source)
    return found


@cache
def _own(path: str, card: Card, sizes: Sizes) -> Table | None:
    """A file's table; None without one, or if it is not usable, which is said once."""
    try:
        return read(Path(path), card, sizes).table
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s is not used: %s; run `gapless tune` again, or delete it", quoted(path), error)
        return None


def forget() -> None:
    """Look at the files anew from now on."""
    _own.cache_clear()


def read(path: Path, card: Card, sizes: Sizes) -> Tuned:
    """A file that is for this card, these sizes and today's kernels. Raises `OSError`, and `ValueError` that says what
    is wrong."""
    of = _object(path)
    if of.get("format") != FORMAT:
        raise ValueError(f"its format is {quoted(of.get('format'))}, not {FORMAT}")
    wanted = {"gpu": card.name, "capability": "{}.{}".format(*card.capability), "sizes": sizes.word}
    for name, right in {**wanted, "kernels": digest(sizes.part), "triton": _triton()}.items():
        if of.get(name) != right:
            raise ValueError(f"its {name} is {quoted(of.get(name))}, but here it is {right!r}")
    when, measured = of.get("when"), of.get("measured", {})
    if not isinstance(when, str) or not isinstance(measured, dict):
        raise ValueError("when it was made and what was measured is not told as it should be")
    table = parse(of.get("table"), f"tuned on {quoted(when)[1:-1]} for {card.name}, in {path}")
    return Tuned(card, sizes, table, when, measured)


def write(tuned: Tuned, versions: Mapping[str, str]) -> Path:
    """Keep it where `table_for` looks, whole or not at all, whoever else writes it. Returns where. Raises `OSError`."""
    path = path_of(tuned.card, tuned.sizes)
    whole = {
        "format": FORMAT,
        "gpu": tuned.card.name,
        "capability": "{}.{}".format(*tuned.card.capability),
        "sizes": tuned.sizes.word,
        "kernels": digest(tuned.sizes.part),
        "triton": _triton(),
        "versions": dict(versions),
        "when": tuned.when,
        "measured": dict(tuned.measured),
        "table": shown(tuned.table),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        new.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
    forget()
    return path


@cache
def digest(part: str) -> str:
    """Of the kernels' text: tiles that suited others need not suit these."""
    folder = Path(__file__).parent
    return sha256(b"".join((folder / name).read_bytes() for name in SOURCES[part])).hexdigest()[:12]


def merged(tuned: Tuned) -> Tuned:
    """The same over what an earlier run kept for other numbers of rows, if that is of use still."""
    try:
        earlier = read(path_of(tuned.card, tuned.sizes), tuned.card, tuned.sizes)
    except (OSError, ValueError):
        return tuned
    table, measured = tuned.table.over(earlier.table), {**earlier.measured, **tuned.measured}
    return replace(tuned, table=table, measured=measured)


def _object(path: Path) -> dict[str, Any]:
    """A file's JSON object. Raises `OSError`, `ValueError`."""
    with path.open("rb") as file:
        text = file.read(LONGEST + 1)
    if len(text) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST} bytes")
    try:
        found = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is no JSON ({str(error)[:100]})") from error
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"
