"""Which engine a request goes to: the same for the same picture, whoever asks, unless that is busy or has failed."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.api.affinity import names_in, order, picture_key, ranked

ENGINES = [f"engine-{number}" for number in range(5)]
KEYS = [f"picture {number}" for number in range(400)]
PICTURE = "data:image/png;base64," + "QUJD" * 40
loads = st.dictionaries(st.sampled_from(ENGINES), st.integers(0, 200), min_size=1)


def bodies(url):
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What?"}]
    return (
        {"image_url": url, "question": "What?"},
        {"question": 'say "image_url": "no"', "image_url": url, "stream": True},
        {"messages": [{"role": "user", "content": parts}]},
    )


def test_all_routes_and_spellings_of_a_picture_have_its_key():
    keys = {picture_key(json.dumps(body).encode()) for body in bodies(PICTURE)}
    keys |= {picture_key(json.dumps(body, indent=2).encode()) for body in bodies(PICTURE)}
    keys |= {picture_key(json.dumps({"image_url": PICTURE.partition(",")[2]}).encode())}
    keys |= {picture_key(json.dumps({"image_url": PICTURE.replace("png", "webp")}).encode())}
    assert len(keys) == 1 and len(keys.pop()) == 32
    assert picture_key(json.dumps({"image_url": PICTURE + "RA=="}).encode()) not in keys


@pytest.mark.parametrize("body", [b"", b"{}", b'{"question": "Who?"}', b'{"image_url": "x"}', b"\xff\0", b'{"url": 1}'])
def test_what_shows_no_picture_has_no_key(body):
    assert picture_key(body) == ""


def test_the_first_picture_counts_since_later_turns_keep_it():
    other = PICTURE.replace("QUJD", "REVG")
    first, both = ({"messages": [{"url": PICTURE}]}, {"messages": [{"url": PICTURE}, {"url": other}]})
    assert picture_key(json.dumps(first).encode()) == picture_key(json.dumps(both).encode())


def test_names_that_may_be_adapters():
    assert names_in(b'{"settings": {"adapter" : "cats"}, "model":"dogs", "question": "\\"adapter\\": \\"no\\""}') == (
        "cats",
        "dogs",
    )
    assert names_in(b"{}") == ()


def test_pictures_are_spread_and_few_move_when_an_engine_comes_or_goes():
    homes = {key: ranked(key, ENGINES)[0] for key in KEYS}
    counts = Counter(homes.values())
    assert set(counts) == set(ENGINES) and max(counts.values()) < 2 * min(counts.values())
    fewer = {key: ranked(key, ENGINES[:-1])[0] for key in KEYS}
    moved = [key for key in KEYS if fewer[key] != homes[key]]
    assert {homes[key] for key in moved} == {ENGINES[-1]} and len(moved) == counts[ENGINES[-1]]
    assert all(ranked(key, ENGINES) == ranked(key, ENGINES[::-1]) for key in KEYS[:20])


@settings(derandomize=True, deadline=None, max_examples=200)
@given(loads, st.sampled_from(KEYS), st.integers(0, 40), st.sets(st.sampled_from(ENGINES)), st.integers(0, 9))
def test_the_favourite_first_unless_it_is_far_ahead_and_the_failed_last(held, key, slack, avoid, turn):
    found = order(key, held, slack, avoid, turn)
    assert sorted(found) == sorted(held)
    failed = [engine for engine in found if engine in avoid]
    assert found[len(found) - len(failed) :] == failed
    left = {engine: load for engine, load in held.items() if engine not in avoid}
    if left:
        favourite, least = ranked(key, left)[0], min(left.values())
        near = left[favourite] <= least + slack or left[favourite] <= 2 * least
        assert found[0] == favourite if near else left[found[0]] == least
        others = [held[engine] for engine in found[1 : len(left)]]
        assert others == sorted(others)


@pytest.mark.parametrize(
    ("least", "most"),
    [
        pytest.param(0, 7, id="none is busy: the slack"),
        pytest.param(5, 12, id="few: still the slack"),
        pytest.param(7, 14, id="where both say the same"),
        pytest.param(64, 128, id="all are busy: twice as many"),
    ],
)
def test_a_favourite_may_be_just_so_far_ahead(least, most):
    favourite, *others = ranked("picture", ENGINES)
    for holds, first in ((most, True), (most + 1, False)):
        held = dict.fromkeys(others, least) | {favourite: holds}
        assert (order("picture", held, 7)[0] == favourite) is first


def test_without_a_picture_the_least_busy_and_equals_take_turns():
    assert {order("", {"a": 3, "b": 1, "c": 2}, turn=turn)[0] for turn in range(20)} == {"b"}
    firsts = Counter(order("", dict.fromkeys(ENGINES, 0), turn=turn)[0] for turn in range(200))
    assert set(firsts) == set(ENGINES) and min(firsts.values()) > 15
