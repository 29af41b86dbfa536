"""Cutting prompts by costs: pure arithmetic."""

import random

import numpy as np
import pytest
from tests.fakes.scene import ask, picture, with_insets

from gapless.costs import Costs, seconds_of
from gapless.engine.cutting import Budget, Feed, cut
from gapless.records import HostPlace, Picture, Prefill, RowRef, RowStart

PREFIX = 13
START = RowStart(RowRef(1, 1), 0, 9, 9, 1, 0.0, 1.0, 0, -1, False)
COSTS = Costs(((2, 2.0), (5, 4.0)), ((4, 1.0), (16, 2.0)), picture=0.25, step=0.5, behind=0.01)


def test_what_is_more_than_a_pass_takes_takes_several():
    assert [seconds_of(COSTS.crops, n) for n in (0, 1, 2, 3, 5, 6, 10, 13)] == [0.0, 2.0, 2.0, 4.0, 4.0, 6.0, 8.0, 12.0]
    assert seconds_of((), 7) == 0.0
    assert COSTS.of(5, 1, 17, 200) == pytest.approx(0.5 + 4.0 + 0.25 + 3.0 + 2.0)
    assert (COSTS.least_crops, COSTS.least_tokens) == (2, 4) and Costs((), ()).least_crops == 1


def prefill(rng):
    """A prompt with or without a picture before it, and up to two inside."""
    front = many(rng.randrange(9)) if rng.random() < 0.6 else None
    prompt = with_insets(
        ask(1, ids=range(20, 20 + rng.randrange(1, 40)), shown=front).prompt,
        [many(rng.randrange(9)) for _ in range(rng.randrange(3))],
        PREFIX - 1,
        rng,
    )
    places = tuple(rng.choice([None, HostPlace(0, True), HostPlace(1, False)]) for _ in prompt.pictures)
    first, tail = (PREFIX, (7, 8)) if front is not None else (0, None)
    own = {"picture": front, "prefix_pages": (1, 2, 7) if front is not None else (), "tail": tail}
    return Prefill(START, prompt.ids, prompt.values, first, (1, 2, 8, 9), insets=prompt.insets, places=places, **own)


def many(number):
    shown = picture(number)
    return Picture(shown.digest, np.zeros((1 + number, 4, 4, 3), dtype=np.uint8), (1, number), 4, 4)


@pytest.mark.parametrize("limit", [0.1, 3.0, 5.0, 9.0, None])
def test_parts_are_the_whole_and_each_fits_or_cannot_be_cut(limit):
    rng, parts = random.Random(4), 0
    for _ in range(60):
        whole = prefill(rng)
        feed, seen, looked, at = Feed(whole, PREFIX, whole.picture is not None), [], 0, 0
        fed, places = [], []
        while feed.stretches:
            budget = Budget(COSTS, limit)
            part = cut(feed, budget)
            assert part is not None and part.ends == (not feed.stretches)
            if own := part.prefill:
                assert own.looked == looked and own.position == max(at, whole.position) == part.end - len(own.ids)
                assert (own.tail, own.adapter) == ((whole.tail, whole.adapter) if not at else (None, None))
                seen += [own.picture] if own.picture else []
                seen += [inset.picture for inset in own.insets]
                fed, places, at, looked = fed + list(own.ids), places + list(own.places), part.end, 0
            if part.look:
                assert part.look.begin == looked < part.look.end <= part.look.picture.count
                looked = part.look.end
            parts += not part.ends
            pieces = -(-budget.tokens // 4) + -(-budget.crops // 2)
            assert not budget.over or pieces <= 1 or budget.tokens in (PREFIX, PREFIX - 1)
        assert tuple(fed) == whole.ids and tuple(places) == whole.places
        assert seen == [*([whole.picture] if whole.picture else []), *(inset.picture for inset in whole.insets)]
    assert (parts > 60) == (limit is not None)


def test_what_does_not_fit_beside_others_waits_for_a_step_of_its_own():
    whole = Prefill(START, (20, 21), ((), ()), PREFIX, (1,), picture=many(4), prefix_pages=(1,))
    feed, budget = Feed(whole, PREFIX, True), Budget(COSTS, 3.0)
    budget.add(tokens=16)
    assert not budget.room and cut(feed, budget) is None and not feed.looked
    part = cut(feed, Budget(COSTS, 3.0))
    assert part is not None and part.prefill is None and (part.look.begin, part.look.end) == (0, 2)
    budget = Budget(COSTS, 3.0)
    part = cut(feed, budget)
    assert (part.look.begin, part.look.end, budget.pictures) == (2, 4, 0), "beside its crops it takes so much once"
