"""What adjusts logits on a device: how a row's notes travel, how tokens are counted, and what the formulas give."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.device.rig import SPEC, TABLE
from tests.device.test_rows import apply, packed, prefill, step
from tests.fakes.adjusted import adjusted_by

from gapless.constrain.table import Walker
from gapless.device.adjust import BIAS, PROMPT, SAID, Adjuster, notes_of
from gapless.device.packet import Asked, Count
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import MASKED, Needs, TailKind
from gapless.errors import InvariantBroken
from gapless.records import MAX_BIASED, Adjustment

CPU, VOCAB = torch.device("cpu"), SPEC.rules.vocab
NONE = Adjustment(1.0, 0.0, 0.0, 0, (), (), ())


def adjuster(*adjustments: Adjustment | None, again: Adjuster | None = None) -> Adjuster:
    """Rows 1, 2, ... begin as they wish."""
    of = again or Adjuster(DeviceTable(TABLE, CPU), RowStore(len(adjustments) + 1, 2, CPU), VOCAB, 4000)
    begun = [prefill(row) for row in range(1, len(adjustments) + 1)]
    begun = [replace(p, start=replace(p.start, adjustment=a)) for p, a in zip(begun, adjustments, strict=True)]
    apply(of._rows, packed(step(begun), 2))
    notes = notes_of(step(begun))
    if notes is not None:
        of.begin(torch.from_numpy(notes.words), notes.lengths)
    return of


def test_a_row_begins_with_its_words_and_biases_and_nothing_of_an_earlier_life():
    first = replace(NONE, biases=((9, -2.5), (63, -math.inf)), prompt=(9, 11), said=(11, 12, 11), least=7, presence=0.5)
    of = adjuster(first, None, replace(NONE, said=(4,), repetition=1.5))
    words = torch.zeros(4, VOCAB, dtype=torch.int32)
    words[1, [9, 11, 12, 63]] = torch.tensor([PROMPT | 1 << BIAS, PROMPT | 2, 1, 2 << BIAS], dtype=torch.int32)
    words[3, 4] = 1
    assert torch.equal(of.said.words, words)
    assert of.said.biases[1, :3].tolist() == [0.0, -2.5, -math.inf] and not bool(of.said.biases[[0, 2, 3]].any())
    assert of._rows.counts[:, Count.ADJUSTED].tolist() == [0, 2, 0, 1]
    assert of._rows.counts[:, Count.LEAST].tolist() == [0, 7, 0, 0]
    adjuster(replace(NONE, said=(2,)), replace(NONE, prompt=(63,)), None, again=of)
    assert of.said.words.nonzero().tolist() == [[1, 2], [2, 63], [3, 4]]
    assert of._rows.counts[3, Count.ADJUSTED] == 0, "what is left of row 3 is not looked at"


def test_a_step_without_adjusted_rows_has_no_notes_and_too_many_biases_are_a_bug():
    assert notes_of(step([prefill(1)])) is None
    full = replace(NONE, biases=tuple((id, 1.0) for id in range(MAX_BIASED + 1)))
    with pytest.raises(InvariantBroken, match="row 1 has 301 biases; there is room for 300"):
        adjuster(full)


def test_a_count_stops_where_there_is_no_more_room_and_leaves_its_neighbours_alone():
    of = adjuster(replace(NONE, prompt=(9,), biases=((9, 1.0),), said=(9,) * (SAID - 1)))
    of._rows.counts[1, Count.TOKEN] = 9
    for _ in range(3):
        of.count(torch.tensor([1, 0]), torch.tensor([Asked.SAMPLE, Asked.NOTHING]))
    assert int(of.said.words[1, 9]) == SAID | PROMPT | 1 << BIAS
    assert of.said.words.count_nonzero() == 1


@pytest.mark.parametrize("asked", Asked)
def test_only_tokens_that_were_chosen_and_words_count(asked):
    """Row 2 is done, row 3 not adjusted, row 4 said an id that steers."""
    of = adjuster(NONE, NONE, None, NONE)
    of._rows.counts[1:, Count.TOKEN] = torch.tensor([20, 21, 22, SPEC.rules.answer])
    of._rows.counts[2, Count.DONE] = 1
    of.count(torch.tensor([3, 1, 4, 2, 0, 0]), torch.tensor([*[asked] * 4, Asked.NOTHING, Asked.NOTHING]))
    assert of.said.words.nonzero().tolist() == ([[1, 20]] if asked == Asked.SAMPLE else [])


reals = st.floats(-40, 40, width=32) | st.sampled_from([0.0, -0.0, -math.inf])
ids = st.integers(0, VOCAB - 1)
biased = st.dictionaries(ids, st.floats(-100, 100) | st.just(-math.inf), max_size=12)
wishes = st.builds(
    Adjustment,
    repetition=st.floats(0.1, 10),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    least=st.integers(0, 9),
    biases=biased.map(dict.items).map(tuple),
    prompt=st.sets(st.integers(7, VOCAB - 1), max_size=9).map(tuple),
    said=st.lists(st.integers(7, VOCAB - 1), max_size=9).map(tuple),
)


@given(wishes, st.lists(reals, min_size=VOCAB, max_size=VOCAB), st.lists(ids, max_size=9), st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_logits_are_those_of_the_formulas_to_the_bit(wish, logits, more, data):
    """After any tokens more, in any state, under a rule's or a host's mask; a neighbour keeps its own."""
    of, rows, asked = adjuster(wish, None), torch.tensor([2, 1]), torch.tensor([Asked.SAMPLE] * 2)
    walker = Walker(TABLE, data.draw(st.integers(0, len(TABLE.mask) - 1)), data.draw(st.integers(1, 9)), 9, 2)
    of._rows.counts[1, [Count.STATE, Count.LEFT, Count.LEFT_NEXT]] = torch.tensor([walker.state, walker.left, 9])
    for token in more:
        of._rows.counts[1, Count.TOKEN] = token
        of.count(rows, asked)
    mask = walker.mask()
    masks = None
    if data.draw(st.booleans()):
        mask = np.random.default_rng(data.draw(ids)).random(VOCAB) < data.draw(st.sampled_from([0.04, 0.5]))
        masks = torch.from_numpy(np.stack([mask, mask]))
    both = torch.tensor([logits, logits], dtype=torch.float32)
    own = both[1].numpy().copy()
    of.adjust(rows, asked, both, masks)
    right = adjusted_by(own, mask, wish, walker, more)
    assert both[0].tolist() == own.tolist()
    assert np.array_equal(both[1].numpy(), right)


def test_what_is_broken_stays_broken_whatever_is_banned():
    of = adjuster(replace(NONE, biases=((8, -math.inf), (9, -math.inf)), said=(8, 9)))
    logits = torch.zeros(1, VOCAB)
    logits[0, 8], logits[0, 9] = math.nan, math.inf
    of.adjust(torch.tensor([1]), torch.tensor([Asked.SAMPLE]), logits, None)
    assert not bool(torch.isfinite(logits[0, 8:10]).any()) and not bool((logits[0, 8:10] == -math.inf).any())


def test_the_host_knows_which_rows_are_adjusted_and_ruled_in_this_life():
    needs, rng = Needs(DeviceTable(TABLE, CPU), 5), random.Random(1)
    starts = [prefill(row).start for row in (1, 2, 3)]
    needs.begin(replace(starts[0], adjustment=NONE))
    needs.begin(starts[1])
    assert needs.kind(np.array([2])) == TailKind(full=True, spatial=True)
    assert needs.kind(np.array(rng.sample([1, 2], 2))).adjusted and needs.masked(np.array([1, 2])).adjusted
    assert needs.masked(np.array([2])) == MASKED
    needs.begin(starts[0])
    assert not needs.kind(np.array([1, 2])).adjusted
    needs.begin(replace(starts[2], grammar=1))
    assert needs.kind(np.array([2, 3])).ruled and not needs.kind(np.array([1, 2])).ruled
    needs.begin(starts[2])
    assert not needs.kind(np.array([2, 3])).ruled
