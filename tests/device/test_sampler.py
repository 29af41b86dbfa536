"""The sampler: what it chooses, that a row depends on itself alone, and that odd numbers harm nobody else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.device.sampler import Draws, Params, sample, sample_rows, signed, uniform

M64 = 2**64 - 1
repeatable = settings(derandomize=True, deadline=None, max_examples=40)


def params(temperature, top_p, seed, position, scored=None) -> Params:
    n = len(temperature)
    wanted = dict([(i, 20) for i in range(n)] if scored is None else scored)
    return Params(
        torch.tensor(temperature, dtype=torch.float64),
        torch.tensor(top_p, dtype=torch.float64),
        torch.tensor([signed(s) for s in seed], dtype=torch.int64),
        torch.tensor(position, dtype=torch.int64),
        torch.tensor([wanted.get(i, -1) for i in range(n)]),
        drawn=any(t > 0 for t in temperature),
        scored=bool(wanted),
    )


def row_of(draws: Draws, i: int) -> list[torch.Tensor]:
    return [getattr(draws, name)[i] for name in Draws.__slots__]


def open_mask(logits: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(logits, dtype=torch.bool)


def splitmix(seed: int, position: int) -> float:
    """The documented hash in Python's own integers."""

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    return (mix((mix((seed + golden) & M64) + golden * (position + 1)) & M64) >> 11) * 2.0**-53


@repeatable
@given(st.lists(st.tuples(st.integers(0, M64), st.integers(0, 40_000)), min_size=1, max_size=20))
def test_uniform_is_the_documented_hash(pairs):
    seeds = torch.tensor([signed(s) for s, _ in pairs])
    got = uniform(seeds, torch.tensor([p for _, p in pairs]))
    assert got.tolist() == [splitmix(s, p) for s, p in pairs]


def test_uniform_is_flat_and_uncorrelated():
    position = torch.arange(20_000)
    for seed in (0, 1, 12345):
        u = uniform(torch.full_like(position, seed), position)
        counts = torch.histc(u, 50, 0, 1)
        chi = float(((counts - 400) ** 2 / 400).sum())
        assert 22 < chi < 90, chi  # 49 degrees of freedom, both tails below 0.1 %
        assert abs(float(torch.corrcoef(torch.stack([u[:-1], u[1:]]))[0, 1])) < 0.03
    neighbours = torch.stack([uniform(torch.full_like(position, s), position) for s in (7, 8)])
    assert abs(float(torch.corrcoef(neighbours)[0, 1])) < 0.03


@repeatable
@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([3, 64, 101]))
def test_temperature_zero_is_the_first_largest_allowed_id(seed, batch, vocab):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.integers(-3, 4, (batch, vocab)).astype(np.float32))  # many ties
    mask = torch.from_numpy(rng.random((batch, vocab)) < 0.5)
    mask[:, vocab // 2] = True
    draws = sample_rows(logits, mask, params([0.0] * batch, [1.0] * batch, [0] * batch, [5] * batch))
    for i in range(batch):
        allowed = [float(x) if ok else -math.inf for x, ok in zip(logits[i], mask[i], strict=True)]
        assert int(draws.token[i]) == allowed.index(max(allowed))
    assert bool(draws.finite.all())


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.8), (1.0, 0.35)])
def test_draws_follow_the_distribution(temperature, top_p):
    torch.manual_seed(3)
    logits = torch.randn(12) * 1.5
    n = 8000
    mask = torch.ones(12, dtype=torch.bool)
    mask[[2, 7]] = False
    position = list(range(n))
    draws = sample_rows(
        logits.expand(n, 12), mask.expand(n, 12), params([temperature] * n, [top_p] * n, [99] * n, position, [])
    )
    weights = np.where(mask.numpy(), np.exp(logits.numpy().astype(float) / temperature), 0)
    probability = nucleus_oracle(weights / weights.sum(), top_p)
    counts = np.bincount(draws.token.numpy(), minlength=12)
    assert counts[probability == 0].sum() == 0
    expected = n * probability[probability > 0]
    chi = float(((counts[probability > 0] - expected) ** 2 / expected).sum())
    assert chi < 35, chi  # at most 9 degrees of freedom: p < 1e-4 beyond


def nucleus_oracle(probability: np.ndarray, top_p: float) -> np.ndarray:
    """Keep ids while what came before them, most likely first, is at most top_p; renormalised."""
    kept, before = np.zeros_like(probability), 0.0
    for i in sorted(range(len(probability)), key=lambda i: (-probability[i], i)):
        if before > top_p:
            break
        kept[i] = probability[i]
        before += probability[i]
    return kept / kept.sum()


