"""A step like the one before costs the host the same few calls however many rows ride on it, and brings no words."""

import sys
from collections import Counter

from tests.fakes.still_runtime import WORD, still_session

from gapless.bench.wave import advance, questions

STEPS = 20
MOST_CALLS = 140
"""Of Python functions a step, the fake GPU's and the watch's among them."""
MOST_NATIVE = 75
"""Of functions in C, but for those that are called once a row: to append its token."""


def steady(rows, prompts=(2,)):
    """A session in which `rows` answers go on and on, past the grants that came with the first steps."""
    session = still_session(rows)
    for i in range(rows):
        session.submit(questions(1, i + 1, None, 700, prompt=prompts[i % len(prompts)]))
    advance(session, rows, 4)
    return session


def calls_of(session):
    """Calls of Python functions, and of C functions, over `STEPS` steps."""
    found = Counter()

    def count(frame, event, arg):
        found[event] += 1

    sys.setprofile(count)
    try:
        for _ in range(STEPS):
            session.engine.loop.tick()
    finally:
        sys.setprofile(None)
    return found["call"], found["c_call"]


def test_calls_of_a_step_do_not_grow_with_its_rows():
    calls = {}
    for rows in (1, 64):
        session = steady(rows)
        calls[rows] = calls_of(session)
        session.stop()
    (few, native), (many, natives) = calls[1], calls[64]
    assert abs(few - many) < STEPS and max(few, many) <= MOST_CALLS * STEPS
    assert natives - 64 * STEPS < native + STEPS and native <= MOST_NATIVE * STEPS


def test_the_words_of_a_step_come_only_with_what_is_new(monkeypatch):
    """Rows need pages at different times, and get them together: of many steps few bring words."""
    session = steady(8, prompts=(3, 5, 8, 13, 21, 34, 55, 89))
    device, told = session.watch.device, []
    tell = device._tell
    monkeypatch.setattr(device, "_tell", lambda step, slot: (told.append(step), tell(step, slot))[1])
    first = len(session.watch.notes)
    advance(session, 8, 200)
    steps = [note.step for note in session.watch.notes[first:]]
    assert told == [step for step in steps if step.grants] and 3 <= len(told) <= 200 // 32 + 1
    assert {row for step in told for row in (grant.row for grant in step.grants)} == set(range(1, 9))
    words = [token.id for seq in session.engine.roster.by_age() for token in seq.history.tokens[1:]]
    assert set(words) == {WORD} and len(words) > 8 * 200
    session.stop()
