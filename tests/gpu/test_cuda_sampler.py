"""Sampling on a GPU: the kernels that end a step in which rows draw do what the plain lines do, to the bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from tests.kernels.drawn_rows import TEMPERATURES, TOP_PS, Scene, logits_of, scene  # noqa: E402

from gapless.device.packet import Asked, Count, Real  # noqa: E402
from gapless.device.rows import RowStore  # noqa: E402
from gapless.device.sampler import _weights, uniform  # noqa: E402
from gapless.device.tail import KINDS, MASKED, Batch, Tail, TailKind  # noqa: E402
from gapless.kernels.triton import sampler_jit  # noqa: E402

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
FULL = [kind for kind in (*KINDS, MASKED) if kind.full]


def kernels():
    found = RowStore(1, 1, GPU).kernels
    assert found is not None, "the kernels are not there"
    return found


def same(of: Scene, kind: TailKind, least: int) -> None:
    mine, plain = of.end(kernels(), kind), of.end(None, kind)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert int((mine[0][:, 4] >= 0).sum()) >= least, "hardly a row moved"


def drawing(of: Scene, temperature: float, top_p: float) -> Scene:
    """The scene with all rows alive, at the beginning of their rules, drawing so, and wanting 20 logprobs."""
    of.store.counts[:, Count.STATE], of.store.counts[1:, Count.DONE] = 0, 0
    of.store.counts[:, Count.LEFT], of.store.counts[:, Count.TOP_LOGPROBS] = 9, 20
    of.store.reals[:, Real.TEMPERATURE], of.store.reals[:, Real.TOP_P] = temperature, top_p
    of.batch.asked[:-2] = Asked.SAMPLE
    return of


@pytest.mark.parametrize("kind", FULL, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("vocab", "rows"), [(64, 14), (2048, 30), (51200, 66), (51201, 26), (151_936, 14)])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_ends_as_the_plain_lines_end_it(seed, vocab, rows, kind):
    same(scene(seed, vocab, rows, GPU), kind, 3)


@pytest.mark.parametrize("temperature", [t for t in (*TEMPERATURES, 1e-4, 1e2) if t])
@pytest.mark.parametrize("top_p", TOP_PS)
def test_any_temperature_and_any_top_p(temperature, top_p):
    same(drawing(scene(1, 51200, 26, GPU), temperature, top_p), TailKind(full=True), 15)


@pytest.mark.parametrize("top_p", [1e-6, 0.2495, 0.5, 1 - 1e-12])
def test_ties_at_the_edge_go_by_id(top_p):
    of = drawing(scene(2, 51200, 14, GPU), 1.0, top_p)
    of.batch.logits.copy_((torch.arange(51200, device=GPU) % 3).float().expand(14, -1))
    of.batch.logits[:6] = 0.0
    of.batch.logits[6] = torch.arange(51200, device=GPU).flip(0) * 2.4e-7 - 3.0
    of.batch.logits[6, 17] = 3.0  # thousands share a bin but for their last bits
    same(of, TailKind(full=True), 12)


def test_a_parked_row():
    of = scene(5, 51200, 5, GPU)
    of.store.counts[of.batch.rows[0], Count.DONE] = 0
    of.batch.asked[0] = Asked.SAMPLE
    same(dataclasses.replace(of, batch=of.batch.first(of.batch.lines[:1])), MASKED, 0)


@triton.jit
def probe(logits, best, temperature, found, VOCAB: tl.constexpr, ONE: tl.constexpr, WIDE: tl.constexpr):
    row, id = tl.program_id(0), tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    logit = tl.load(logits + row * VOCAB + id, mask=id < VOCAB, other=0.0)
    weight = sampler_jit.weighed(logit, tl.load(best + row), tl.load(temperature), ONE)
    tl.store(found + row * VOCAB + id, weight, mask=id < VOCAB)


@triton.jit
def logarithms(given, found, WIDE: tl.constexpr):
    at = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    tl.store(found + at, tl.log(tl.load(given + at)))


@triton.jit
def hashes(seeds, positions, found, WIDE: tl.constexpr):
    at = tl.arange(0, WIDE)
    tl.store(found + at, sampler_jit.uniform(tl.load(seeds + at), tl.load(positions + at)))


@pytest.mark.parametrize("temperature", [1e-3, 0.3, 0.7, 1.0, 17.0])
def test_weights_are_torchs(temperature):
    """What the rest stands on, by itself: so that a difference in an exponential is told from one in a search."""
    g = torch.Generator(GPU).manual_seed(3)
    logits = torch.cat([torch.randn(40, 51200, generator=g, device=GPU) * 6, logits_of(51200, 24, g)[:6]])
    best = logits.amax(1, keepdim=True)
    warm = torch.full((1,), temperature, dtype=torch.float64, device=GPU)
    right = _weights((logits.double() - best.double()) / warm)
    found = torch.empty_like(right)
    probe[(len(logits), 25)](logits, best, warm, found, 51200, 2.0**46, 2048)
    assert torch.equal(found, right), f"{int((found != right).sum())} weights differ"


def test_logarithms_and_the_hash_are_torchs():
    g = torch.Generator(GPU).manual_seed(4)
    given = 1.0 + torch.rand(2**20, generator=g, device=GPU, dtype=torch.float64) ** 3 * 51199
    found = torch.empty_like(given)
    logarithms[(2**10,)](given, found, 2**10)
    assert torch.equal(found, given.log())
    seeds = torch.randint(-(2**62), 2**62, (4096,), generator=g, device=GPU)
    positions = torch.randint(0, 40_000, (4096,), generator=g, device=GPU)
    drawn = torch.empty(4096, dtype=torch.float64, device=GPU)
    hashes[(1,)](seeds, positions, drawn, 4096)
    assert torch.equal(drawn, uniform(seeds, positions))


def test_the_same_bits_every_time():
    """Who arrives first in a bin or a list changes from launch to launch, and nothing else does."""
    of = scene(7, 51200, 66, GPU)
    first = of.end(kernels(), FULL[1])
    for _ in range(100):
        for one, other in zip(first, of.end(kernels(), FULL[1]), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", FULL, ids=lambda kind: kind.name)
def test_a_graph_follows_what_it_is_given(kind):
    """Captured once over one scene's memory and replayed for others': nothing in it depends on a content."""
    at = scene(0, 51200, 26, GPU)
    with torch.inference_mode():
        tail = Tail(at.model, at.table, at.store)
        tail.run(at.batch, kind)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tail.run(at.batch, kind)
    for seed in range(1, 9):
        other = scene(seed, 51200, 26, GPU)
        for name in ("counts", "reals", "pages"):
            getattr(at.store, name).copy_(getattr(other.store, name))
        for name in Batch.__slots__:
            getattr(at.batch, name).copy_(getattr(other.batch, name))
        other.model.drawn = at.model.drawn
        lines, counts, reals = other.end(None, kind)
        graph.replay()
        for one, right in ((at.batch.lines, lines), (at.store.counts, counts), (at.store.reals, reals)):
            torch.testing.assert_close(one, right, rtol=0, atol=0, equal_nan=True)


def test_the_tail_takes_the_kernels(monkeypatch):
    """And without them it would be noticed."""
    taken = []
    of = scene(0, 2048, 14, GPU)
    monkeypatch.setattr(type(kernels()), "full", lambda self, store, rules, end: taken.append(end.masks is not None))
    for kind in (*KINDS, MASKED):
        of.end(kernels(), kind)
    assert taken == [False, False, True]
