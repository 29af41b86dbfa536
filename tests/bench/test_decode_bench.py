"""The decode benchmark from end to end with a micro model: on the CPU device, and on the GPU's own code without one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.small_rigs import FIRST, LENGTHS, MODEL, ROWS, SIDE, InlineRig, MicroRig, shorten

from gapless.bench.decode import Decode
from gapless.bench.decode_rows import COLUMNS, fill_gains
from gapless.bench.decode_run import Bench, Options
from gapless.bench.ending import EndingModel
from gapless.bench.hostpart import NULL, measure_null
from gapless.bench.wave import questions, ride
from gapless.errors import InvalidRequest

SMALL = {"settled": 2, "before_trace": 2, "traced": 5, "host_steps": 5, "seconds": 600}


@pytest.fixture(scope="module", autouse=True)
def short_answers() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        yield


@pytest.fixture(scope="module")
def inside() -> dict[str, Any]:
    """A report of the GPU's own code."""
    rig, saved = InlineRig(), []
    options = Options(streams=(1, ROWS), host_rows=(ROWS,), waves=2, **SMALL)
    try:
        bench = Bench(rig, options)
        found = bench.run(lambda report: saved.append(json.dumps(report)))
    finally:
        rig.close()
    assert json.loads(saved[-1]) == json.loads(json.dumps(found)) and len(saved) > 4
    assert not found["notes"] and len(found["seconds"]) == options.sections(True)
    return found


@pytest.fixture(scope="module")
def outside() -> dict[str, Any]:
    """A report of the CPU device."""
    rig = MicroRig()
    options = Options(streams=(ROWS,), host_rows=(1,), waves=1, **SMALL)
    try:
        found = Bench(rig, options).run(list)
    finally:
        rig.close()
    assert not found["notes"] and len(found["seconds"]) == options.sections(False)
    return found


