"""Whose turn it is: first come first served, a preempted request keeps its place, prefill and decode alternate."""

from dataclasses import replace

from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage, table_of
from tests.fakes.sim_device import Timing
from tests.fakes.verdict import judge_all

from gapless.config import EngineConfig
from gapless.constrain.table import Walker
from gapless.engine.sequence import History, Roster, Running, Times
from gapless.records import RowRef, StepKind

ENDLESS = HashSpec(end_permille=0, answer_permille=0)
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.1, bookkeeping=0.4)


def order_of_starts(stage, device, entries) -> list[int]:
    """Play; returns request ids in the order their prefills were launched."""
    started, launch = [], device.launch

    def watched(step):
        started.extend(stage.engine.roster.get(p.start.ref).history.request.id for p in step.prefills)
        launch(step)

    device.launch = watched
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    device.audit()
    return started


def test_rows_are_given_in_the_order_of_arrival():
    entries = [Entry(ask(i, ids=(10 + i,), max_tokens=2 + i % 5), arrives=i // 4) for i in range(1, 20)]
    stage, device = sim_stage(ENDLESS, limits_of(ENDLESS, 2, rows=4), timing=TIMING)
    assert order_of_starts(stage, device, entries) == list(range(1, 20))


def test_a_preempted_request_keeps_its_place_before_those_that_came_later():
    old = Entry(ask(1, ids=range(10, 18), max_tokens=40))
    young = Entry(ask(2, ids=range(20, 28), max_tokens=40), arrives=1)
    late = [Entry(ask(i, ids=(10 + i,), max_tokens=4), arrives=6) for i in (3, 4, 5)]
    stage, device = sim_stage(ENDLESS, limits_of(ENDLESS, 2, pages=15, rows=3), timing=TIMING)
    started = order_of_starts(stage, device, [old, young, *late])
    assert stage.engine.counters.preemptions > 0
    again = [i for i, number in enumerate(started) if number == 2]
    assert len(again) > 1 and max(again) < started.index(3), f"request 2 lost its place: {started}"


def test_the_youngest_makes_room():
    entries = [Entry(ask(i, ids=range(10 * i, 10 * i + 6), max_tokens=30), arrives=i) for i in (1, 2, 3)]
    stage, device = sim_stage(ENDLESS, limits_of(ENDLESS, 2, pages=20), timing=TIMING)
    started = order_of_starts(stage, device, entries)
    assert started.count(1) == 1, "the oldest was preempted"
    assert started.count(3) > 1


def test_prefills_and_decodes_take_turns():
    """Neither a stream of arrivals nor long answers keep the other kind from being launched."""
    config = EngineConfig(lookahead=8, prefills_per_step=1)
    entries = [Entry(ask(i, ids=(10 + i,), max_tokens=30)) for i in range(1, 9)]
    stage, device = sim_stage(ENDLESS, limits_of(ENDLESS, 2), timing=TIMING, config=config)
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    kinds = [e.kind for e in device.events if e.name == "forward"]
    first = kinds[: 2 * len(entries) - 1]
    assert first[0::2] == [StepKind.PREFILL] * len(entries)
    assert first[1::2] == [StepKind.DECODE] * (len(entries) - 1)


def test_times_of_a_request_are_told_on_the_loops_clock():
    slow = Timing(forward=1.0, sampling=0.5, copy=0.25, bookkeeping=0.25, prefill=4.0)
    entries = [Entry(ask(1, shown=picture(1), max_tokens=5)), Entry(ask(2, ids=(33,), shown=picture(1), max_tokens=3))]
    stage, _ = sim_stage(ENDLESS, limits_of(ENDLESS, 1, rows=2), timing=slow)
    stage.play(entries)
    first, second = (stage.heard[i].finish.metrics for i in (1, 2))
    assert (first.input_tokens, first.output_tokens) == (ENDLESS.prefix + 2, 5)
    assert first.queue_ms == 0.0
    assert first.prefill_ms == first.ttft_ms == 5000.0
    assert first.decode_ms == 4 * 2000.0
    assert second.queue_ms == 13_000.0
    assert second.ttft_ms == second.queue_ms + second.prefill_ms
    assert (first.cached_tokens, second.cached_tokens) == (0, ENDLESS.prefix)


def test_waiting_in_the_mailbox_counts_as_queueing():
    request = replace(ask(1, max_tokens=3), submitted=-2.0)
    stage, _ = sim_stage(ENDLESS, limits_of(ENDLESS, 1), timing=TIMING)
    stage.play([Entry(request)])
    metrics = stage.heard[1].finish.metrics
    assert metrics.queue_ms == 2000.0
    assert metrics.ttft_ms == 2000.0 + metrics.prefill_ms


def test_the_roster_is_in_order_of_age_whatever_the_order_of_entry():
    roster = Roster()
    walker = Walker.start(table_of(ENDLESS), "text", 5, 1)
    for order in (3, 1, 2):
        history = History(ask(10 + order), order, walker, Times(0.0))
        roster.add(Running(history, RowRef(order, 1), 3, []))
    assert [seq.history.order for seq in roster.by_age()] == [1, 2, 3]
