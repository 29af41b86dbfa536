"""The automata: what each program allows, when it ends, and that `remaining` bounds what may still come, always."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.constrain.table import PROGRAMS, Rules, TokenClass, Walker, build_table
from gapless.records import Flags, ValueHead

VOCAB, END, ANSWER, COORD, SIZE, WORD = 16, 0, 3, 5, 6, 9
STRICT = build_table(Rules(VOCAB, END, ANSWER, COORD, SIZE, mask_answer=True))
OPEN = build_table(Rules(VOCAB, END, ANSWER, COORD, SIZE, mask_answer=False))
QUICK = settings(max_examples=150, derandomize=True, deadline=None)


def allowed(walker: Walker) -> list[int]:
    return np.flatnonzero(walker.mask()).tolist()


def walk(table, program, tokens, most=100, objects=50):
    """Advance over tokens, each of which must be allowed; returns heads and flags."""
    walker, said = Walker.start(table, program, most, objects), []
    for token in tokens:
        assert token in allowed(walker), f"{token} is not allowed after {said}"
        said.append(walker.advance(token))
    return walker, said


@pytest.mark.parametrize("table", [STRICT, OPEN])
def test_every_state_allows_something_and_no_row_of_the_table_points_outside(table):
    states = len(table.mask)
    assert table.masks[table.mask].any(axis=1).all()
    assert table.masks[0].all()
    assert ((table.following >= 0) & (table.following < states)).all()
    assert ((table.on_limit >= -1) & (table.on_limit < states)).all()
    assert table.classes.tolist().count(TokenClass.OTHER) == VOCAB - 4
    assert set(table.programs) == set(PROGRAMS)


@QUICK
@given(
    st.sampled_from(PROGRAMS),
    st.integers(1, 20),
    st.integers(1, 6),
    st.lists(st.integers(0, 10**6), min_size=60, max_size=60),
    st.booleans(),
    st.booleans(),
)
def test_remaining_is_never_exceeded_and_falls_with_every_token(program, most, objects, draws, strict, shy):
    """`shy`: avoids ends, so that the limits are met."""
    walker = Walker.start(STRICT if strict else OPEN, program, most, objects)
    bound, count = walker.remaining(), 0
    for draw in draws:
        legal = allowed(walker)
        legal = [t for t in legal if t not in (END, ANSWER)] or legal if shy else legal
        before = walker.remaining()
        _, flags = walker.advance(legal[draw % len(legal)])
        count += 1
        assert count <= bound
        if flags:
            return
        assert 0 < walker.remaining() < before
    assert count < bound, "it neither ended nor had tokens left"


@pytest.mark.parametrize(("program", "box"), [("point", [COORD, COORD]), ("detect", [COORD, COORD, SIZE])])
def test_objects_are_cycles_that_end_only_between_them(program, box):
    walker = Walker.start(STRICT, program, 100, 3)
    assert walker.remaining() == 3 * len(box)
    for turn in range(3):
        assert allowed(walker) == [END, COORD]
        for place, token in enumerate(box):
            if place:
                assert allowed(walker) == [token]
            head, flags = walker.advance(token)
            assert head is (ValueHead.SIZE if token == SIZE else ValueHead.COORD)
            last = turn == 2 and place == len(box) - 1
            assert flags == (Flags.LENGTH if last else Flags.NONE)
    _, said = walk(STRICT, program, [*box, END])
    assert said[-1] == (ValueHead.NONE, Flags.STOP)


def test_objects_also_stop_at_max_tokens_even_inside_one():
    walker, said = walk(STRICT, "detect", [COORD, COORD], most=2)
    assert said[-1] == (ValueHead.COORD, Flags.LENGTH)
    assert Walker.start(STRICT, "detect", 2, 9).remaining() == 2
    assert walker.objects_left == 50


def test_an_outline_follows_one_box_and_carries_values():
    walker, said = walk(STRICT, "segment", [COORD, COORD, SIZE, WORD, COORD, SIZE, WORD, END])
    heads = [head for head, _ in said]
    assert heads == [ValueHead.COORD] * 2 + [ValueHead.SIZE, 0, ValueHead.COORD, ValueHead.SIZE, 0, 0]
    assert said[-1][1] == Flags.STOP
    walker, _ = walk(STRICT, "segment", [COORD, COORD, SIZE])
    assert allowed(walker) == list(range(VOCAB))


def test_text_may_say_answer_only_first_where_the_revision_masks_it():
    walker, _ = walk(STRICT, "text", [])
    assert ANSWER in allowed(walker)
    walker, said = walk(STRICT, "text", [ANSWER, COORD, WORD])
    assert ANSWER not in allowed(walker)
    assert all(head is ValueHead.NONE for head, _ in said), "text carries no values"
    walker, _ = walk(OPEN, "text", [WORD])
    assert ANSWER in allowed(walker)


def test_reasoning_turns_into_an_answer_with_tokens_of_its_own():
    walker, said = walk(STRICT, "reason", [WORD, COORD, ANSWER], most=5)
    assert [head for head, _ in said] == [0, ValueHead.COORD, 0]
    assert walker.left == 5
    _, said = walk(STRICT, "reason", [WORD, ANSWER, WORD, WORD, END], most=5)
    assert said[-1][1] == Flags.STOP


def test_reasoning_that_runs_out_is_forced_to_answer():
    walker, said = walk(STRICT, "reason", [WORD] * 4, most=4)
    assert said[-1][1] == Flags.NONE
    assert allowed(walker) == [ANSWER]
    assert walker.remaining() == 5
    walker.advance(ANSWER)
    for left in (4, 3, 2, 1):
        assert walker.remaining() == walker.left == left
        _, flags = walker.advance(WORD)
    assert flags == Flags.LENGTH


def test_the_end_id_does_not_end_a_reasoning():
    _, said = walk(OPEN, "reason", [END, END, ANSWER, END])
    assert [flags for _, flags in said] == [0, 0, 0, Flags.STOP]
    walker, _ = walk(STRICT, "reason", [WORD])
    assert END not in allowed(walker) and SIZE not in allowed(walker)
