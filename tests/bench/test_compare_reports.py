"""Two reports side by side."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.bench.compare import Change, Comparison, compare
from gapless.errors import InvalidRequest


def report(**other: Any) -> dict[str, Any]:
    numbers = {"period_ms": 4.0, "tokens_per_s": 1000.0, "zombie_share": 0.01, "steps": 100, "wait_ms": 1.0}
    not_compared = {"predicted_gain": None, "waves": [1.0, 2.0], "trace": {"span_ms": 3.0}, "full": True}
    row = {"streams": 8, "depth": 2, **numbers, **not_compared}
    rows = [{**row, "depth": 1}, {**row, **other}]
    return {"machine": {"gpu": "X"}, "rows": rows, "host": [{"device": "null", "rows": 8, "depth": 2, "plan_ms": 0.1}]}


def changes(found: Comparison, row: int = 1) -> dict[str, Change]:
    return dict(found.rows[row].columns)


def test_equal_reports_have_no_mark() -> None:
    found = compare(report(), report(), 0.02)
    assert [(row.section, dict(row.label)) for row in found.rows] == [
        ("rows", {"streams": 8, "depth": 1}),
        ("rows", {"streams": 8, "depth": 2}),
        ("host", {"device": "null", "rows": 8, "depth": 2}),
    ]
    assert set(changes(found)) == {"period_ms", "tokens_per_s", "zombie_share", "steps", "wait_ms"}
    assert not found.failed and not any(c.marked for row in found.rows for c in row.columns.values())


@pytest.mark.parametrize(
    ("column", "value", "change", "better"),
    [
        ("period_ms", 4.4, 0.1, False),
        ("period_ms", 3.6, -0.1, True),
        ("tokens_per_s", 900.0, -0.1, False),
        ("tokens_per_s", 1100.0, 0.1, True),
        ("zombie_share", 0.06, 0.05, False),
        ("steps", 110, 0.1, None),
        ("wait_ms", 2.0, 1.0, None),
    ],
)
def test_a_change_above_the_threshold_is_marked_and_judged(
    column: str, value: float, change: float, better: bool | None
) -> None:
    found = compare(report(), report(**{column: value}), 0.02)
    seen = changes(found)[column]
    assert seen.change == pytest.approx(change) and seen.marked and seen.better is better
    assert found.failed is (better is False)
    assert sum(c.marked for row in found.rows for c in row.columns.values()) == 1
    assert not compare(report(), report(**{column: value}), 2.0).failed


def test_gains_and_shares_are_compared_in_points() -> None:
    found = compare(report(observed_gain=0.0), report(observed_gain=0.015), 0.02)
    seen = changes(found)["observed_gain"]
    assert seen.in_points and seen.change == pytest.approx(0.015) and not seen.marked
    assert seen.as_dict()["ratio"] is None


def test_from_zero_to_something_has_no_ratio_and_is_marked() -> None:
    found = compare(report(idle_ms=0.0), report(idle_ms=0.5), 0.02)
    assert changes(found)["idle_ms"] == Change(0.0, 0.5, None, False, True, False)
    assert found.failed
    assert not compare(report(idle_ms=0.0), report(idle_ms=0.0), 0.02).failed


def test_columns_can_be_chosen_also_inside_objects() -> None:
    found = compare(report(), report(trace={"span_ms": 6.0}, period_ms=9.0), 0.02, ["trace.span_ms"])
    assert set(changes(found)) == {"trace.span_ms"} and changes(found)["trace.span_ms"].change == 1.0
    with pytest.raises(InvalidRequest, match="called speed"):
        compare(report(), report(), 0.02, ["speed"])


def test_rows_without_a_partner_are_told() -> None:
    less, more = report(), report()
    del less["rows"][0]
    found = compare(more, less, 0.02)
    assert found.failed and found.only_a == (("rows", (("streams", 8), ("depth", 1))),)
    other_way = compare(less, more, 0.02)
    assert not other_way.failed and other_way.as_dict()["only_b"] == [{"section": "rows", "streams": 8, "depth": 1}]


def test_a_number_that_is_gone_is_told() -> None:
    found = compare(report(), report(period_ms=None), 0.02)
    assert found.failed and [row.lost for row in found.rows] == [(), ("period_ms",), ()]
    assert found.as_dict()["rows"][1]["lost"] == ["period_ms"]
    assert not compare(report(), report(period_ms=None), 0.02, ["tokens_per_s"]).failed
    assert not compare(report(period_ms=None), report(), 0.02).failed


def test_reports_of_other_kinds_and_rows_alike() -> None:
    mix = {"model": "glint", "runs": [{"depth": 1, "wall_s": 1.0}, {"depth": 1, "wall_s": 2.0}]}
    found = compare(mix, {**mix, "runs": [{"depth": 1, "wall_s": 1.0}, {"depth": 1, "wall_s": 3.0}]}, 0.02)
    assert [row.columns["wall_s"].change for row in found.rows] == pytest.approx([0.0, 0.5])
    with pytest.raises(InvalidRequest, match="no row in common"):
        compare(mix, report(), 0.02)
    assert compare(report(), report(streams=[8]), 0.02).only_a == (("rows", (("streams", 8), ("depth", 2))),)
