"""The row store: what begins, grows, advances and ends, and that the padding row never does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.device.rig import TABLE

from gapless.device.packet import Count, Inbox, Layout, Packet, Real
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import Needs
from gapless.errors import InvariantBroken
from gapless.records import PageGrant, Prefill, RowRef, RowStart, Step, StepKind

CPU = torch.device("cpu")


def start(row: int, epoch: int = 1) -> RowStart:
    return RowStart(
        RowRef(row, epoch),
        state=3,
        left=9,
        left_next=8,
        objects_left=2,
        temperature=0.7,
        top_p=0.9,
        seed=2**64 - 5,
        top_logprobs=4,
        host_masked=False,
    )


def prefill(row: int, epoch: int = 1, pages=(4, 7), position: int = 3, ids=(1, 2)) -> Prefill:
    return Prefill(start(row, epoch), ids, ((),) * len(ids), position, pages)


def step(prefills=(), grants=()) -> Step:
    kind = StepKind.PREFILL if prefills else StepKind.DECODE
    return Step(1, kind, tuple(p.start.ref for p in prefills), 0, prefills=tuple(prefills), grants=tuple(grants))


def packed(one: Step, max_pages: int) -> Packet:
    layout = Layout(rows=4, grants=5, max_pages=max_pages)
    packet = Packet(layout, np.zeros(layout.words, dtype=np.int64))
    packet.sent = packet.fill(one)
    return packet


def apply(store: RowStore, packet: Packet) -> None:
    inbox = Inbox(packet.layout, CPU)
    inbox.words[: packet.sent] = torch.from_numpy(packet.words[: packet.sent])
    if packet.sent >= packet.layout.granted:
        store.extend(inbox)
    if packet.sent == packet.layout.words:
        store.begin(inbox)


def rows(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def test_a_start_sets_everything_and_grants_extend_the_table():
    store = RowStore(4, 6, CPU)
    apply(store, packed(step([prefill(2)]), 6))
    apply(store, packed(step(grants=[PageGrant(2, 2, (9, 5)), PageGrant(1, 0, (8,))]), 6))
    assert store.pages.tolist() == [[0] * 6, [8, 0, 0, 0, 0, 0], [4, 7, 9, 5, 0, 0], [0] * 6]
    assert store.counts[2].tolist() == [-1, 4, 3, 9, 8, 2, -5, 4, 0, 1, 0, 0, 0, 0, 0]
    assert store.reals[2].tolist() == [-1, -1, 0.7, 0.9, 1, 0, 0]


def test_unused_entries_rewrite_the_padding_row_with_what_it_holds():
    store = RowStore(5, 4, CPU)
    before = store.counts[0].clone(), store.reals[0].clone(), store.pages[0].clone()
    apply(store, packed(step([prefill(1)]), 4))
    apply(store, packed(step(grants=[PageGrant(1, 2, (9,))]), 4))
    after = store.counts[0], store.reals[0], store.pages[0]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert store.pages[1].tolist() == [4, 7, 9, 0]


def test_a_packet_is_used_again_without_a_trace_of_the_step_before():
    layout = Layout(rows=4, grants=5, max_pages=4)
    packet = Packet(layout, np.zeros(layout.words, dtype=np.int64))
    assert packet.fill(step([prefill(1), prefill(3)])) == layout.words
    assert packet.fill(step(grants=[PageGrant(1, 2, (9, 8))])) == layout.granted
    assert packet.fill(step([prefill(2)])) == layout.words
    fresh = packed(step([prefill(2)]), 4)
    assert np.array_equal(packet.words, fresh.words)
    assert packet.fill(Step(7, StepKind.DECODE, (RowRef(3, 1), RowRef(2, 1)), 0, frozenset({2}))) == layout.head
    assert packet.words[: layout.head].tolist() == [6, 3, 2, 0, 0, 1, 0, 0, 0]  # a forward counts it on


def test_a_step_that_does_not_fit_is_refused():
    refs = tuple(RowRef(i, 1) for i in range(1, 6))
    with pytest.raises(InvariantBroken, match="5 rows, but the device was built for 4"):
        packed(Step(1, StepKind.DECODE, refs, 0), 4)
    with pytest.raises(InvariantBroken, match="more than the 5 pages"):
        packed(step(grants=[PageGrant(1, 0, (1, 2, 3)), PageGrant(2, 0, (4, 5, 6))]), 4)


def test_a_table_that_would_overflow_is_refused():
    with pytest.raises(InvariantBroken, match="row 1 is granted 3 pages"):
        packed(step([prefill(1, pages=(1, 2, 3))]), 2)
    with pytest.raises(InvariantBroken, match="row 1 is granted 4 pages"):
        packed(step(grants=[PageGrant(1, 2, (5, 6))]), 3)


def test_done_rows_are_fed_length_one_on_the_scrap_page():
    store = RowStore(4, 3, CPU)
    apply(store, packed(step([prefill(1), prefill(2)]), 3))
    store.counts[1:3, Count.TOKEN] = rows(11, 12)
    store.reals[1:3, Real.VALUE_0] = 0.25
    store.end(rows(1, 2), torch.tensor([False, True]))
    feed = store.feed(rows(1, 2, 0, 0), 3)
    assert feed.ids.tolist() == [11, 0, 0, 0]
    assert feed.positions.tolist() == [4, 0, 0, 0]
    assert feed.tables.tolist() == [[4, 7, 0], [0] * 3, [0] * 3, [0] * 3]
    assert feed.values.tolist() == [[0.25, -1], [-1, -1], [-1, -1], [-1, -1]]
    assert feed.values.dtype == torch.float32
    assert store.feed(rows(1, 2), 2).tables.tolist() == [[4, 7], [0, 0]]


def test_rows_advance_where_they_move_and_nowhere_else():
    store = RowStore(4, 2, CPU)
    apply(store, packed(step([prefill(1), prefill(3)]), 2))
    before = store.counts.clone(), store.reals.clone()
    batch = rows(3, 1, 0, 0)
    new = {Count.TOKEN: rows(21, 22, 23, 24), Count.LEFT: rows(1, 2, 3, 4)}
    values = torch.full((4, 2), 0.5, dtype=torch.float64)
    store.advance(batch, torch.tensor([True, False, False, False]), new, values)
    assert (int(store.counts[3, Count.TOKEN]), int(store.counts[3, Count.LEFT])) == (21, 1)
    assert int(store.counts[3, Count.POSITION]) == 5
    assert store.reals[3].tolist() == [0.5, 0.5, 0.7, 0.9, 1, 0, 0]
    others = rows(0, 1, 2)
    assert torch.equal(store.counts[others], before[0][others])
    assert torch.equal(store.reals[others], before[1][others])


def test_handed_over_tokens_are_poisoned_but_not_the_padding_row():
    store = RowStore(3, 2, CPU)
    apply(store, packed(step([prefill(1)]), 2))
    store.counts[1, Count.TOKEN] = 6
    store.hand_over(rows(1, 0, 0))
    assert store.counts[:, Count.TOKEN].tolist() == [0, -1, 0]


def test_forget_and_finish_touch_only_the_life_that_was_meant():
    store = RowStore(3, 2, CPU)
    apply(store, packed(step([prefill(1, epoch=5), prefill(2, epoch=6)]), 2))
    store.forget(RowRef(1, 4))
    store.finish([RowRef(2, 5)])
    assert store.counts[:, Count.DONE].tolist() == [1, 0, 0]
    assert store.pages[1].tolist() == [4, 7]
    store.forget(RowRef(1, 5))
    store.finish([RowRef(2, 6)])
    assert store.counts[:, Count.DONE].tolist() == [1, 1, 1]
    apply(store, packed(step([prefill(2, epoch=7)]), 2))
    store.finish([RowRef(2, 8)])  # life 8 never began: life 7, cancelled and not done, must not run on pages it lost
    assert store.counts[2, Count.DONE] == 1
    assert store.pages.tolist() == [[0, 0], [0, 0], [4, 7]]


def test_a_row_has_its_adapter_until_it_is_done():
    store = RowStore(4, 6, CPU)
    adapted = [replace(prefill(row), start=replace(start(row), adapter=row + 3)) for row in (1, 2)]
    apply(store, packed(step([*adapted, prefill(3)]), 6))
    assert store.adapters(rows(0, 2, 1, 3)).tolist() == [0, 5, 4, 0]
    store.end(rows(2), torch.tensor([True]))
    assert store.adapters(rows(0, 2, 1, 3)).tolist() == [0, 0, 4, 0]


def test_the_host_knows_which_rows_need_an_adapter_in_this_life():
    needs = Needs(DeviceTable(TABLE, CPU), 4)
    needs.begin(replace(start(1), adapter=2))
    needs.begin(start(2))
    assert needs.feeds([2, 1]).adapted and needs.feeds([1]).adapted and not needs.feeds([2]).adapted
    needs.begin(start(1, epoch=2))
    assert not needs.feeds([1, 2]).adapted
    same = np.array([1])  # asked about again, and in between a row began anew
    for life, (adapter, temperature) in enumerate(((3, 0.5), (0, 0.0), (1, 0.0), (0, 1.0)), 3):
        needs.begin(replace(start(1, epoch=life), adapter=adapter, temperature=temperature, top_logprobs=-1))
        assert (needs.feeds(same).adapted, needs.kind(same).full) == (adapter > 0, temperature > 0)
