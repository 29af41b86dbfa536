"""How requests ended, counted: every ending has its name, and nothing that comes in can raise or be counted twice."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.errors import EngineClosed, EngineDead, NonFiniteLogits, RequestCancelled, RequestTimeout
from gapless.observe.accounting import Accounting, Snapshot, Standing
from gapless.observe.answers import SECONDS, SHORT_SECONDS, TOKENS, Answers, Ending, Histogram
from gapless.records import Finish, FinishReason, Metrics

NOTHING = Metrics(0, 0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("ending", "finish"),
    [
        (Ending.STOP, Finish(NOTHING, FinishReason.STOP)),
        (Ending.LENGTH, Finish(NOTHING, FinishReason.LENGTH)),
        (Ending.ABORT, Finish(NOTHING, error=RequestCancelled("gone"))),
        (Ending.ABORT, Finish(NOTHING, error=EngineClosed("closed"))),
        (Ending.TIMEOUT, Finish(NOTHING, error=RequestTimeout("late"))),
        (Ending.ERROR, Finish(NOTHING, error=EngineDead("dead"))),
        (Ending.ERROR, Finish(NOTHING, error=NonFiniteLogits("nan"))),
        (Ending.ERROR, Finish(NOTHING, error=KeyError("bug"))),
    ],
)
def test_every_ending_has_its_name(ending, finish):
    answers = Answers()
    answers.note(finish)
    told = answers.endings()
    assert told.ended == {one.value: int(one is ending) for one in Ending}
    assert not any(sum(spread.counts) for spread in told.spreads.values()), "the engine never saw it"


def test_times_and_tokens_of_a_request():
    answers = Answers()
    answers.note(Finish(Metrics(100, 5, queue_ms=10, prefill_ms=20, ttft_ms=30, decode_ms=80), FinishReason.STOP))
    told = {name: (sum(one.counts), one.total) for name, one in answers.endings().spreads.items()}
    right = {"queue": (1, 0.01), "prefill": (1, 0.02), "first_token": (1, 0.03), "decode": (1, 0.08)}
    right |= {"whole": (1, 0.11), "token_gap": (4, 0.08), "prompt": (1, 100), "generated": (1, 5)}
    assert told == {name: (count, pytest.approx(total)) for name, (count, total) in right.items()}


@pytest.mark.parametrize("tokens", [1, 2])
def test_the_shortest_answers_are_measured_too(tokens):
    """One token has a first and no gap, two have one gap; a prompt of one token is a prompt."""
    answers = Answers()
    answers.note(Finish(Metrics(1, tokens, 10, 20, 30, 80), FinishReason.LENGTH))
    counts = {name: sum(one.counts) for name, one in answers.endings().spreads.items()}
    assert counts == dict.fromkeys(counts, 1) | dict.fromkeys(("decode", "token_gap"), tokens - 1)


def test_what_was_told_does_not_change():
    answers = Answers()
    told = answers.endings()
    answers.note(Finish(Metrics(1, 2, 10, 20, 30, 80), FinishReason.LENGTH))
    assert told.ended["length"] == 0 and sum(told.spreads["queue"].counts) == 0
    spreads = answers.endings().spreads
    assert {name: one.bounds for name, one in spreads.items()} == dict.fromkeys(spreads, SECONDS) | {
        "token_gap": SHORT_SECONDS,
        "prompt": TOKENS,
        "generated": TOKENS,
    }
    assert all(len(one.counts) == len(one.bounds) + 1 for one in spreads.values())


def test_without_a_token_there_is_no_time_to_it():
    answers = Answers()
    answers.note(Finish(Metrics(100, 0, 50, 0, 50, 0), error=RequestTimeout("late")))
    counts = {name: sum(one.counts) for name, one in answers.endings().spreads.items()}
    assert counts == dict.fromkeys(("prefill", "first_token", "decode", "token_gap"), 0) | dict.fromkeys(
        ("queue", "whole", "prompt", "generated"), 1
    )


anything = st.floats() | st.integers(-(2**70), 2**70)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(metrics=st.builds(Metrics, *[anything] * 9))
def test_s_met_03_nothing_that_is_fed_raises(metrics):
    answers = Answers()
    answers.note(Finish(metrics, FinishReason.STOP))
    told = answers.endings()
    assert told.ended["stop"] == 1
    assert all(math.isfinite(one.total) and one.total >= 0 for one in told.spreads.values())


def test_bounds_belong_to_what_is_below_them():
    histogram = Histogram(TOKENS)
    for value in (0, 1, 1.5, 2, 10**9):
        histogram.add(value)
    counts = histogram.spread().counts
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 2, 1, 5)


def test_who_waits_is_who_does_not_run():
    nothing = Accounting.__new__(Accounting)
    endings = Answers().endings()
    assert Snapshot.of(nothing, Standing(running=3), endings, 5).waiting == 2
    gone = Snapshot.of(nothing, Standing(running=3), endings, 0)
    assert (gone.standing.running, gone.waiting) == (0, 0)
