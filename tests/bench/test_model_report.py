"""The cost model's table: published figures, reports with numbers put in, and a step out of one's head."""

from __future__ import annotations

from typing import Any

import pytest

from gapless.bench.model_report import WhatIf, imagined_rows, published_rows, report_rows
from gapless.bench.published import PUBLISHED
from gapless.errors import InvalidRequest

HOST = {"plan_ms": 0.25, "launch_ms": 0.25, "commit_ms": 0.5}
ROWS: list[dict[str, Any]] = [
    {"streams": 1, "depth": 1, "forward_ms": 3.0, "sampling_ms": 0.5, "period_ms": 5.0, "answer_tokens": 100, **HOST},
    {"streams": 1, "depth": 2, "period_ms": 3.6, "observed_gain": 0.37},
    {"streams": 8, "depth": 1, "forward_ms": 3.7, "sampling_ms": 0.5, "period_ms": 6.0, "answer_tokens": 100, **HOST},
    {"streams": 8, "depth": 2, "period_ms": 4.3, "observed_gain": 0.39},
]


def test_every_published_prediction_is_met_from_the_other_columns() -> None:
    rows = published_rows()
    assert len(rows) == len(PUBLISHED) == 6
    for row, given in zip(rows, PUBLISHED, strict=True):
        told = row.as_dict()
        assert (told["gpu"], told["streams"], told["depth"]) == (given.gpu, given.streams, 2)
        assert told["predicted_gain"] == pytest.approx(given.predicted, abs=0.0015)
        assert told["pipelined_ms"] == given.pipelined_ms and told["observed_gain"] == given.observed
        assert told["gain_by_parts"] > told["predicted_gain"], "their steps took a little more than their parts"


def test_published_figures_at_other_depths_come_from_parts() -> None:
    (three, four) = published_rows((3, 4), (32,), tokens=50)[:2]
    assert (three.predicted, three.measured_ms, three.observed) == (three.by_parts, None, None)
    assert three.predicted.pipelined_ms == four.predicted.pipelined_ms == pytest.approx(10.50)
    assert four.predicted.tax == pytest.approx(three.predicted.tax * 1.5)
    with pytest.raises(InvalidRequest, match="not 2, 3"):
        published_rows(streams=(2, 3))


def test_a_report_is_predicted_from_parts_beside_what_was_measured() -> None:
    one, eight = report_rows(ROWS)
    assert one.predicted.gain == pytest.approx(5.0 / 3.5 * 0.99 - 1)
    assert one.by_periods is not None and one.by_periods.gain == pytest.approx(5.0 / 3.6 * 0.99 - 1)
    assert (one.measured_ms, one.observed) == (3.6, 0.37)
    assert eight.predicted.tax == pytest.approx(8 / 100 * 0.1 / 4.2)
    assert eight.as_dict()["marginal_row_ms"] == pytest.approx(0.1)


def test_depths_and_streams_can_be_chosen() -> None:
    rows = report_rows(ROWS, (1, 3), (8,))
    assert [(row.predicted.point.streams, row.predicted.depth) for row in rows] == [(8, 1), (8, 3)]
    assert (rows[0].predicted.gain, rows[0].measured_ms) == (0, 6.0)
    assert rows[1].measured_ms is None and rows[1].by_periods is None and rows[1].observed is None
    with pytest.raises(InvalidRequest, match="can predict 1, 8 streams, not 7"):
        report_rows(ROWS, (), (1, 7))
    with pytest.raises(InvalidRequest, match="no row of depth 1"):
        report_rows(ROWS[1:2])


def test_other_numbers_put_measured_periods_aside() -> None:
    (one, eight) = report_rows(ROWS, (2,), (), WhatIf(host_ms=6.0))
    assert one.predicted.point.parts.chain_ms == pytest.approx(1.5 + 5.0), "the chain grows with the host's part"
    assert one.predicted.point.blocking_ms == pytest.approx(3.5 + 6.5)
    assert one.predicted.pipelined_ms == eight.predicted.pipelined_ms == 6.0
    assert one.measured_ms is None and one.observed is None and one.by_periods is None
    (less,) = report_rows(ROWS, (2,), (1,), WhatIf(host_ms=0.1, chain_ms=0.4))
    assert (less.predicted.point.parts.chain_ms, less.predicted.point.blocking_ms) == (0.4, 3.9)
    (wide,) = report_rows(ROWS, (2,), (8,), WhatIf(forward_ms=2.0, sampling_ms=0.0))
    assert wide.predicted.point.row_ms is None and wide.predicted.tax == pytest.approx(0.01)


def test_another_length_of_answers_changes_the_tax_alone() -> None:
    (one,) = report_rows(ROWS, (2,), (1,), WhatIf(tokens=20))
    assert one.predicted.tax == pytest.approx(0.05)
    assert (one.measured_ms, one.predicted.point.blocking_ms) == (3.6, 5.0)


def test_a_step_out_of_ones_head() -> None:
    rows = imagined_rows(WhatIf(forward_ms=4.0, host_ms=3.0, tokens=50))
    assert [row.predicted.depth for row in rows] == [1, 2, 3, 4]
    assert [row.predicted.pipelined_ms for row in rows] == [7.0, 4.0, 4.0, 4.0]
    assert [row.predicted.tax for row in rows] == pytest.approx([0, 0.02, 0.04, 0.06])
    (slow,) = imagined_rows(WhatIf(4.0, 0.5, chain_ms=9.0), (2,), (8,))
    assert (slow.predicted.pipelined_ms, slow.predicted.point.parts.host_ms) == (9.0, 9.0)
    with pytest.raises(InvalidRequest, match="--forward-ms"):
        imagined_rows(WhatIf(host_ms=3.0))
    with pytest.raises(InvalidRequest, match="--host-ms or --chain-ms"):
        imagined_rows(WhatIf(forward_ms=3.0))
