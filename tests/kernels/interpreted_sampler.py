"""Run by itself, with TRITON_INTERPRET=1: the kernels that end a step, on the CPU, against the plain lines, to the bit.

Numpy's exponential and logarithm, which the interpreter has, stand in for torch's: the last bit may be another one.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tests.fakes.drawn_tables import drawn_table
from tests.kernels.drawn_rows import Scene, scene
from torch import Tensor

from gapless.device.grammars import DeviceGrammars, packed
from gapless.device.packet import Asked, Count, Real
from gapless.device.quick_rows import COLUMNS, MARKS
from gapless.device.sampler import uniform
from gapless.device.tail import KINDS, MASKED, RULED, TailKind
from gapless.kernels.triton import nucleus_jit, sampler_jit
from gapless.kernels.triton.rows import TritonRows
from gapless.records import DeviceLimits, GrammarLoad, TokenTable
from gapless.token_table import END, FORBIDDEN

CPU = torch.device("cpu")
KERNELS = TritonRows(COLUMNS, MARKS)
FULL = [kind for kind in (*KINDS, MASKED) if kind.full]


@pytest.fixture(autouse=True)
def numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "exp", lambda x: torch.from_numpy(np.exp(x.numpy())))
    monkeypatch.setattr(Tensor, "log", lambda x: torch.from_numpy(np.log(x.numpy())))


def same(of: Scene, kind: TailKind) -> Tensor:
    """The lines, which must be the same either way, as must be all that is known of the rows."""
    mine, plain = of.end(KERNELS, kind), of.end(None, kind)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return mine[0]


@pytest.mark.parametrize(
    ("seed", "vocab", "rows", "kind"),
    [
        (0, 64, 14, FULL[0]),
        (1, 64, 14, MASKED),
        (3, 64, 14, KINDS[1]),
        (5, 64, 26, RULED[0]),
        (6, 64, 26, RULED[2]),
        *(pytest.param(2, 3000, 26, kind, marks=pytest.mark.slow) for kind in (*FULL, *RULED)),
    ],
)
def test_a_step_ends_as_the_plain_lines_end_it(seed: int, vocab: int, rows: int, kind: TailKind) -> None:
    lines = same(scene(seed, vocab, rows, CPU), kind)
    assert int((lines[:, 4] >= 0).sum()) >= 4, "hardly a row moved"


def test_rules_move_rows_on_and_forbid_what_leaves_no_room() -> None:
    of = scene(7, 64, 40, CPU)
    of.store.counts[:, Count.STATE], of.store.counts[1:, Count.DONE] = 0, 0
    of.batch.asked[:-2] = Asked.SAMPLE
    lines, counts, _ = of.end(KERNELS, RULED[0])
    mine, spans = of.store.counts, of.grammars.all.spans
    ruled = [row for row in of.batch.rows.tolist() if mine[row, Count.GRAMMAR] and counts[row, Count.TOKEN] > 0]
    moved = sum(int(counts[row, Count.GRAMMAR_STATE] != mine[row, Count.GRAMMAR_STATE]) for row in ruled)
    assert len(ruled) > 8 and moved > 4
    assert bool((counts[:, Count.GRAMMAR_STATE] < spans[counts[:, Count.GRAMMAR], 2].clamp(min=1)).all())
    assert int((lines[:, 4] >= 0).sum()) > 12


def test_rows_keep_to_what_their_table_leaves_room_for_however_many_kinds_it_has() -> None:
    """Every state of a table whose classes have high numbers, one state that it lacks, and every number of tokens."""
    drawn, between = drawn_table(5, 64, 9, 6), 33_000
    gap = np.full((drawn.states, between), FORBIDDEN, np.int16)
    following = np.concatenate([drawn.following[:, :2], gap, drawn.following[:, 2:]], axis=1)
    classes = np.where(drawn.classes > END, drawn.classes + between, drawn.classes).astype(np.uint16)
    table = TokenTable(classes, following, drawn.distance, drawn.forced)
    of, places = scene(7, 64, 40, CPU), [(s, n) for s in (*range(9), 20_000) for n in range(1, 6)]
    limits = DeviceLimits(2, 2, 4, 8, 1, 1, 64, grammars=1, grammar_numbers=table.numbers + 3)
    of.grammars = DeviceGrammars(limits, of.table, CPU)
    of.grammars.load(1, 3, torch.from_numpy(packed(GrammarLoad(table, 3))))
    counts, moved = of.store.counts, 0
    counts[:, Count.STATE], counts[1:, Count.DONE], counts[1:, Count.GRAMMAR] = 0, 0, 1
    of.batch.asked[:-2] = Asked.SAMPLE
    for first in range(0, len(places), 25):
        for row, (state, left) in zip(of.batch.rows[:-2].tolist(), places[first : first + 38], strict=False):
            counts[row, Count.GRAMMAR_STATE], counts[row, Count.LEFT] = state, left
        moved += int((same(of, RULED[0])[:, 4] >= 0).sum())
    assert moved > 50


def alone(logits: Tensor, temperature: float, top_p: float, seed: int) -> Tensor:
    """The lines of three rows with these logits, who all draw and want three logprobs."""
    of = scene(seed, logits.shape[0], 5, CPU)
    of.store.counts[:, Count.STATE], of.store.counts[:, Count.DONE] = 0, 0
    of.store.counts[:, Count.TOP_LOGPROBS] = 3
    of.store.reals[:, Real.TEMPERATURE], of.store.reals[:, Real.TOP_P] = temperature, top_p
    of.batch.asked[:3] = Asked.SAMPLE
    of.batch.logits[:3] = logits
    return same(of, TailKind(full=True))[:3]


@pytest.mark.parametrize("top_p", [0.2495, *(pytest.param(p, marks=pytest.mark.slow) for p in (1e-6, 0.5, 1 - 1e-12))])
def test_ties_at_the_edge_go_by_id(top_p: float) -> None:
    lines = alone(torch.zeros(2500), 1.0, top_p, 3)
    assert int(lines[:, 4].max()) <= top_p * 2500 + 1
    assert torch.equal(lines[0, 8:12], torch.tensor([0.0, 1.0, 2.0, -1.0]).double())
    alone(torch.arange(2500) % 3 * 1.0, 1.0, top_p, 4)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1e-6, 0.3, 1e3])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 20.0])
def test_any_temperature(temperature: float, spread: float) -> None:
    logits = torch.randn(2100, generator=torch.Generator().manual_seed(5)) * spread
    for top_p in (0.3, 0.95):
        lines = alone(logits, temperature, top_p, 6)
        assert temperature > 1e-3 or bool((lines[:, 4] == int(logits.argmax())).all())


@pytest.mark.slow
def test_a_bin_may_be_long() -> None:
    """One likely id, and thousands that share a bin but for their last bits: the list is looked at in pieces."""
    logits = torch.zeros(3000) - 3.0 + torch.arange(3000).flip(0) * 2.4e-7
    logits[17] = 3.0
    alone(logits, 1.0, 0.6, 7)


@triton.jit
def hashes(seeds, positions, out, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(out + at, sampler_jit.uniform(tl.load(seeds + at), tl.load(positions + at)))


def test_the_hash_is_the_same() -> None:
    g = torch.Generator().manual_seed(8)
    seeds = torch.randint(-(2**63), 2**63 - 1, (64,), generator=g)
    positions = torch.randint(0, 40_000, (64,), generator=g)
    out = torch.empty(64, dtype=torch.float64)
    hashes[(1,)](seeds, positions, out, 64)
    assert torch.equal(out, uniform(seeds, positions))


@triton.jit
def lots(logits, weights, listed, longs, draws, out):
    at = tl.program_id(0)
    u = tl.load(draws + at)
    tl.store(out + at, nucleus_jit.drawn(logits, weights, listed, longs, 0, 1.0 + u * 0, u, 8, 4, 2, 2, 16, 16))


def test_a_draw_at_a_border_goes_to_the_id_behind_it() -> None:
    """Weights 0 1 1 0 | 0 2 0 0 in parts of four: what is drawn is a multiple of a quarter, or just less."""
    weights = torch.tensor([0, 1, 1, 0, 0, 2, 0, 0]) * 2**40
    logits = torch.where(weights > 0, weights.double().log2(), -torch.inf).float()
    draws = torch.tensor([0.0, 0.25, 0.5, 0.75, *(x - 2**-53 for x in (0.25, 0.5, 1.0))], dtype=torch.float64)
    longs = torch.tensor([2**41, 2**41])
    out = torch.empty(7, dtype=torch.int64)
    lots[(7,)](logits, weights, torch.zeros(8, dtype=torch.int32), longs, draws, out)
    assert out.tolist() == [1, 2, 5, 5, 1, 2, 5]