@repeatable
@given(st.integers(0, 10_000), st.sampled_from([1e-9, 0.01, 0.3, 0.5, 0.9, 0.999]), st.sampled_from([0.3, 1.0, 3.0]))
def test_top_p_reaches_exactly_the_set_of_a_sort(seed, top_p, temperature):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=9).astype(np.float32)
    logits[4] = logits[1]  # a tie: the smaller id comes first
    exact = np.exp((logits.astype(float) - logits.max()) / temperature)
    kept = set(np.flatnonzero(nucleus_oracle(exact / exact.sum(), top_p)))
    n = 3000
    batch = torch.from_numpy(logits).expand(n, 9)
    drawn = sample_rows(batch, open_mask(batch), params([temperature] * n, [top_p] * n, [seed] * n, list(range(n)), []))
    seen = set(drawn.token.tolist())
    assert seen <= kept
    probability = nucleus_oracle(exact / exact.sum(), top_p)
    assert all(i in seen for i in kept if probability[i] > 0.01)


def test_ties_at_the_edge_of_top_p_go_to_the_smaller_ids():
    logits = torch.zeros(3000, 1000)
    args = ([1.0] * 3000, [0.2495] * 3000, [1] * 3000, list(range(3000)), [])
    seen = set(sample_rows(logits, open_mask(logits), params(*args)).token.tolist())
    assert max(seen) == 249  # 250 ids of 0.001 each: before the last of them come 0.249, before the next 0.25
    assert len(seen) == 250


@repeatable
@given(st.integers(0, 10_000), st.sampled_from([7, 64, 2053]), st.integers(2, 17))
def test_a_row_does_not_depend_on_its_neighbours(seed, vocab, batch):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 4, (batch, vocab)).astype(np.float32))
    mask = torch.from_numpy(rng.random((batch, vocab)) < 0.8)
    mask[:, 0] = True
    temperature = rng.choice([0.0, 0.3, 1.0, 5.0], batch).tolist()
    top_p = rng.choice([1.0, 0.9, 0.2], batch).tolist()
    seeds, position = rng.integers(0, 2**62, batch).tolist(), rng.integers(0, 4000, batch).tolist()
    draws = sample_rows(logits, mask, params(temperature, top_p, seeds, position))
    for i in range(batch):
        alone = sample_rows(
            logits[i : i + 1].clone(), mask[i : i + 1], params([temperature[i]], [top_p[i]], [seeds[i]], [position[i]])
        )
        assert all(torch.equal(a, b) for a, b in zip(row_of(draws, i), row_of(alone, 0), strict=True))
        choice = sample(logits[i], mask[i], temperature[i], top_p[i], seeds[i], position[i])
        assert choice is not None
        assert choice.token == int(draws.token[i])
        assert choice.logprob == float(draws.logprob[i])


def test_large_vocabulary_rows_are_independent_of_threads_and_batch():
    torch.manual_seed(0)
    logits = torch.randn(5, 51200) * 3
    args = ([0.7] * 5, [0.9] * 5, [1, 2, 3, 4, 5], [730] * 5)
    together = sample_rows(logits, open_mask(logits), params(*args))
    for i in range(5):
        alone = sample_rows(logits[i : i + 1].clone(), open_mask(logits[:1]), params(*([a[i]] for a in args)))
        assert all(torch.equal(a, b) for a, b in zip(row_of(together, i), row_of(alone, 0), strict=True))


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("top_p", [1e-9, 1e-3, 0.5, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e38])
def test_extreme_parameters_give_allowed_tokens(temperature, top_p, scale):
    torch.manual_seed(1)
    logits = torch.randn(64, 33).clamp(-3, 3) * scale
    mask = torch.rand(64, 33) < 0.5
    mask[:, 9] = True
    draws = sample_rows(logits, mask, params([temperature] * 64, [top_p] * 64, [4] * 64, list(range(64))))
    assert bool(draws.finite.all())
    assert bool(mask.gather(1, draws.token[:, None]).all())
    assert bool(torch.isfinite(draws.logprob).all()) or scale == 1e38
    if temperature == 1e-6 and scale >= 1.0:
        assert torch.equal(draws.token, torch.where(mask, logits, -math.inf).argmax(1))
    if temperature == 1e6 and top_p == 1.0 and scale == 1.0:
        assert len(set(draws.token.tolist())) > 15  # all but uniform
    if top_p == 1e-9:
        assert torch.equal(draws.token, torch.where(mask, logits, -math.inf).argmax(1))


def test_logprobs_are_those_of_the_masked_distribution_without_temperature_and_top_p():
    torch.manual_seed(2)
    logits = torch.randn(40)
    logits[11] = logits[5] = 4.0  # a tie at the top
    mask = torch.rand(40) < 0.7
    mask[[5, 11]] = True
    choice = sample(logits, mask, 0.4, 0.5, 17, 800)
    want = torch.log_softmax(torch.where(mask, logits, -math.inf).double(), 0)
    assert choice is not None
    assert choice.logprob == pytest.approx(float(want[choice.token]), abs=1e-12)
    order = sorted(range(40), key=lambda i: (-float(want[i]), i))[:20]
    assert [i for i, _ in choice.top] == order
    assert choice.top[0][0] == 5
    assert [p for _, p in choice.top] == pytest.approx([float(want[i]) for i in order], abs=1e-12)


