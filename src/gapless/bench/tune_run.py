"""One run of `gapless tune`: which tiles a model's kernels use best on this GPU, kept where the engine looks.

In: a decoder's config, a GPU, batch sizes. Out: a report, and the files that `kernels.triton.tuned` reads. What there
is already, from an earlier run or from the package, is where the search begins, so nothing becomes slower than it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, TypeVar

import torch

from gapless import __version__
from gapless.bench import tune_experts, tune_menu, tune_sparse, tune_sparse_menu
from gapless.bench.text import rounded
from gapless.bench.tune import Found, Search, Steps, Tell, Trial
from gapless.bench.tune_trial import DenseTrial
from gapless.config import usable_cores
from gapless.errors import NotEnoughMemory
from gapless.kernels.triton import experts, sparse_choices, tuned
from gapless.kernels.triton.choices import Choice, Dims, Gpu, choice
from gapless.kernels.triton.compiling import Compilers
from gapless.kernels.triton.offer import gpu_of, sparse_gpu
from gapless.kernels.triton.sparse_choices import Sparse, SparseDims
from gapless.kernels.triton.table import KINDS, Table, built_in, capabilities, shown
from gapless.kernels.triton.tiles import ROWS, Tiles, tiles_of
from gapless.kernels.triton.tuned import Card, Sizes, Tuned
from gapless.models.moondream.config import MoeConfig, TextConfig
from gapless.models.registry import DTYPES

C = TypeVar("C")
MOST_PROCESSES = 16
STEPS_SHARE = 0.8
"""Of the time, for steps; the rest is for the experts of prompts."""
_log = logging.getLogger("gapless.tune")


@dataclass(frozen=True, slots=True)
class Tuning:
    """What is to be tuned, and for how many seconds at most."""

    text: TextConfig
    dtype: torch.dtype
    device: torch.device
    rows: Sequence[int]
    seconds: float
    kinds: Sequence[str] = tuple(KINDS)
    """Of experts' weights."""

    @classmethod
    def of(
        cls,
        text: TextConfig,
        dtype: str,
        device: str,
        rows: Sequence[int],
        seconds: float,
        kinds: Sequence[str] = tuple(KINDS),
    ) -> Tuning:
        """The same, of names: a number format and "cuda:N"."""
        return cls(text, DTYPES[dtype], torch.device(device), rows, seconds, kinds)

    def run(self, tell: Tell) -> dict[str, Any]:
        """Search, keep what was found, and return the report. Raises `ValueError` for sizes that no kernel takes."""
        ends, card, moe = perf_counter() + self.seconds, Card.of(self.device), self.text.moe
        if moe is None:
            parts = [self._decode(card, ends, tell)]
        else:
            parts = [self._sparse(card, moe, kind, self._until(ends, kind), tell) for kind in self.kinds]
            parts += [self._experts(card, moe, kind, ends, tell) for kind in self.kinds]
        return {
            "gpu": card.name,
            "capability": "{}.{}".format(*card.capability),
            "versions": versions(),
            "parts": parts,
        }

    def _until(self, ends: float, kind: str) -> float:
        """When steps with that kind of experts have had their share of the time: most of it is theirs, equally."""
        left = len(self.kinds) - list(self.kinds).index(kind)
        return perf_counter() + STEPS_SHARE * (ends - perf_counter()) / left

    def _decode(self, card: Card, ends: float, tell: Tell) -> dict[str, Any]:
        dims, sizes = dims_of(self.text), Sizes.decode(dims_of(self.text), self.dtype)
        table = tuned.table_for(card, sizes) or nearest(card)
        gpu = gpu_of(self.device, table)
        compilers = Compilers(min(usable_cores(), MOST_PROCESSES))
        try:
            trial = DenseTrial(dims, self.dtype, self.device, gpu, compilers, self.rows)
            steps = decode_steps(dims, self.dtype.itemsize, gpu, self.rows)
            found = _searched(Search(trial, steps, ends - perf_counter(), tell))
        finally:
            compilers.close()
        made = Table({rows: best.choice for rows, best in found.items()}, {}, table.source)
        return _kept(card, sizes, made, table.source, self.rows, found)

    def _sparse(self, card: Card, moe: MoeConfig, kind: str, ends: float, tell: Tell) -> dict[str, Any]:
        dims = sparse_dims_of(self.text, moe, kind)
        sizes, gpu = Sizes.sparse(dims, self.dtype), sparse_gpu(self.device)
        known = tuned.table_for(card, sizes)
        own = sparse_choices.Own({} if known is None else known.sparse)
        began = known.source if known is not None and known.sparse else "built in for experts"
        steps = sparse_steps(dims, self.dtype.itemsize, gpu, own, self.rows)
        compilers = Compilers(min(usable_cores(), MOST_PROCESSES))
        try:
            trial = tune_sparse.SparseTrial(dims, self.dtype, self.device, gpu, compilers, self.rows)
            found = _searched(Search(trial, steps, ends - perf_counter(), tell))
        finally:
            compilers.close()
        made = Table({}, {}, began, {rows: best.choice for rows, best in found.items()})
        return _kept(card, sizes, made, began, self.rows, found)

    def _experts(self, card: Card, moe: MoeConfig, kind: str, ends: float, tell: Tell) -> dict[str, Any]:
        size, dim = KINDS[kind], self.text.dim
        sizes = Sizes.experts(moe.num_experts, dim, moe.expert_inner_dim, kind)
        table, shared = tuned.table_for(card, sizes) or nearest(card), experts.shared_memory(self.device)
        trial: Trial[Tiles] = tune_experts.ExpertsTrial(dim, moe, kind, self.dtype, self.device)
        start = {rows: tiles_of(rows, size, shared, table.experts) for rows in ROWS}

        def offered(part: str, now: Tiles, rows: int) -> list[Tiles]:
            return tune_experts.menu(part, now, rows, size, shared)

        steps = Steps(tune_experts.PARTS, start, offered)
        found = _searched(Search(trial, steps, ends - perf_counter(), tell))
        made = Table({}, {size: {rows: best.choice for rows, best in found.items()}}, table.source)
        return _kept(card, sizes, made, table.source, ROWS, found)


