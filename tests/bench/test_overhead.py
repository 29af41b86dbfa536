"""The cost of accounting is measured in pairs on one engine, and the meter is back in its place afterwards."""

from __future__ import annotations

import json

import pytest
from tests.fakes.sim_clock import SimClock

from gapless.bench import overhead
from gapless.bench.hostpart import NULL, null_session
from gapless.errors import PromptTooLong
from gapless.observe.accounting import Accounting
from gapless.observe.meter import Meter


def test_half_of_the_steps_are_not_noted():
    session = null_session(3, 2)
    meter = session.engine.meter
    found = overhead.measure(session, NULL, 3, pairs=4, steps=5)
    assert session.engine.loop.meter is meter
    assert (found.rows, found.pairs, found.steps) == (3, 4, 5)
    assert found.share == pytest.approx(found.cost_us / found.step_us) and found.error_us >= 0
    noted = Accounting.of(meter)
    assert 10 + 4 * 5 <= noted.steps["decode"] <= 10 + 4 * 5 + 4


def test_the_cost_is_what_accounting_adds_whatever_else_grows(monkeypatch):
    """On a clock of this test: a noted step takes 2 s more, and every step a little longer than the one before."""
    session = null_session(1, 2)
    clock, wait = SimClock(), session.watch.device.wait

    def slower(step, rows):
        clock.advance(1.0 + 0.001 * step.id)
        return wait(step, rows)

    def noted(meter, held):
        clock.advance(2.0)
        Meter.retired(meter, held)

    monkeypatch.setattr(session.watch.device, "wait", slower)
    monkeypatch.setattr(session.engine.meter, "__class__", type("Slow", (Meter,), {"retired": noted}))
    monkeypatch.setattr(overhead, "perf_counter", clock.now)
    found = overhead.measure(session, NULL, 1, pairs=8, steps=5)
    assert found.cost_us == pytest.approx(2e6) and found.error_us < 0.01e6
    assert found.step_us == pytest.approx(3e6, rel=0.05) and found.share == pytest.approx(found.cost_us / found.step_us)


def test_more_steps_than_a_context_has_are_refused():
    with pytest.raises(PromptTooLong):
        overhead.measure(null_session(1, 2), NULL, 1, pairs=2, steps=2000)


def test_the_command_prints_a_row_per_device(capsys):
    assert overhead.main(["--pairs", "2", "--json"]) in (0, 1)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["rows"] for row in rows] == [*overhead.NULL_ROWS, 1]
    assert rows[-1]["device"] == "cpu, glint"
