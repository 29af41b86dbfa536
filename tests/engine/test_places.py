"""Places in arrays are walkers: any tokens, any company, every program; and what leaving and talking mean."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, sim_stage
from tests.fakes.verdict import judge_all

from gapless.constrain.table import PROGRAMS, Rules, Walker, build_table
from gapless.engine.places import Places
from gapless.records import Flags, RowRef, Rows, Talk

VOCAB, END, ANSWER, COORD, SIZE, WORD = 16, 0, 3, 5, 6, 9
TABLES = [build_table(Rules(VOCAB, END, ANSWER, COORD, SIZE, masks, opens)) for masks in (0, 1) for opens in (0, 1)]
ENDLESS = HashSpec(end_permille=0, answer_permille=0)
QUICK = settings(max_examples=50, derandomize=True, deadline=None)

rows = st.lists(
    st.tuples(st.sampled_from(PROGRAMS), st.integers(1, 12), st.integers(1, 4), st.integers(1, 30)),
    min_size=1,
    max_size=6,
)
"""Program, max_tokens, max_objects, position of the first token."""


@QUICK
@given(st.sampled_from(TABLES), rows, st.randoms(use_true_random=False), st.booleans())
def test_many_rows_advance_as_walkers_do(table, begun, random, shy):
    """`shy`: avoids ends, so that the limits are met. Each step carries some of the rows that have not ended."""
    places, walkers, ends = Places(table, 8), {}, {}
    for row, (program, most, objects, first) in enumerate(begun, 1):
        walkers[row] = Walker.start(table, program, most, objects)
        places.begin(row, walkers[row], first, first)
        ends[row] = first
    alive = set(walkers)
    for _ in range(40):
        going = sorted(random.sample(sorted(alive), random.randint(0, len(alive))))
        said = [_legal(walkers[row], random, shy) for row in going]
        places.advance(np.array(going, dtype=np.int64), np.array(said, dtype=np.int64))
        for row, token in zip(going, said, strict=True):
            _, flags = walkers[row].advance(token)
            ends[row] += 1
            if flags is not Flags.NONE:
                alive.remove(row)
        for row in alive:
            assert places.walker(row) == walkers[row]
            assert places.position[row] == ends[row]
            assert places.cap[row] - places.position[row] == walkers[row].remaining()


def _legal(walker, random, shy):
    legal = np.flatnonzero(walker.mask()).tolist()
    words = [token for token in legal if token not in (END, ANSWER)] or legal
    return random.choice(words if shy else legal)


def test_a_row_that_leaves_wants_nothing_and_still_says_what_was_in_flight():
    places = Places(TABLES[0], 4)
    for row in (1, 2):
        places.begin(row, Walker.start(TABLES[0], "reason", 5, 1), 10, 16)
    places.leave(1)
    places.leave(1)
    assert places.leaving == 1 and places.cap.tolist() == [0, 0, 10 + 11, 0]
    places.advance(np.array([1, 2]), np.array([ANSWER, ANSWER]))  # not one of the same: another phase begins
    assert places.cap.tolist() == [0, 0, 11 + 5, 0] and places.position.tolist()[1:3] == [11, 11]
    assert places.walker(1) == places.walker(2) and places.walker(1).left == 5
    places.end(1)
    assert places.leaving == 0


def test_only_the_life_that_talks_talks():
    places = Places(TABLES[0], 4)
    places.begin(1, Walker.start(TABLES[0], "text", 5, 1), 10, 16)
    this, next_one = Rows([RowRef(1, 7), RowRef(2, 1)]), Rows([RowRef(1, 8)])
    assert places.talking(this).tolist() == [False, False]
    places.talk(RowRef(1, 7))
    assert places.talking(this).tolist() == [True, False] and not places.talking(next_one).any()
    places.leave(1)
    places.talk(RowRef(1, 7))
    assert not places.talking(this).any()
    places.begin(1, Walker.start(TABLES[0], "text", 5, 1), 10, 16)
    assert not places.talking(next_one).any()


@pytest.mark.parametrize("table", TABLES)
def test_a_word_of_a_text_moves_one_number(table, monkeypatch):
    """The quick way is taken: for words of texts, until the last one that a limit lets through."""
    places, slow = Places(table, 4), []
    monkeypatch.setattr(places, "_move", lambda rows, *rest: slow.append(rows.tolist()))
    for row, most in ((1, 9), (2, 4)):
        places.begin(row, Walker.start(table, "text", most, 1), 0, 16)
    places._state[1:3] = table.following[places._state[1:3], 0]  # behind the first word
    for step in range(4):
        assert slow == [], step
        places.advance(np.array([1, 2]), np.array([WORD, WORD]))
    assert slow == [[1, 2]]


def test_what_a_step_says_in_passing_is_one_piece_of_news():
    """First words and ends are told by themselves; all that lies between, row for row, in one piece a step."""
    entries = [Entry(ask(i, ids=(10 + i,), max_tokens=9)) for i in range(1, 6)]
    stage, _ = sim_stage(ENDLESS, limits_of(ENDLESS, 2))
    pieces, take = [], stage.engine.book.take_news

    def watched():
        news = take()
        pieces.append([len(one.requests) if isinstance(one, Talk) else 1 for one in news])
        return news

    stage.engine.book.take_news = watched
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    assert [5] in pieces and sum(map(sum, pieces)) == 5 * (9 + 1)
    assert max(map(max, filter(None, pieces))) == 5
