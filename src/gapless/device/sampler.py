"""Choosing tokens: pure functions from logits, masks and sampling parameters to tokens and their logprobs.

In: logits float32 [B, vocab], masks bool [B, vocab] (True = allowed), and per row temperature, top-p, seed and the
absolute position where the sampled token will sit. Out: a token per row, whether the row's logits were usable, and
logprobs where asked for.

A row's result depends on that row alone, bit for bit: not on its neighbours, the batch size or the order of rows. So
everything that rounds is done per row, in float64 and in a fixed order (sums are the last element of a cumulative sum;
a plain sum may split a row among threads).

Randomness is counter-based: one draw is a hash of (seed, position), see `uniform`. There is no generator state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.records import MAX_TOP_LOGPROBS

_NEVER = float("-inf")
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


@dataclass(frozen=True, slots=True)
class Params:
    """Per row: `temperature` and `top_p` float64 [B], `seed` and `position` int64 [B]. Temperature 0 is argmax.

    The rest is known on the host, so that no tensor has to be asked: indices into the batch of the rows that are
    `drawn` (temperature > 0), of those of them with a `nucleus` (top_p < 1), and of the `scored` rows with how many
    alternatives each wants (0 = the chosen token's logprob only).
    """

    temperature: Tensor
    top_p: Tensor
    seed: Tensor
    position: Tensor
    drawn: Sequence[int]
    nucleus: Sequence[int]
    scored: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Draws:
    """What B rows chose. `token` int64 [B] is a legal id even where `finite` (bool [B]) is False; ignore it there.

    `logprob` float64 [B], `top_ids` int64 [B, 20] and `top_logprobs` float64 [B, 20]: natural logarithms under the
    masked distribution without temperature and top-p, best first, ties by id; 0 and -1 where not asked for.
    """

    token: Tensor
    finite: Tensor
    logprob: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


@dataclass(frozen=True, slots=True)
class Choice:
    """One row's token, its logprob and the best alternatives, as Python values."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def sample(
    logits: Tensor,
    mask: Tensor,
    temperature: float,
    top_p: float,
    seed: int,
    position: int,
    top_logprobs: int = MAX_TOP_LOGPROBS,
) -> Choice | None:
    """Sample one row: logits float32 [vocab], mask bool [vocab]. None when the logits are not finite.

    The same arithmetic as `sample_rows` with B = 1; `top_logprobs` is how many alternatives come along (-1: the
    chosen token's logprob is not computed either and reads 0).
    """
    params = Params(
        temperature=torch.tensor([temperature], dtype=torch.float64),
        top_p=torch.tensor([top_p], dtype=torch.float64),
        seed=torch.tensor([signed(seed)], dtype=torch.int64),
        position=torch.tensor([position], dtype=torch.int64),
        drawn=[0] if temperature > 0 else [],
        nucleus=[0] if temperature > 0 and top_p < 1 else [],
        scored=[(0, top_logprobs)] if top_logprobs >= 0 else [],
    )
    draws = sample_rows(logits[None], mask[None], params)
    if not bool(draws.finite[0]):
        return None
    ids, values = draws.top_ids[0].tolist(), draws.top_logprobs[0].tolist()
    top = tuple((i, v) for i, v in zip(ids, values, strict=True) if i >= 0)
    return Choice(int(draws.token[0]), float(draws.logprob[0]), top)


def sample_rows(logits: Tensor, mask: Tensor, params: Params) -> Draws:
    """Choose one token per row: logits float32 [B, vocab], mask bool [B, vocab].

    A row is not finite, and gets no meaningful token, when its logits hold NaN or +inf, or when no allowed id has a
    logit above -inf. A -inf among finite logits is an ordinary impossible token.
    """
    masked = torch.where(mask, logits, _NEVER)
    best, token = masked.max(dim=-1)
    finite = torch.isfinite(logits.amax(dim=-1)) & torch.isfinite(best)
    masked = torch.where(finite[:, None], masked, 0.0)  # keeps NaN out of everything below
    if params.drawn:
        rows = torch.tensor(params.drawn, device=logits.device)
        nucleus = [params.drawn.index(i) for i in params.nucleus]
        token[rows] = _draw(masked[rows], rows, nucleus, params)
    logprob, top_ids, top_logprobs = _score(masked, token, params.scored)
    return Draws(torch.where(finite, token, 0), finite, logprob, top_ids, top_logprobs)


