"""Single entries of the prefix cache, where scenes and random sequences of calls would seldom come by."""

import pytest

from gapless.engine.pages import PagePool
from gapless.engine.prefix import PrefixCache
from gapless.errors import InvariantBroken
from gapless.observe.counters import Counters
from gapless.records import RowRef

SIZE = 2
PLAIN, SHOWN = ("", ""), ("", "p")
ONE, TWO = RowRef(1, 1), RowRef(2, 1)


@pytest.fixture
def room():
    pool, counters = PagePool(1 + 12, SIZE), Counters()
    return pool, PrefixCache(pool, counters, keep=True), counters


def begin(pool, cache, space, items, ref=ONE):
    """A sequence that computes all of its items, and with a picture a block of 5 positions before them."""
    first = 5 if space[1] else 0
    block = -(-first // SIZE)
    taken = cache.take(block + -(-(first + len(items)) // SIZE) - first // SIZE)
    path = [cache.publish(space, first, taken[:block], ref)]
    shared = taken[: first // SIZE]
    pool.share(shared)
    pages = [*shared, *taken[block:]]
    cache.extend(path, items, pages, ref, through=False)
    return path, pages


def end(pool, cache, path, pages):
    cache.leave(path)
    pool.give_back(tuple(pages))


def test_what_made_room_is_counted_by_entries_with_pages(room):
    """The first entry of a space without picture holds nothing: that it goes is no eviction."""
    pool, cache, counters = room
    end(pool, cache, *begin(pool, cache, PLAIN, [1, 2, 3, 4, 5]))
    assert len(cache.entries()) == 3 and cache.cached == 2
    pool.give_back(cache.take(12))
    assert counters.prefix_evictions == 2
    end(pool, cache, *begin(pool, cache, SHOWN, [1, 2, 3, 4]))
    assert cache.cached == 5
    pool.give_back(cache.take(12))
    assert counters.prefix_evictions == 2 + 3, "two pages, and a block of three"
    assert cache.entries() == [] and cache.kept() == []


def test_a_space_that_holds_nothing_goes_when_more_pages_are_wanted(room):
    pool, cache, counters = room
    end(pool, cache, *begin(pool, cache, PLAIN, [1, 2]))
    pool.give_back(cache.take(12))
    assert counters.prefix_evictions == 1 and [e.key for e in cache.entries()] == [PLAIN], "its page was enough"
    end(pool, cache, *begin(pool, cache, SHOWN, [1]))
    pool.give_back(cache.take(12))
    assert counters.prefix_evictions == 3 and cache.entries() == []


def test_behind_what_was_withdrawn_nothing_is_entered(room):
    """Nobody would find it, and its pages would be kept until they are wanted."""
    pool, cache, _ = room
    path, pages = begin(pool, cache, SHOWN, [1, 2, 3])
    cache.withdraw(path)
    more = pages + list(cache.take(2))
    known, refs = list(path), {page: pool.refs(page) for page in more}
    cache.extend(path, [1, 2, 3, 4, 5, 6, 7], more, ONE, through=True)
    assert path == known and path[-1].children == {} and refs == {page: pool.refs(page) for page in more}
    end(pool, cache, path, more)
    assert pool.held() == [] and cache.cached == 0 and cache.kept() == []


def test_whoever_holds_what_was_withdrawn_keeps_its_pages_until_it_leaves(room):
    pool, cache, _ = room
    path, pages = begin(pool, cache, SHOWN, [1, 2, 3])
    cache.withdraw(path[:1])
    assert cache.entries() == [] and cache.find(SHOWN, [1, 2, 3]) == []
    assert sorted(cache.held()) == sorted(entry.pages for entry in path)
    again, others = begin(pool, cache, SHOWN, [1, 2, 3], TWO)
    assert again[0] is not path[0] and cache.find(SHOWN, [1, 2, 3, 4]) == again
    end(pool, cache, path, pages)
    assert sorted(cache.held()) == sorted(entry.pages for entry in again)
    end(pool, cache, again, others)
    assert cache.cached == sum(len(entry.pages) for entry in again)


def test_an_entry_that_nobody_held_goes_at_once_when_it_is_withdrawn(room):
    pool, cache, counters = room
    path, pages = begin(pool, cache, SHOWN, [1, 2, 3])
    end(pool, cache, path, pages)
    cache.withdraw(path[1:])
    assert cache.entries() == path[:1] and cache.cached == 3 and counters.prefix_evictions == 0
    cache.withdraw(path)
    assert pool.held() == [] and cache.free == 12


def test_one_item_is_always_left_to_compute(room):
    pool, cache, _ = room
    path, pages = begin(pool, cache, PLAIN, [1, 2, 3, 4])
    assert cache.find(PLAIN, [1, 2, 3, 4]) == path[:2] and cache.find(PLAIN, [1, 2, 3, 4, 9]) == path
    assert cache.find(PLAIN, [1]) == path[:1] and cache.find(SHOWN, [1, 2, 3]) == []
    end(pool, cache, path, pages)


def test_where_somebody_elses_entry_stands_it_is_gone_through_or_not(room):
    pool, cache, _ = room
    path, pages = begin(pool, cache, PLAIN, [1, 2, 3, 4])
    for through, length in ((False, 1), (True, 3)):
        mine = path[:1]
        cache.hold(mine)
        cache.extend(mine, [1, 2, 3, 4], pages, TWO, through=through)
        assert len(mine) == length and [entry.leases for entry in path] == [2, 1 + through, 1 + through]
        cache.leave(mine)
    end(pool, cache, path, pages)


def test_the_picture_of_a_pin_is_kept_behind_all_others_from_whenever_it_is_pinned(room):
    pool, cache, _ = room
    end(pool, cache, *begin(pool, cache, SHOWN, [1]))
    end(pool, cache, *begin(pool, cache, ("", "q"), [1], TWO))
    cache.pin("p", 1)
    pool.give_back(cache.take(12 - 3))
    assert [entry.key for entry in cache.entries()] == [SHOWN]
    cache.pin("p", -1)
    end(pool, cache, *begin(pool, cache, ("", "q"), [1], TWO))
    pool.give_back(cache.take(12 - 3))
    assert [entry.key for entry in cache.entries()] == [("", "q")]
    with pytest.raises(InvariantBroken, match="has -1 pins"):
        cache.pin("p", -1)


def test_a_page_in_which_a_pinned_picture_begins_is_kept_like_any_other(room):
    """A pin is the block's at the front: here the picture is one further on."""
    pool, cache, _ = room
    cache.pin("p", 1)
    end(pool, cache, *begin(pool, cache, SHOWN, []))
    end(pool, cache, *begin(pool, cache, PLAIN, [1, "p", None, None, 3], TWO))
    pool.give_back(cache.take(12 - 3))
    assert [entry.key for entry in cache.entries() if entry.pages] == [SHOWN] and cache.cached == 3
