"""Choosing tokens: pure functions from logits, masks and sampling parameters to tokens and their logprobs.

In: logits float32 [B, vocab], masks bool [B, vocab] (True = allowed), and per row temperature, top-p, seed and the
absolute position where the sampled token will sit. Out: a token per row, whether the row's logits were usable, and
logprobs where asked for.

A row's result depends on that row alone, bit for bit: not on its neighbours, the batch size, the order of rows or how
a processor splits a sum. So probabilities are whole numbers (fixed point, see `_weights`): sums of integers are exact
in any order. No shape and no branch depends on a tensor's content, so the same lines run inside a CUDA graph; rows
choose with `torch.where`.

Randomness is counter-based: one draw is a hash of (seed, position), see `uniform`. There is no generator state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.records import MAX_TOP_LOGPROBS

_NEVER = float("-inf")
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_SUM_BITS = 62
_DIGIT, _DIGITS = 8, 4
"""Top-p searches a 32-bit key in four digits of eight bits."""


@dataclass(frozen=True, slots=True)
class Params:
    """Per row: `temperature` and `top_p` float64 [B], `seed`, `position` and `top_logprobs` int64 [B].

    Temperature 0 is argmax. `top_logprobs`: -1 none, 0 the chosen token's only, n that many alternatives too. The
    flags are about the whole batch and known on the host: `drawn` whether any row may have a temperature, `scored`
    whether any row may want logprobs. They save work and change no row's result.
    """

    temperature: Tensor
    top_p: Tensor
    seed: Tensor
    position: Tensor
    top_logprobs: Tensor
    drawn: bool
    scored: bool


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
    """Sample one row on the CPU: logits float32 [vocab], mask bool [vocab]. None when the logits are not finite.

    The same arithmetic as `sample_rows` with B = 1; `top_logprobs` is how many alternatives come along (-1: the
    chosen token's logprob is not computed either and reads 0).
    """
    params = Params(
        temperature=torch.tensor([temperature], dtype=torch.float64),
        top_p=torch.tensor([top_p], dtype=torch.float64),
        seed=torch.tensor([signed(seed)], dtype=torch.int64),
        position=torch.tensor([position], dtype=torch.int64),
        top_logprobs=torch.tensor([top_logprobs], dtype=torch.int64),
        drawn=temperature > 0,
        scored=top_logprobs >= 0,
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
        token = torch.where(params.temperature > 0, _draw(masked, params), token)
    token = torch.where(finite, token, 0)
    logprob, top_ids, top_logprobs = _score(masked, token, params.top_logprobs) if params.scored else _unscored(token)
    return Draws(token, finite, logprob, top_ids, top_logprobs)


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


def _weights(scores: Tensor) -> Tensor:
    """Scores float64 [B, vocab], the best of a row 0 -> their exponentials as int64, the best one 2**n.

    n is as large as lets a row's sum stay under 2**62: 46 for a vocabulary of 51200. A token less likely than the best
    by more than that has weight 0.
    """
    one = 2.0 ** (_SUM_BITS - (scores.shape[-1] - 1).bit_length())
    return (scores.exp() * one).round().long()


def _draw(masked: Tensor, params: Params) -> Tensor:
    """Inverse CDF in id order: the first id whose cumulative weight exceeds u * total. masked [B, vocab] -> [B]."""
    scores = masked.double()
    warm = torch.where(params.temperature > 0, params.temperature, 1.0)
    weights = _weights((scores - scores.amax(dim=-1, keepdim=True)) / warm[:, None])
    reached = _keep_nucleus(masked, weights, params.top_p).cumsum(dim=-1)
    total = reached[:, -1:]
    target = (uniform(params.seed, params.position)[:, None] * total.double()).long()
    target = torch.minimum(target, total - 1)  # rounding must not reach the end
    return torch.searchsorted(reached, target, right=True)[:, 0]


def _keep_nucleus(masked: Tensor, weights: Tensor, top_p: Tensor) -> Tensor:
    """Zero the weights of ids before which, most likely first and ties by id, more than `top_p` has been reached.

    Sorts nothing: finds the smallest score above which at most `top_p` lies, eight bits of its key at a time. Scores
    above it stay, those below go, and of those equal to it as many stay, by id, as begin within `top_p`.
    """
    limit = top_p[:, None] * weights.sum(dim=-1, keepdim=True).double()
    keys = _ordered(masked) + 2**31
    edge = torch.zeros_like(keys[:, :1])
    above = torch.zeros_like(edge)  # the weight of keys over every one that begins with the digits of `edge`
    for shift in range(_DIGIT * (_DIGITS - 1), -1, -_DIGIT):
        begins = keys >> shift
        counted = torch.where(begins >> _DIGIT == edge, weights, 0)
        tally = counted.new_zeros((len(keys), 2**_DIGIT)).scatter_add(1, begins & (2**_DIGIT - 1), counted)
        over = above + tally.flip(1).cumsum(dim=1).flip(1) - tally
        digit = (over.double() > limit).sum(dim=1, keepdim=True)
        above = over.gather(1, digit)
        edge = (edge << _DIGIT) + digit
    equal = keys == edge
    earlier = equal.long().cumsum(dim=-1) - equal.long()
    kept = (keys > edge) | (equal & ((above + earlier * weights).double() <= limit))
    return torch.where(kept | (top_p >= 1)[:, None], weights, 0)


def _ordered(masked: Tensor) -> Tensor:
    """Float32 -> int64 in -2**31..2**31 - 1 with the same order; both zeros are one."""
    bits = (masked + 0.0).view(torch.int32).long()
    return torch.where(bits < 0, -(2**31) - 1 - bits, bits)


def _score(masked: Tensor, token: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs of the chosen tokens and of the best alternatives, for the rows that want them."""
    vocab = masked.shape[-1]
    scores = masked.double()
    scores = scores - scores.amax(dim=-1, keepdim=True)
    weights = _weights(scores)
    one = weights.amax(dim=-1, keepdim=True)
    scores = scores - (weights.sum(dim=-1, keepdim=True).double() / one.double()).log()
    logprob = torch.where(wanted >= 0, scores.gather(-1, token[:, None])[:, 0], 0.0)
    count = min(MAX_TOP_LOGPROBS, vocab)
    last = 2**32 - 1
    unique = _ordered(masked) * 2**32 + (last - torch.arange(vocab, device=masked.device))  # ties by id
    ids = last - (unique.topk(count, dim=-1).values & last)
    best = scores.gather(-1, ids)
    there = (torch.arange(count, device=masked.device) < wanted[:, None]) & (best > _NEVER)
    room = (0, MAX_TOP_LOGPROBS - count)
    top_ids = torch.nn.functional.pad(torch.where(there, ids, -1), room, value=-1)
    return logprob, top_ids, torch.nn.functional.pad(torch.where(there, best, 0.0), room)


def _unscored(token: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `_score` returns where nobody wants logprobs."""
    zeros = torch.zeros((len(token), MAX_TOP_LOGPROBS), dtype=torch.float64, device=token.device)
    return zeros[:, 0], zeros.long() - 1, zeros
