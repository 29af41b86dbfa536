"""Verdicts: what a request heard against what the oracle says, exactly.

Log-probabilities are compared to 1e-9 (two implementations of the same float64 formula); ids, values and reasons are
compared for identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.fakes.oracle import Answer
from tests.fakes.scene import Entry, Heard

from gapless.errors import GaplessError, RequestCancelled
from gapless.records import Token

CLOSE = 1e-9


def same_tokens(heard: Sequence[Token], right: Sequence[Token]) -> bool:
    """Equal ids, values and alternatives; log-probabilities as close as two float64 sums are."""
    return len(heard) == len(right) and all(_same(a, b) for a, b in zip(heard, right, strict=True))


def _same(a: Token, b: Token) -> bool:
    exact = (a.id, a.values, [i for i, _ in a.top]) == (b.id, b.values, [i for i, _ in b.top])
    scores = [(a.logprob, b.logprob), *((x, y) for (_, x), (_, y) in zip(a.top, b.top, strict=False))]
    return exact and all(abs(x - y) <= CLOSE for x, y in scores)


def judge(heard: Heard, right: Answer, allowed: tuple[type[GaplessError], ...] = ()) -> None:
    """Assert one request's answer: all of it, or a beginning of it and one of the allowed errors."""
    assert heard.finish is not None, "the request never ended"
    error = heard.finish.error
    if error is None:
        assert same_tokens(heard.tokens, right.tokens), f"{heard.tokens}\n is not\n{right.tokens}"
        assert heard.finish.reason is right.reason
        assert heard.finish.metrics.output_tokens == len(right.tokens)
        return
    assert isinstance(error, allowed), f"unexpected {error!r}"
    assert heard.finish.reason is None
    assert same_tokens(heard.tokens, right.tokens[: len(heard.tokens)])


def judge_all(heard: Mapping[int, Heard], right: Mapping[int, Answer], entries: Sequence[Entry]) -> None:
    """Assert a whole scene: only cancelled requests may end early."""
    assert set(heard) == {e.request.id for e in entries}
    for entry in entries:
        allowed = (RequestCancelled,) if entry.cancelled is not None else ()
        judge(heard[entry.request.id], right[entry.request.id], allowed)
