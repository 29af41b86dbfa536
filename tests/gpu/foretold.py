"""Greedy answers of a model on a GPU, judged token by token by the same weights in float32 on a CPU.

What flows in: the judge, the table, and what requests were told. What flows out: of every id and value how much less
likely it was than the best one, given what was said before it, as a share of the best one's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tests.fakes.scene import Entry, Heard
from tests.gpu.near_tie import Reader, last_fed
from torch import Tensor

from gapless.constrain.table import Table, Walker
from gapless.models.base import RowAdapters
from gapless.models.moondream.model import Moondream
from gapless.records import Adapter, Request, Token

WORST = 2.0**-3
"""By how much any choice may fall short. bfloat16 alone moves scores by some 2^-6 of their size, a swapped expert or
keys in FP8 by more; a choice among wrong scores falls short by about all of it."""
OTHERS = 1 / 8
"""The share of choices that may be others than the judge's."""


def judge(
    model: Moondream, table: Table, entries: Sequence[Entry], heard: Mapping[int, Heard], rank: int = 0
) -> tuple[int, int, float]:
    """Assert that what was said is what the model, on a CPU, would say, near-ties apart. How many choices there were,
    how many were not the judge's, and by how much the worst one falls short. `rank`: of slots for adapters."""
    short: list[float] = []
    for entry in entries:
        request = entry.request
        adapter = None if request.adapter is None else _slot(model, request.adapter, rank)
        short += shortfalls(Reader(model, adapter), table, request, heard[request.id].tokens)
    others, worst = sum(one > 0 for one in short), max(short)
    told = f"{others} of {len(short)} choices were not the judge's, the worst by {worst:.4f} of its score"
    assert len(short) > len(entries) and worst <= WORST and others <= OTHERS * len(short), told
    return len(short), others, worst


@torch.inference_mode()
def shortfalls(reader: Reader, table: Table, request: Request, said: Sequence[Token]) -> list[float]:
    """Of each id, and of each value: the best score less its own, over the best one's magnitude."""
    region, sampling, found = reader.model.region, request.sampling, []
    hidden = last_fed(reader.model, request, said[:-1], reader.adapters)[-len(said) :]
    walker = Walker.start(table, request.program, sampling.max_tokens, sampling.max_objects)
    for token, state in zip(said, hidden.split(1), strict=True):
        allowed = torch.from_numpy(walker.mask().copy())
        scores = reader.model.logits(state)[0].float().masked_fill(~allowed, -torch.inf)
        found.append(_shortfall(scores, token.id))
        if len(token.values) == 1:
            bins = region.coord_scores(state).float()
            says = region.kernels.coord_of_bin(torch.arange(bins.shape[1]), bins.shape[1])
            found.append(_shortfall(bins[0], _nearest(says, token.values[0])))
        elif token.values:
            bins = region.size_scores(state)[0].float()
            says = region.size_of_bin(torch.arange(bins.shape[1]), bins.shape[1])
            found += [_shortfall(own, _nearest(says, value)) for own, value in zip(bins, token.values, strict=True)]
        walker.advance(token.id)
    return found


def _shortfall(scores: Tensor, chosen: int) -> float:
    best = scores.max()
    return float((best - scores[chosen]) / best.abs())


def _nearest(says: Tensor, value: float) -> int:
    """The bin that says a value."""
    bin = int((says - value).abs().argmin())
    assert abs(float(says[bin]) - value) < 1e-6, f"no bin says {value}"
    return bin


def _slot(model: Moondream, adapter: Adapter, rank: int) -> RowAdapters:
    """An adapter alone."""
    bank = model.new_adapters(2, rank)
    bank.load(1, adapter.weights)
    return RowAdapters(bank, torch.tensor([1]))
