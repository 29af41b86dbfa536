"""Who goes into which prefill step: by itself, beside others, or in parts whose end never comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge, judge_all

from gapless.config import EngineConfig
from gapless.costs import Costs

ENDLESS = HashSpec(end_permille=0, answer_permille=0)
COSTS = Costs(((1, 2e-3), (2, 4e-3)), ((4, 1e-3), (64, 2e-3)), picture=2e-4, step=1e-4)


def staged(depth, limit=3.0, costs=COSTS, rows=9, **more):
    limits = limits_of(ENDLESS, depth, rows=rows, page_size=4)
    stage, device = sim_stage(ENDLESS, limits, config=EngineConfig(max_step_ms=limit), costs=costs, **more)
    launch, steps = device.launch, []
    device.launch = lambda step: (steps.append(step), launch(step))
    return stage, device, steps


def test_while_somebody_waits_for_a_row_no_step_is_counted_as_too_long(caplog):
    """Even where a step of nothing would be."""
    stage, device, steps = staged(2, limit=5.0, costs=replace(COSTS, step=6e-3), rows=3)
    entries = [Entry(ask(number, max_tokens=20 + 5 * number)) for number in (1, 2, 3, 4)]
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    device.audit()
    prefills = sum(bool(step.prefills) for step in steps)
    assert stage.engine.counters.long_steps == 2 == prefills - 1, "the first step has no company"
    assert [record.args[2] for record in caplog.records] == [3], "tokens of a step that was launched"


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_picture_of_which_crops_alone_were_launched_is_found_by_nobody(depth):
    """Its request leaves while they are encoded; the next one about it is let in before they are done."""
    entries = [Entry(ask(1, max_tokens=60)), Entry(ask(2, shown=picture(1)), arrives=9)]
    entries.append(Entry(ask(3, shown=picture(1)), arrives=9))
    stage, device, _ = staged(depth)
    launch, cancelled = device.launch, []

    def cancels(step):
        launch(step)
        if step.look is not None and not cancelled:
            cancelled.append(step)
            stage.mailbox.cancel(2)

    device.launch = cancels
    stage.play(entries)
    right = expected(ENDLESS, entries)
    device.audit()
    assert cancelled and stage.heard[2].finish.error is not None and not stage.heard[2].tokens
    assert stage.heard[3].finish.metrics.cached_tokens == 0
    for number in (1, 3):
        judge(stage.heard[number], right[number])


def test_who_is_prefilled_again_by_itself_has_no_company_in_its_step():
    stage, device, steps = staged(1, limit=None, faults=(Fault("launch", 0),))
    entries = [Entry(ask(1)), Entry(ask(2)), Entry(ask(3), arrives=1)]
    judge_all(stage.play(entries), expected(ENDLESS, entries), entries)
    device.audit()
    assert [len(step.prefills) for step in steps if step.prefills] == [2, 1, 1, 1]
    assert stage.engine.counters.retried == 2
