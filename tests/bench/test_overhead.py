"""The cost of accounting is measured in pairs on one engine, and the meter is back in its place afterwards."""

from __future__ import annotations

import json

import pytest

from gapless.bench import overhead
from gapless.bench.hostpart import NULL, null_session
from gapless.errors import PromptTooLong
from gapless.observe.accounting import Accounting


def test_half_of_the_steps_are_not_noted():
    session = null_session(3, 2)
    meter = session.engine.meter
    found = overhead.measure(session, NULL, 3, pairs=4, steps=5)
    assert session.engine.loop.meter is meter
    assert (found.rows, found.pairs, found.steps) == (3, 4, 5)
    assert found.share == pytest.approx(found.cost_us / found.step_us) and found.error_us >= 0
    noted = Accounting.of(meter)
    assert 10 + 4 * 5 <= noted.steps["decode"] <= 10 + 4 * 5 + 4


def test_more_steps_than_a_context_has_are_refused():
    with pytest.raises(PromptTooLong):
        overhead.measure(null_session(1, 2), NULL, 1, pairs=2, steps=2000)


def test_the_command_prints_a_row_per_device(capsys):
    assert overhead.main(["--pairs", "2", "--json"]) in (0, 1)
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["rows"] for row in rows] == [*overhead.NULL_ROWS, 1]
    assert rows[-1]["device"] == "cpu, glint"
