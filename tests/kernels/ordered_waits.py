"""Counters by which programs of one kernel wait for each other, as they were compiled: what was stored before counting
is there for whoever has heard of it. No run can prove that, since a GPU is seldom as unordered as it may be."""

from __future__ import annotations

import re

READ_OR_STORED = re.compile(r"\b(?:ld\.global|st\.global|cp\.async\.c)")
STORED = re.compile(r"\bst\.global")
BARRIER = re.compile(r"\bbar(?:rier)?(?:\.cta)?\.sync")
COUNT = re.compile(r"\batom(?:\.[a-z0-9]+)*\.add\b.*")
HEARD = re.compile(r"\bld\.acquire\.gpu\.global\.u32\s+(%r\d+)")


def awaited(ptx: str) -> list[int]:
    """For how many programs a kernel waits, in each place where it does. Raises `AssertionError` where a count could be
    seen before what all threads of its program stored, or something be read before the count is."""
    for count in COUNT.finditer(ptx):
        assert re.search(r"\.(?:release|acq_rel)\b", count.group()), f"counted in no order: {count.group()}"
        before = list(BARRIER.finditer(ptx, 0, count.start()))
        assert before, "counted without waiting for the other threads"
        assert not STORED.search(ptx, before[-1].end(), count.start()), "stored between the barrier and the count"
    return [_heard(ptx, place) for place in HEARD.finditer(ptx)]


def _heard(ptx: str, place: re.Match[str]) -> int:
    then = BARRIER.search(ptx, place.end())
    assert then, "heard by one thread, and not by the others"
    assert not READ_OR_STORED.search(ptx, place.end(), then.start()), "read before all threads have heard"
    asked = re.compile(rf"\bsetp\.(lt|eq)\.[sub]32\s+%p\d+, {place[1]}, (\d+)").search(ptx, place.end(), then.start())
    assert asked, "it is not asked how many there are"
    return int(asked[2]) + (asked[1] == "eq")