def uniform(seed: Tensor, position: Tensor) -> Tensor:
    """(seed, position) int64 [B] -> float64 [B] in [0, 1), a multiple of 2**-53.

    Splitmix64 (Steele, Lea, Flood 2014) used as a counter-based generator, in wrapping 64-bit arithmetic: with
    G = 0x9E3779B97F4A7C15 and mix its finalizer, h = mix(mix(seed + G) + G * (position + 1)), u = (h >> 11) * 2**-53.
    """
    golden = signed(_GOLDEN)
    bits = _mix(_mix(seed + golden) + golden * (position + 1))
    return _shift_right(bits, 11).double() * 2.0**-53


def signed(value: int) -> int:
    """The int64 with the same low 64 bits as `value`."""
    low = value & (2**64 - 1)
    return low - 2**64 if low >= 2**63 else low


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift_right(x, 30)) * signed(_FIRST)
    x = (x ^ _shift_right(x, 27)) * signed(_SECOND)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: int64 `>>` repeats the sign bit, so that is cleared."""
    return torch.bitwise_and(x >> bits, 2 ** (64 - bits) - 1)


def _draw(masked: Tensor, rows: Tensor, nucleus: Sequence[int], params: Params) -> Tensor:
    """Inverse CDF in id order: the first id whose cumulative weight exceeds u * total. masked [n, vocab] -> [n]."""
    scores = masked.double()
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / params.temperature[rows, None]
    weights = scores.exp()
    if nucleus:
        which = torch.tensor(nucleus, device=masked.device)
        weights[which] = _keep_nucleus(weights[which], params.top_p[rows[which], None])
    reached = weights.cumsum(dim=-1)
    total = reached[:, -1:]
    target = uniform(params.seed[rows], params.position[rows])[:, None] * total
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))  # rounding must not reach the end
    return torch.searchsorted(reached, target, right=True)[:, 0]


def _keep_nucleus(weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero the weights of ids before which, most likely first and ties by id, more than `top_p` has been reached."""
    ordered, ids = weights.sort(dim=-1, descending=True, stable=True)
    share = ordered / weights.cumsum(dim=-1)[:, -1:]
    before = torch.nn.functional.pad(share.cumsum(dim=-1)[:, :-1], (1, 0))
    return torch.zeros_like(weights).scatter(-1, ids, torch.where(before > top_p, 0.0, ordered))


def _score(masked: Tensor, token: Tensor, scored: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs of the chosen tokens and of the best alternatives, for the rows that asked."""
    batch = len(masked)
    logprob = torch.zeros(batch, dtype=torch.float64, device=masked.device)
    top_ids = torch.full((batch, MAX_TOP_LOGPROBS), -1, device=masked.device)
    top_logprobs = torch.zeros((batch, MAX_TOP_LOGPROBS), dtype=torch.float64, device=masked.device)
    if not scored:
        return logprob, top_ids, top_logprobs
    rows = torch.tensor([i for i, _ in scored], device=masked.device)
    scores = masked[rows].double()
    scores = scores - scores.amax(dim=-1, keepdim=True)
    scores = scores - scores.exp().cumsum(dim=-1)[:, -1:].log()
    logprob[rows] = scores.gather(-1, token[rows, None])[:, 0]
    widest = max(count for _, count in scored)
    if widest > 0:
        wanted = torch.tensor([count for _, count in scored], device=masked.device)[:, None]
        best, ids = scores.sort(dim=-1, descending=True, stable=True)
        best, ids = best[:, :widest], ids[:, :widest]
        there = (torch.arange(best.shape[1], device=masked.device) < wanted) & (best > _NEVER)
        top_ids[rows, : best.shape[1]] = torch.where(there, ids, -1)
        top_logprobs[rows, : best.shape[1]] = torch.where(there, best, 0.0)
    return logprob, top_ids, top_logprobs
