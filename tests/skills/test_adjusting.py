"""Settings that adjust logits: what is taken, what is refused and how, and who has no use for them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gapless.errors import InvalidRequest
from gapless.skills.adjusting import ADJUSTING
from gapless.skills.caption import caption
from gapless.skills.detect import detect
from gapless.skills.gaze import gaze
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment
from gapless.skills.settings import Settings

ALL = {
    "logit_bias": {"7": -100, np.int64(9): np.float32(2.5), 11: 0.25},
    "banned": ["a", 7],
    "min_tokens": 3,
    "repetition_penalty": 1.25,
    "presence_penalty": -2,
    "frequency_penalty": 0.5,
}


def test_settings_reach_the_sampling(md2, picture):
    s = query(md2, picture, "x", settings=ALL).sampling
    assert s.logit_bias == ((7, -100.0), (9, 2.5), (11, 0.25)) and s.adjusts
    assert s.banned == (*md2.tokenizer.encode("a"), 7)
    assert (s.min_tokens, s.repetition_penalty) == (3, 1.25)
    assert (s.presence_penalty, s.frequency_penalty) == (-2.0, 0.5)
    assert caption(md2, picture, settings={"banned": "a"}).sampling.banned == md2.tokenizer.encode("a")


@pytest.mark.parametrize("nothing", [ADJUSTING, dict.fromkeys(ADJUSTING), {"logit_bias": {}, "banned": []}], ids=repr)
def test_what_asks_for_nothing_is_nothing(md2, picture, nothing):
    nothing = {name: dict(value) if name == "logit_bias" and value == () else value for name, value in nothing.items()}
    assert Settings.parse(nothing) == Settings()
    assert not query(md2, picture, "x", settings=nothing).sampling.adjusts
    detect(md2, picture, "x", settings=nothing)


@pytest.mark.parametrize(
    ("param", "value", "said"),
    [
        ("logit_bias", [1, 2], "a dict like"),
        ("logit_bias", {"x": 1}, "each a whole number or its digits"),
        ("logit_bias", {"-1": 1}, "each a whole number or its digits"),
        ("logit_bias", {"٣": 1}, "each a whole number or its digits"),
        ("logit_bias", {True: 1}, "each a whole number or its digits"),
        ("logit_bias", {1.0: 1}, "each a whole number or its digits"),
        ("logit_bias", {"9" * 5000: 1}, "each a whole number or its digits"),
        ("logit_bias", {5: 1, "5": 2}, "the id 5 once"),
        ("logit_bias", {5: 100.5}, "a number from -100 to 100 for the id 5"),
        ("logit_bias", {5: math.nan}, "no infinity or NaN"),
        ("logit_bias", {5: -math.inf}, "no infinity or NaN"),
        ("logit_bias", {5: "1"}, "a number from -100 to 100"),
        ("logit_bias", {5: True}, "a number from -100 to 100"),
        ("logit_bias", {5: 10**400}, "a number from -100 to 100"),
        ("logit_bias", {-1: 1}, "names the id -1, but this model's ids are 0 to"),
        ("logit_bias", {2**70: 1}, "but this model's ids are 0 to"),
        ("logit_bias", dict.fromkeys(range(301), 1), "may name 300 tokens, and names 301"),
        ("banned", 5, "a list of ids and texts"),
        ("banned", {"a": 1}, "a list of ids and texts"),
        ("banned", [1.5], "ids and texts"),
        ("banned", [None], "ids and texts"),
        ("banned", [True], "ids and texts"),
        ("banned", "", "texts of 1 to 256 characters"),
        ("banned", ["x" * 257], "texts of 1 to 256 characters"),
        ("banned", ["a horse of another colour"], "tokens ("),
        ("banned", ["\ud800"], "lone surrogate"),
        ("banned", [10**9], "names the id 1000000000, but this model's ids are 0 to"),
        ("banned", list(range(301)), "may name 300 tokens, and names 301"),
        ("min_tokens", -1, "a whole number from 0"),
        ("min_tokens", 1.5, "a whole number from 0"),
        ("min_tokens", 769, "min_tokens is 769, but an answer has at most 768 tokens here"),
        ("repetition_penalty", 0, "a number from 0.1 to 10"),
        ("repetition_penalty", 10.5, "a number from 0.1 to 10"),
        ("presence_penalty", 2.1, "a number from -2 to 2"),
        ("frequency_penalty", -2.5, "a number from -2 to 2"),
        ("frequency_penalty", math.nan, "a number from -2 to 2"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_wrong_is_named(md2, picture, param, value, said):
    with pytest.raises(InvalidRequest) as caught:
        query(md2, picture, "x", settings={param: value})
    assert caught.value.param == param and said in str(caught.value) and len(str(caught.value)) < 400


def test_there_may_be_so_many_together(md2, picture):
    few = {"logit_bias": dict.fromkeys(range(200), 1), "banned": list(range(100, 300))}
    assert len(query(md2, picture, "x", settings=few).sampling.banned) == 200
    with pytest.raises(InvalidRequest, match="logit_bias and banned may name 300 tokens, and names 301"):
        query(md2, picture, "x", settings=few | {"banned": list(range(100, 301))})


def test_the_fewest_are_no_more_than_the_most(md2, picture):
    assert query(md2, picture, "x", settings={"max_tokens": 5, "min_tokens": 5}).sampling.min_tokens == 5
    with pytest.raises(InvalidRequest, match="min_tokens is 6, but an answer has at most 5 tokens"):
        Settings.parse({"max_tokens": 5, "min_tokens": 6})


@pytest.mark.parametrize("name", ALL)
def test_answers_that_are_no_words_take_none(md3, picture, name):
    settings = {name: ALL[name]}
    for ask in (
        lambda: point(md3, picture, "x", settings=settings),
        lambda: detect(md3, picture, "x", settings=settings),
        lambda: segment(md3, picture, "x", settings=settings),
        lambda: gaze(md3, picture, (0.5, 0.5), settings=settings),
    ):
        with pytest.raises(InvalidRequest, match=f"{name} is for answers in words: query, caption and chat") as caught:
            ask()
        assert caught.value.param == name