def by_key(report: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    return {(row["sampler"], row["streams"], row["depth"]): row for row in report["rows"]}


def test_a_row_for_each_sampler_number_of_streams_and_depth_with_every_column(inside: dict[str, Any]) -> None:
    wanted = [(sampler, n, depth) for sampler in ("greedy", "default") for n in (1, ROWS) for depth in (1, 2)]
    assert list(by_key(inside)) == wanted
    for row in inside["rows"]:
        assert set(COLUMNS) <= set(row)
        assert FIRST < row["context"] < FIRST + LENGTHS[1] + 3
        assert row["period_ms"] == pytest.approx(row["device_ms"] + row["gap_ms"], rel=0.2)
        assert all(row[name] is not None for name in COLUMNS if name != "idle_ms")
        assert row["forward_ms"] > 0 and row["measured"] == 2
        assert LENGTHS[0] <= row["answer_tokens"] <= LENGTHS[1] + 1


def test_zombies_exist_at_depth_2_alone_whatever_the_sampler(inside: dict[str, Any], outside: dict[str, Any]) -> None:
    for row in [*inside["rows"], *outside["rows"]]:
        if row["depth"] == 1:
            assert row["zombie_share"] == 0
        else:
            assert 1 / 25 < row["zombie_share"] < 1 / 8


def test_sampling_alone_is_timed_with_and_without_drawing(inside: dict[str, Any]) -> None:
    rows = by_key(inside)
    for streams in (1, ROWS):
        assert rows["greedy", streams, 1]["forward_ms"] == rows["default", streams, 2]["forward_ms"]
        assert rows["greedy", streams, 1]["sampling_ms"] != rows["default", streams, 1]["sampling_ms"]


def test_greedy_rows_alone_are_traced(inside: dict[str, Any]) -> None:
    for row in inside["rows"]:
        if row["sampler"] == "greedy":
            assert row["idle_ms"] == pytest.approx(0.02) and row["trace"]["missing"] == 0
        else:
            assert row["idle_ms"] is None and "trace" not in row


def test_depths_take_turns(inside: dict[str, Any]) -> None:
    waves = [name for name in inside["seconds"] if name.startswith("wave")]
    depths = [int(name.partition("depth ")[2].partition(",")[0]) for name in waves]
    assert depths == [1, 2] * (len(waves) // 2) and len(waves) == 2 * len(inside["rows"])


def test_gains_compare_with_depth_1_of_the_same_sampler(inside: dict[str, Any]) -> None:
    rows = by_key(inside)
    for (sampler, streams, depth), row in rows.items():
        blocking = rows[sampler, streams, 1]
        right = row["tokens_per_s"] / blocking["tokens_per_s"] - 1
        assert row["observed_gain"] == pytest.approx(right, abs=1e-4)
        if depth == 1:
            assert row["predicted_gain"] == row["observed_gain"] == 0


def test_gains_are_predicted_from_the_parts_of_depth_1(inside: dict[str, Any]) -> None:
    rows = by_key(inside)
    for sampler in ("greedy", "default"):
        blocking, pipelined = rows[sampler, 1, 1], rows[sampler, 1, 2]
        host = blocking["plan_ms"] + blocking["launch_ms"] + blocking["commit_ms"]
        device = blocking["forward_ms"] + blocking["sampling_ms"]
        period = max(device, host, max(device, blocking["period_ms"]) / 2)
        length = (blocking["answer_tokens"] + pipelined["answer_tokens"]) / 2
        right = blocking["period_ms"] / period * (1 - 1 / length) - 1
        assert pipelined["predicted_gain"] == pytest.approx(right, rel=1e-3)


def test_the_hosts_part_makes_no_call_per_row(inside: dict[str, Any]) -> None:
    assert [(part["device"], part["rows"]) for part in inside["host"]] == [(NULL, ROWS), ("cuda, graphs", ROWS)]
    for part in inside["host"]:
        assert part["calls_per_step"] == pytest.approx(2.0, abs=0.2)
        assert part["api_calls"] == ({"cudaGraphLaunch": 2} if part["device"] != NULL else None)


def test_on_a_cpu_what_lies_inside_a_step_is_null_and_the_rest_is_there(outside: dict[str, Any]) -> None:
    assert len(outside["rows"]) == 4
    for row in outside["rows"]:
        empty = {name for name in COLUMNS if row[name] is None}
        assert empty == {"forward_ms", "sampling_ms", "idle_ms"} and "trace" not in row
        assert row["period_ms"] >= row["device_ms"] > 0 and row["gap_ms"] >= 0 and row["tokens_per_s"] > 0
        assert 0 <= row["idle_share"] < 1
    assert Decode("micro", streams=(ROWS,), waves=1).complete(outside)
    assert outside["samplers"]["default"] == {"temperature": 0.5, "top_p": 0.3}


def test_a_failing_section_is_noted_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = InlineRig()
    monkeypatch.setattr(rig, "isolated", lambda session, rows: 1 / 0)
    try:
        options = Options(streams=(ROWS,), host_rows=(), waves=1, samplers=("greedy",), **SMALL)
        report = Bench(rig, options).run(list)
    finally:
        rig.close()
    assert len(report["notes"]) == 1 and "ZeroDivisionError" in report["notes"][0]
    assert [row["forward_ms"] for row in report["rows"]] == [None, None]
    assert all(row["trace"]["pairs"] for row in report["rows"])
    assert not Decode(streams=(ROWS,), sampler="greedy").complete(report)


def test_rows_that_detect_and_rows_with_adapters_stand_beside_the_others() -> None:
    rig = InlineRig((ROWS,), adapters=2)
    try:
        options = Options(
            streams=(ROWS,),
            host_rows=(),
            waves=1,
            samplers=("greedy", "spatial", "adapters"),
            **{**SMALL, "settled": 4},
        )
        report = Bench(rig, options).run(list)
        notes = rig.session(2).watch.notes
        table = rig.session(2).watch.device.program.table
        starts = [prefill.start for note in notes for prefill in note.step.prefills]
    finally:
        rig.close()
    assert not report["notes"] and len(report["seconds"]) == options.sections(True)
    rows = by_key(report)
    assert list(rows) == [(kind, ROWS, depth) for kind in ("greedy", "spatial", "adapters") for depth in (1, 2)]
    for (_, streams, depth), row in rows.items():
        assert row["forward_ms"] > 0 and row["sampling_ms"] > 0
        right = row["period_ms"] / rows["greedy", streams, depth]["period_ms"] - 1
        assert row["over_greedy"] == pytest.approx(right, abs=1e-4)
        assert LENGTHS[0] <= row["answer_tokens"] <= LENGTHS[1] + 4
    assert sorted({start.adapter for start in starts}) == [0, 1, 2]
    assert any(table.heads_from(start.state) for start in starts)
    assert Decode(streams=(ROWS,), sampler="greedy", kinds=("spatial", "adapters")).complete(report)


@pytest.mark.parametrize(("given", "right"), [("spatial", ("spatial",)), ("spatial,adapters", ("spatial", "adapters"))])
def test_other_rows_are_asked_for_by_name(
    given: str, right: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    from gapless.bench.decode import _kinds, main

    assert _kinds(given) == right
    with pytest.raises(SystemExit):
        main(["--also", "boxes"])
    assert "give one or more of spatial, adapters" in capsys.readouterr().err


def test_turns_that_do_not_fit_are_left_out_in_pairs() -> None:
    class Slow:
        """Every look at the clock takes a second."""

        def __init__(self) -> None:
            self.time = 0.0

        def __call__(self) -> float:
            self.time += 1.0
            return self.time

    rig = MicroRig(rows=1)
    try:
        options = Options(streams=(1,), host_rows=(), waves=5, **{**SMALL, "seconds": 40})
        report = Bench(rig, options, now=Slow()).run(list)
    finally:
        rig.close()
    assert {row["measured"] for row in report["rows"]} < {1, 2, 3, 4}
    out = Counter(note.partition(" of ")[0] for note in report["notes"])
    assert out and all(count % 2 == 0 for count in out.values())


def test_answers_end_where_their_page_says_and_the_planner_does_not_know() -> None:
    rig = MicroRig()
    try:
        session = rig.session(2)
        for temperature in (0.0, 1.0):
            before = session.engine.counters.finished
            wave = ride(session, questions(ROWS, 1 + before, SIDE, temperature=temperature))
            assert wave.spent.counters.zombies == ROWS
            assert LENGTHS[0] <= wave.answered / ROWS <= LENGTHS[1] + 1
            assert session.engine.counters.finished == before + ROWS
    finally:
        rig.close()


def test_ends_can_be_drawn_anew() -> None:
    model = EndingModel(MODEL, 0, 5, 6)
    model.new_cache(40, 16)
    memory = model._ends
    model.redraw(100, 120, seed=3)
    again = EndingModel(MODEL, 0, 100, 120, seed=3)
    again.new_cache(40, 16)
    assert model._ends is memory and torch.equal(memory, again._ends)
    assert memory[1:].min() >= 100 and memory[1:].max() < 120 and memory[0] == MODEL.max_context


def test_a_stamp_ends_its_row_alone() -> None:
    model = EndingModel(MODEL, 0, 5, 6)
    cache = model.new_cache(40, 16)
    x = MODEL.embed(torch.tensor([11, 12]), torch.full((2, 2), -1.0))
    tables = torch.arange(1, 9).reshape(2, 4)
    hidden = model.forward(x, torch.tensor([4, 5]), tables, cache)
    assert model.logits(hidden).argmax(dim=1).tolist()[1] == 0
    scores = model.logits(hidden)[0]
    assert scores.argmax() != 0
    plain = MODEL.logits(MODEL.forward(x, torch.tensor([4, 5]), tables, MODEL.new_cache(40, 16)))[0]
    assert torch.equal(scores[1:], plain[1:])


def test_the_null_device_is_called_twice_a_step() -> None:
    for part in measure_null((1, 16), steps=10):
        assert part.calls_per_step == 2.0
        assert part.plan_ms > 0 and part.launch_ms > 0 and part.commit_ms > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.bench.decode.load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InvalidRequest, match="there is no GPU"):
        Decode(device="cuda").run(list)
    with pytest.raises(InvalidRequest, match="does not exist"):
        Decode(device="tpu").run(list)


def test_gains_without_a_blocking_row_stay_null() -> None:
    row = {"sampler": "greedy", "streams": 8, "depth": 2, "tokens_per_s": 5.0, "observed_gain": None}
    rows = {("greedy", 8, 2): row}
    fill_gains(rows)
    assert row["observed_gain"] is None and row["predicted_gain"] is None


def test_as_a_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gapless.bench.decode import main

    assert main(["--host-only", "--host-rows", "1,2"]) == 0
    assert capsys.readouterr().out.count("null") == 2
    assert main(["--device", "cuda:77"]) == 2
