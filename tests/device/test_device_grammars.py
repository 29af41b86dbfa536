"""Token tables on the device against the walker that specifies them: every state, every budget, every id."""

import numpy as np
import pytest
import torch
from tests.device.rig import TABLE
from tests.fakes.drawn_tables import drawn_table

from gapless.constrain.table import Walker
from gapless.constrain.tokens import TokenWalker
from gapless.device.grammars import DeviceGrammars, packed
from gapless.device.packet import COUNTS, Count
from gapless.device.tables import DeviceTable
from gapless.records import DeviceLimits, GrammarLoad, TokenTable
from gapless.token_table import END, FORBIDDEN

CPU = torch.device("cpu")
ANSWERS = Walker.start(TABLE, "text", 99, 1).state
REASONS = Walker.start(TABLE, "reason", 99, 1).state


def many_kinds(vocab):
    """One state, a class for each id: more than an int16 numbers."""
    classes = np.r_[END, np.arange(2, vocab + 1)].astype(np.uint16)
    following = np.zeros((1, vocab + 1), np.int16)
    following[0, 0] = FORBIDDEN
    following[0, 5::7] = FORBIDDEN
    return TokenTable(classes, following, np.zeros(1, np.int16), np.full(1, -1, np.int32))


def device_with(vocab, tables):
    """Tables in slots from 1 on, behind a slot that has none, and the numbers of each behind those of the last."""
    firsts = np.cumsum([3, *(table.numbers for table in tables)]).tolist()
    limits = DeviceLimits(9, 99, 4, 160, 13, 2, vocab, grammars=len(tables) + 1, grammar_numbers=firsts[-1])
    grammars = DeviceGrammars(limits, DeviceTable(TABLE, CPU), CPU)
    grammars.all.numbers.fill_(7)
    for slot, (table, first) in enumerate(zip(tables, firsts, strict=False), 1):
        grammars.load(slot, first, torch.from_numpy(packed(GrammarLoad(table, first))))
    return grammars


def rows(places, program=ANSWERS):
    """Counts of rows in (slot, state, tokens left)."""
    counts = torch.zeros((len(places), COUNTS), dtype=torch.int64)
    counts[:, Count.STATE] = program
    for row, (slot, state, left) in zip(counts, places, strict=True):
        row[Count.GRAMMAR], row[Count.GRAMMAR_STATE], row[Count.LEFT] = slot, state, left
    return counts


@pytest.mark.parametrize("seed", range(4))
def test_masks_and_states_are_those_of_the_walker(seed):
    tables = [drawn_table(seed * 10 + i, 60, states, classes) for i, (states, classes) in enumerate(((9, 6), (3, 5)))]
    device = device_with(60, tables)
    lefts = range(1, int(tables[0].distance.max()) + 5)
    places = [(slot, s, n) for slot in (1, 2) for s in range(tables[slot - 1].states) for n in lefts]
    counts = rows(places)
    masks = device.masks(counts, torch.zeros((len(places), 60), dtype=torch.bool)).numpy()
    for (slot, state, left), mask in zip(places, masks, strict=True):
        assert (mask == TokenWalker(tables[slot - 1], state).mask(left)).all(), (slot, state, left)
    rng = np.random.default_rng(seed)
    tokens = [int(rng.choice(np.flatnonzero(mask))) for mask in masks]
    walkers = [TokenWalker(tables[slot - 1], state) for slot, state, _ in places]
    for walker, token in zip(walkers, tokens, strict=True):
        walker.advance(token)
    assert device.advance(counts, torch.tensor(tokens)).tolist() == [walker.state for walker in walkers]


def test_rows_that_no_table_rules_keep_their_masks_and_their_state():
    device = device_with(60, [drawn_table(1, 60, 5, 5)])
    others = torch.rand((2, 60)) < 0.5
    for counts in (rows([(0, 3, 9), (0, 0, 1)]), rows([(1, 3, 9), (1, 0, 1)], REASONS)):
        assert (device.masks(counts, others) == others).all()
        assert device.advance(counts, torch.tensor([7, 8])).tolist() == counts[:, Count.GRAMMAR_STATE].tolist()


def test_more_kinds_than_an_int16_numbers():
    vocab = 40_000
    table = many_kinds(vocab)
    device, counts = device_with(vocab, [table]), rows([(1, 0, 5)])
    mask = device.masks(counts, torch.zeros((1, vocab), dtype=torch.bool))[0].numpy()
    assert (mask == TokenWalker(table).mask(5)).all() and mask[33_000:].any() and not mask[33_000:].all()
    assert device.advance(counts, torch.tensor([int(np.flatnonzero(mask)[-1])])).tolist() == [0]


def test_a_state_that_a_table_lacks_is_its_last_and_a_slot_without_a_table_reads_what_is_there():
    table = drawn_table(2, 60, 5, 5)
    device, none = device_with(60, [table]), torch.zeros((2, 60), dtype=torch.bool)
    masks = device.masks(rows([(1, 4, 9), (1, 30_000, 9)]), none)
    assert (masks[0] == masks[1]).all() and masks[0].any()
    token = torch.tensor([int(masks[0].nonzero()[0])] * 2)
    one, other = device.advance(rows([(1, 4, 9), (1, 30_000, 9)]), token).tolist()
    assert one == other
    lost = rows([(2, 0, 9), (2, 30_000, 9)])
    assert device.masks(lost, none).shape == none.shape and device.advance(lost, token).tolist() == [0, 0]