def _searched(search: Search[C]) -> Mapping[int, Found[C]]:
    """What a search finds before anything fails on the GPU. Raises `NotEnoughMemory`, and what it raised if it found
    nothing."""
    try:
        search.run()
    except (ValueError, RuntimeError) as error:
        if not search.found:
            if isinstance(error, torch.OutOfMemoryError):
                raise NotEnoughMemory(
                    f"the GPU's memory does not do for trials of full size ({str(error)[:200]}); free some, or give "
                    "fewer --rows",
                    param="rows",
                ) from error
            raise
        _log.warning("the search ended early: %s", str(error).strip()[:300])
    return search.found


def _kept(
    card: Card, sizes: Sizes, made: Table, began: str, rows: Sequence[int], found: Mapping[int, Found[C]]
) -> dict[str, Any]:
    """Write the file, and say what is in it."""
    told = [as_row(count, best) for count, best in found.items()]
    measured = {str(row["rows"]): {name: row[name] for name in ("before_us", "after_us")} for row in told}
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    whole = tuned.merged(Tuned(card, sizes, made, when, measured))
    path = tuned.write(whole, versions()) if found else None
    return {
        "sizes": sizes.word,
        "began_from": began,
        "when": when,
        "rows": told,
        "left_out": [count for count in rows if count not in found],
        "table": shown(made),
        "file": None if path is None else str(path),
    }


def dims_of(text: TextConfig) -> Dims:
    """A decoder's sizes as decode steps need them."""
    return Dims(text.dim, text.ff_dim, text.n_heads, text.rotary_dims, text.vocab_size)


def sparse_dims_of(text: TextConfig, moe: MoeConfig, kind: str) -> SparseDims:
    """The same for a decoder with experts whose weights are of that kind."""
    ff = text.ff_dim if moe.start_layer else 0
    numbers = (text.dim, ff, text.n_heads, text.rotary_dims, text.vocab_size)
    return SparseDims(*numbers, moe.num_experts, moe.experts_per_token, moe.expert_inner_dim, KINDS[kind])


def sparse_steps(
    dims: SparseDims, itemsize: int, gpu: Gpu, own: sparse_choices.Own, rows: Sequence[int]
) -> Steps[Sparse]:
    """What is searched for steps with experts. Raises `ValueError` for sizes that the kernels do not take."""
    start = {count: sparse_choices.choice(dims, count, itemsize, gpu, own) for count in rows}
    known = {count: tiles for count, tiles in start.items() if tiles is not None}
    if len(known) < len(start):
        raise ValueError(f"these kernels do not take the sizes of this model: {dims}")

    def offered(part: str, now: Sparse, rows: int) -> list[Sparse]:
        return tune_sparse_menu.menu(part, now, rows, dims, itemsize, gpu)

    return Steps(tune_sparse_menu.PARTS, known, offered)


def decode_steps(dims: Dims, itemsize: int, gpu: Gpu, rows: Sequence[int]) -> Steps[Choice]:
    """What is searched for decode steps. Raises `ValueError` for sizes that the kernels do not take."""
    start = {count: choice(dims, count, itemsize, gpu) for count in rows}
    known = {count: tiles for count, tiles in start.items() if tiles is not None}
    if len(known) < len(start):
        raise ValueError(f"these kernels do not take the sizes of this model: {dims}")
    return Steps(tune_menu.PARTS, known, _offering(dims, itemsize, gpu))


def _offering(dims: Dims, itemsize: int, gpu: Gpu) -> Callable[[str, Choice, int], list[Choice]]:
    def offered(part: str, now: Choice, rows: int) -> list[Choice]:
        return tune_menu.menu(part, now, rows, dims, itemsize, gpu)

    return offered


def nearest(card: Card) -> Table:
    """Where the search begins on a card that no table was made for: the newest one that is not newer."""
    older = [capability for capability in capabilities() if capability <= card.capability]
    found = built_in(max(older, default=min(capabilities())))
    assert found is not None
    return found


def as_row(rows: int, best: Found[C]) -> dict[str, Any]:
    """For the report."""
    return {
        "rows": rows,
        "before_us": rounded(best.before),
        "after_us": rounded(best.after),
        "gain": rounded(1 - best.after / best.before),
        "tried": best.tried,
        "wrong": best.wrong,
        "whole": best.whole,
    }


def versions() -> dict[str, str]:
    """Of what the times depend on."""
    return {"gapless": __version__, "torch": torch.__version__, "cuda": torch.version.cuda or "none"}
