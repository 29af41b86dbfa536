"""The documented sampling formula, one row at a time in plain numpy: the fakes' own, to hold the device's against.

What flows in: float32 scores [vocab], a mask, a row's settings. What flows out: one choice with its log-probability
under the masked distribution, temperature and top-p left out. Temperature 0 is argmax; else the inverse CDF in id
order at a uniform number that is a hash of (seed, position). Invariant: depends on nothing but its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gapless.records import Mask

U64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Choice:
    """A sampled id with its log-probability, and the best alternatives (id, log-probability), best first."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def draw(
    scores: npt.NDArray[np.float32], mask: Mask, temperature: float, top_p: float, seed: int, position: int, top: int
) -> Choice:
    """Sample one id. Ties go to the lower id. `top`: -1 none, 0 the chosen one's, n that many alternatives."""
    masked = np.where(mask, scores.astype(np.float64), -np.inf)
    chosen = int(masked.argmax()) if temperature <= 0 else _drawn(masked, temperature, top_p, uniform(seed, position))
    logprobs = masked - masked.max()
    logprobs = logprobs - np.log(np.exp(logprobs).sum())
    order = np.argsort(-logprobs, kind="stable")[: max(top, 0)]
    alternatives = tuple((int(i), float(logprobs[i])) for i in order if masked[i] > -np.inf)
    return Choice(chosen, float(logprobs[chosen]) if top >= 0 else 0.0, alternatives)


def _drawn(masked: npt.NDArray[np.float64], temperature: float, top_p: float, number: float) -> int:
    weights = np.exp((masked - masked.max()) / temperature)
    if top_p < 1:
        order = np.argsort(-weights, kind="stable")
        share = np.cumsum(weights[order]) / weights.sum()
        before = np.concatenate([[0.0], share[:-1]])
        weights[order[before > top_p]] = 0.0
    reached = np.cumsum(weights)
    return int(np.searchsorted(reached, number * reached[-1], side="right"))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from (seed, position): splitmix64's finalizer over a counter (Steele, Lea, Flood 2014)."""
    start = _finalize(seed + GOLDEN)
    return (_finalize(start + GOLDEN * (position + 1)) >> 11) * 2.0**-53


def _finalize(word: int) -> int:
    word &= U64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & U64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & U64
    return word ^ (word >> 31)