def test_alternatives_stop_at_what_was_asked_and_at_what_is_allowed():
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]] * 3)
    mask = torch.tensor([[True] * 4, [True] * 4, [False, True, True, False]])
    draws = sample_rows(logits, mask, params([0.0] * 3, [1.0] * 3, [0] * 3, [0] * 3, [(0, 2), (2, 20)]))
    assert draws.top_ids[0].tolist() == [3, 2] + [-1] * 18
    assert draws.top_ids[1].tolist() == [-1] * 20
    assert draws.top_ids[2].tolist() == [2, 1] + [-1] * 18
    assert float(draws.logprob[1]) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nonfinite_logits_flag_their_row_only(bad, temperature):
    """S-NUM-01: one row of NaN, inf or nothing but -inf; the other rows are what they would have been."""
    torch.manual_seed(5)
    logits = torch.randn(4, 30)
    clean = sample_rows(logits, open_mask(logits), params([temperature] * 4, [0.9] * 4, [1, 2, 3, 4], [9] * 4))
    logits[1, 12] = bad
    logits[2, :] = -math.inf
    got = sample_rows(logits, open_mask(logits), params([temperature] * 4, [0.9] * 4, [1, 2, 3, 4], [9] * 4))
    assert got.finite.tolist() == [True, False, False, True]
    for i in (0, 3):
        assert all(torch.equal(a, b) for a, b in zip(row_of(clean, i), row_of(got, i), strict=True))
    assert sample(logits[1], open_mask(logits[1]), temperature, 1.0, 1, 9) is None
    assert sample(logits[2], open_mask(logits[2]), temperature, 1.0, 1, 9) is None


def test_a_nonfinite_logit_counts_even_where_the_mask_forbids_it():
    logits = torch.zeros(8)
    logits[3] = math.nan
    mask = torch.ones(8, dtype=torch.bool)
    mask[3] = False
    assert sample(logits, mask, 0.0, 1.0, 0, 0) is None


def test_minus_infinity_among_finite_logits_is_an_impossible_token():
    """S-NUM-03: suppressed ids in a batch that mixes greedy and sampled rows make no NaN."""
    logits = torch.full((3, 10), -math.inf)
    logits[:, 4], logits[:, 7] = 1.0, 2.0
    draws = sample_rows(logits, open_mask(logits), params([0.0, 1.0, 1e-6], [1.0, 0.9, 1.0], [1, 2, 3], [4] * 3))
    assert draws.finite.tolist() == [True] * 3
    assert int(draws.token[0]) == 7
    assert int(draws.token[1]) in (4, 7)
    assert int(draws.token[2]) == 7
    assert not bool(torch.isnan(draws.logprob).any())
    assert draws.top_ids[0, :3].tolist() == [7, 4, -1]


def test_no_allowed_finite_logit_flags_the_row():
    logits = torch.tensor([1.0, -math.inf, 2.0])
    assert sample(logits, torch.tensor([False, True, False]), 1.0, 1.0, 0, 0) is None
    assert sample(logits, torch.tensor([False, False, False]), 0.0, 1.0, 0, 0) is None


def test_a_seed_repeats_whatever_ran_in_between():
    """S-NUM-04: no generator is shared; other traffic, and torch's own seed, change nothing."""
    logits = torch.linspace(-1, 1, 50)
    mask = open_mask(logits)
    first = [sample(logits, mask, 1.0, 0.95, 42, p) for p in range(30)]
    torch.manual_seed(123)
    torch.rand(1000)
    for p in range(30):
        sample(logits, mask, 1.0, 0.95, 43, p)
    again = [sample(logits, mask, 1.0, 0.95, 42, p) for p in range(30)]
    other = [sample(logits, mask, 1.0, 0.95, 43, p) for p in range(30)]
    assert first == again
    assert first != other
    assert len({c.token for c in first if c}) > 10


@pytest.mark.parametrize(
    ("logits", "top_p", "stay"),
    [
        ([0.0] * 4, 0.5, {0, 1, 2}),
        ([0.0] * 4, 0.5 - 2**-30, {0, 1}),
        ([-0.0, 0.0, 0.0], 1e-9, {0}),
        ([0.0, -0.0], 0.5, {0, 1}),
    ],
    ids=["an id that begins at the edge stays", "and none behind it", "zeros are one", "of either sign"],
)
def test_what_stays_within_top_p(logits, top_p, stay):
    given, mask = torch.tensor(logits), torch.ones(len(logits), dtype=torch.bool)
    found = {sample(given, mask, 1.0, top_p, seed, 7, -1).token for seed in range(60)}
    assert found == stay
