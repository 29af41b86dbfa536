"""Rows and records by column: read from lines, cut, and walked as if they were rows; and a packet's head, kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.device.packet import Layout, Packet, ready_of, waiting_of
from gapless.device.record import TOP, WIDTH, Field, Reader, unpack_lines
from gapless.errors import InvariantBroken
from gapless.records import POISON, Flags, PageGrant, Records, RowRecord, RowRef, Rows, Step, StepKind, Token

READER = Reader()
ROWS = Rows(RowRef(row, epoch) for row, epoch in ((3, 1), (1, 5), (2, 2), (7, 1)))


def lines_of(step, rows):
    """What a tail writes for words 10, 11, ..: nothing beside the id."""
    lines = np.full((len(rows), WIDTH), float(POISON))
    lines[:, Field.STEP], lines[:, Field.ROW], lines[:, Field.EPOCH] = step, rows.numbers, rows.epochs
    lines[:, Field.FLAGS], lines[:, Field.LOGPROB] = 0, 0
    lines[:, Field.TOKEN] = 10 + np.arange(len(rows))
    lines[:, TOP + 20 :] = 0
    return lines


def test_words_values_and_alternatives_come_out_as_they_went_in():
    lines = lines_of(9, ROWS)
    lines[1, [Field.VALUE_0, Field.VALUE_1, Field.FLAGS]] = 0.25, 0.5, Flags.LENGTH
    lines[2, [Field.LOGPROB, TOP, TOP + 1, TOP + 20, TOP + 21]] = -0.5, 12, 4, -0.5, -2.0
    lines[3, [Field.TOKEN, Field.FLAGS]] = POISON, Flags.MUTED
    records = READER.read(lines, 9, ROWS)
    assert list(records) == [
        RowRecord(RowRef(3, 1), Flags.NONE, Token(10)),
        RowRecord(RowRef(1, 5), Flags.LENGTH, Token(11, (0.25, 0.5))),
        RowRecord(RowRef(2, 2), Flags.NONE, Token(12, (), -0.5, ((12, -0.5), (4, -2.0)))),
        RowRecord(RowRef(7, 1), Flags.MUTED, None),
    ]
    assert records.ids.tolist() == [10, 11, 12, -1] and records.flags.tolist() == [0, 2, 0, 8]
    usual = READER.read(lines_of(11, ROWS), 11, ROWS)
    lines[:] = POISON
    assert records[0].token == Token(10) and records.ids[2] == 12  # copies: I4
    assert list(usual) == [RowRecord(ref, Flags.NONE, Token(10 + i)) for i, ref in enumerate(ROWS)] and usual.quiet
    fewer = Rows(ROWS[1:3])
    assert list(READER.read(lines_of(12, fewer), 12, fewer)) == list(unpack_lines(lines_of(12, fewer), 12, fewer))


def test_alternatives_of_a_certain_token_the_first_id_and_those_of_nobody():
    lines = lines_of(9, ROWS)
    lines[0, [TOP, TOP + 20]] = 10, 0.0  # certain: its own logprob is 0, as where nobody asks
    lines[1, [Field.LOGPROB, TOP, TOP + 1, TOP + 20, TOP + 21]] = -3.0, 0, 11, -0.1, -3.0
    lines[2, [Field.TOKEN, Field.FLAGS, Field.LOGPROB, TOP, TOP + 20]] = POISON, Flags.NONFINITE, -8.0, 0, -8.0
    assert [record.token for record in READER.read(lines, 9, ROWS)] == [
        Token(10, (), 0.0, ((10, 0.0),)),
        Token(11, (), -3.0, ((0, -0.1), (11, -3.0))),
        None,
        Token(13),
    ]
    certain = lines_of(10, ROWS)
    certain[3, [TOP, TOP + 20]] = 13, 0.0  # nothing else tells this step from a usual one
    assert READER.read(certain, 10, ROWS)[3].token == Token(13, (), 0.0, ((13, 0.0),))


def test_one_coordinate_is_one_value():
    lines = lines_of(1, ROWS)
    lines[0, Field.VALUE_0] = 0.0
    assert unpack_lines(lines, 1, ROWS)[0].token == Token(10, (0.0,))


def test_a_stale_line_and_another_rows_line_are_told_apart():
    for at, column, value, what in (
        (2, Field.STEP, 8, "I4: .*row=2, .* buffer holds 8"),
        (1, Field.STEP, POISON, "I4: .*row=1, .* buffer holds -1"),
        (0, Field.EPOCH, 4, "I9: step 9 brought .*row=3, epoch=4.* where .*row=3, epoch=1"),
        (3, Field.ROW, 6, "I9: step 9 brought .*row=6, "),
    ):
        lines = lines_of(9, ROWS)
        lines[at, column] = value
        READER.read(lines_of(9, ROWS), 9, ROWS)
        with pytest.raises(InvariantBroken, match=what):
            READER.read(lines, 9, ROWS)


def test_records_are_a_sequence_however_they_were_made():
    rows = tuple(RowRecord(ref, Flags.STOP, Token(i)) for i, ref in enumerate(ROWS))
    records = Records.of(rows)
    assert Records.of(records) is records
    assert (len(records), records[1], tuple(records[1:3]), tuple(records)) == (4, rows[1], rows[1:3], rows)
    assert isinstance(records[0].flags, Flags) and len(Records.of(())) == 0
    some = records.only(np.array([True, False, False, True]))
    assert tuple(some) == (rows[0], rows[3]) and some.rows.numbers.tolist() == [3, 7]
    assert some.ids.tolist() == [0, 3]


def test_a_step_has_its_rows_by_column_whatever_it_was_given():
    step = Step(1, StepKind.DECODE, tuple(ROWS), 0, unsampled=frozenset({1, 7}))
    assert (
        step.rows == ROWS and step.rows.numbers.tolist() == [3, 1, 2, 7] and step.rows.epochs.tolist() == [1, 5, 2, 1]
    )
    assert Step(2, StepKind.DECODE, step.rows, 0).rows is step.rows
    assert waiting_of(step).tolist() == [False, True, False, True] and ready_of(step).tolist() == [3, 2]


steps = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 2)), min_size=1, max_size=8)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(steps)
def test_a_packet_that_was_used_before_is_filled_like_a_new_one(drawn):
    layout = Layout(rows=5, grants=6, max_pages=4)
    kinds = [ROWS, Rows(ROWS[:2]), Rows(ROWS[2:])]
    used = Packet(layout, np.zeros(layout.words, dtype=np.int64))
    for number, (which, masked, grants) in enumerate(drawn, 1):
        rows = kinds[which]
        granted = tuple(PageGrant(rows[i].row, 1, (10 + i,)) for i in range(grants))
        unsampled = frozenset({rows[0].row}) if masked else frozenset()
        step = Step(number, StepKind.DECODE, rows, 0, unsampled, grants=granted)
        fresh = Packet(layout, np.zeros(layout.words, dtype=np.int64))
        sent = used.fill(step)
        assert sent == fresh.fill(step) == (layout.granted if grants else layout.head)
        assert used.words[:sent].tolist() == fresh.words[:sent].tolist()
