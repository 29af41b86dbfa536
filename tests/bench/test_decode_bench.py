"""The decode benchmark from end to end on the CPU device with a micro model; the GPU's own numbers are made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tests.fakes.micro import CROP_SIZE, micro_config, micro_model

from gapless.bench.decode import complete, run_decode
from gapless.bench.decode_run import COLUMNS, Bench, Options, fill_gains, table_of
from gapless.bench.ending import EndingModel
from gapless.bench.hostpart import NULL, measure_null
from gapless.bench.roofline import Roofline
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.bench.wave import PROMPT, advance, questions, ride
from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.table import build_table
from gapless.device.host import HostDevice
from gapless.errors import InvalidRequest
from gapless.models.moondream.config import read_config
from gapless.models.moondream.templates import Templates

MODEL = micro_model(max_context=800)
TABLE = build_table(Templates.of(read_config(micro_config(800))).rules())
FIRST = MODEL.prefix + PROMPT
ENDS = (FIRST + 12, FIRST + 20)
ROWS = 3


def open_session(depth: int, ends: tuple[int, int] = ENDS) -> Session:
    config = EngineConfig(depth=depth, max_rows=ROWS, page_size=16, pages=400, prefills_per_step=2)
    device = HostDevice(EndingModel(MODEL, 0, *ends), TABLE, config, HostDeviceConfig(threads=1))
    return Session(device, TABLE, config)


class CpuRig:
    """A rig whose isolated times and traces are given."""

    roofline = Roofline(1_000_000, 1_000, 1e9)
    side = CROP_SIZE
    name = "cpu"

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}

    def session(self, depth: int) -> Session:
        if depth not in self.sessions:
            self.sessions[depth] = open_session(depth)
        return self.sessions[depth]

    def isolated(self, session: Session, rows: int) -> tuple[float | None, float | None]:
        assert session.engine.pipeline.empty
        if rows == 1:
            raise ValueError("no such graph")
        return 0.5, 0.25

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        seen = len(session.watch.notes)
        advance(session, rows, steps)
        works = []
        for i, note in enumerate(session.watch.notes[seen:]):
            work = StepWork(note.step.id, note.step.kind, len(note.step.rows), kernels=5)
            work.first = work.first_any = 1000.0 * i
            work.last = work.last_any = 1000.0 * i + 980.0
            work.calls["cudaGraphLaunch"] = 2
            works.append(work)
        return works

    def facts(self) -> dict[str, Any]:
        return {"device": "cpu", "command": "test"}

    def close(self) -> None:
        for session in self.sessions.values():
            session.watch.close()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    rig, saved = CpuRig(), []
    options = Options(streams=(1, ROWS), seconds=600, settled=4, traced=5, host_rows=(1, ROWS), host_steps=10)
    try:
        found = Bench(rig, options).run(lambda report: saved.append(json.dumps(report)))
    finally:
        rig.close()
    assert len(saved) > 5
    assert json.loads(saved[-1]) == json.loads(json.dumps(found))
    return found


def test_a_row_for_each_number_of_streams_and_depth_with_every_column(report: dict[str, Any]) -> None:
    assert [(row["streams"], row["depth"]) for row in report["rows"]] == [(1, 1), (1, 2), (ROWS, 1), (ROWS, 2)]
    for row in report["rows"]:
        assert set(COLUMNS) <= set(row)
        assert row["idle_ms"] == pytest.approx(0.02) and row["trace"]["missing"] == 0
        assert FIRST < row["context"] < ENDS[1] + 3
        assert row["period_ms"] >= row["device_ms"] > 0
        for column in ("plan_ms", "launch_ms", "commit_ms", "tokens_per_s", "gb_per_s", "roofline_share"):
            assert row[column] > 0, column


def test_zombies_exist_at_depth_2_alone(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        if row["depth"] == 1:
            assert row["zombie_share"] == 0
        else:
            assert 1 / 25 < row["zombie_share"] < 1 / 8


def test_gains_compare_with_depth_1(report: dict[str, Any]) -> None:
    rows = {(row["streams"], row["depth"]): row for row in report["rows"]}
    for streams in (1, ROWS):
        blocking, pipelined = rows[streams, 1], rows[streams, 2]
        assert blocking["observed_gain"] == 0
        right = pipelined["tokens_per_s"] / blocking["tokens_per_s"] - 1
        assert pipelined["observed_gain"] == pytest.approx(right, abs=1e-4)


def test_gains_are_predicted_from_the_parts_of_depth_1_where_its_graphs_were_measured(report: dict[str, Any]) -> None:
    rows = {(row["streams"], row["depth"]): row for row in report["rows"]}
    assert rows[1, 1]["predicted_gain"] is None and rows[1, 2]["predicted_gain"] is None
    blocking, pipelined = rows[ROWS, 1], rows[ROWS, 2]
    host = blocking["plan_ms"] + blocking["launch_ms"] + blocking["commit_ms"]
    period = max(0.75, host, blocking["period_ms"] / 2)
    length = (blocking["answer_tokens"] + pipelined["answer_tokens"]) / 2
    right = blocking["period_ms"] / period * (1 - 1 / length) - 1
    assert blocking["predicted_gain"] == 0
    assert pipelined["predicted_gain"] == pytest.approx(right, rel=1e-3)


def test_the_rows_say_how_long_the_answers_were(report: dict[str, Any]) -> None:
    for row in report["rows"]:
        assert ENDS[0] - FIRST <= row["answer_tokens"] <= ENDS[1] - FIRST + 1


def test_a_section_that_fails_is_noted_and_the_rest_goes_on(report: dict[str, Any]) -> None:
    assert [note for note in report["notes"] if "no such graph" in note] == report["notes"]
    assert len(report["notes"]) == 2
    for row in report["rows"]:
        assert (row["forward_ms"], row["sampling_ms"]) == ((None, None) if row["streams"] == 1 else (0.5, 0.25))


def test_the_hosts_part_makes_no_call_per_row(report: dict[str, Any]) -> None:
    assert [(part["device"], part["rows"]) for part in report["host"]] == [
        (NULL, 1), (NULL, ROWS), ("cpu", 1), ("cpu", ROWS)
    ]  # fmt: skip
    for part in report["host"]:
        assert part["calls_per_step"] == pytest.approx(2.0, abs=0.2)
        assert part["api_calls"] == ({"cudaGraphLaunch": 2} if part["device"] == "cpu" else None)


def test_what_does_not_fit_into_the_time_is_left_out() -> None:
    class Ticking:
        def __init__(self) -> None:
            self.time = 0.0

        def __call__(self) -> float:
            self.time += 1.0
            return self.time

    rig = CpuRig()
    try:
        report = Bench(rig, Options(streams=(1,), seconds=5, settled=2, host_rows=(1,)), now=Ticking()).run(list)
    finally:
        rig.close()
    assert any("left out" in note for note in report["notes"])
    assert all(row["idle_ms"] is None for row in report["rows"])
    assert "idle_ms" in table_of(report["rows"])


def test_answers_end_where_their_page_says_and_the_planner_does_not_know() -> None:
    session = open_session(2)
    try:
        wave = ride(session, questions(ROWS, 1, CROP_SIZE))
        assert wave.zombies == ROWS
        lengths = session.engine.counters.tokens / ROWS
        assert ENDS[0] - FIRST <= lengths <= ENDS[1] - FIRST + 1
        assert session.engine.counters.finished == ROWS
    finally:
        session.watch.close()


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


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_what_is_no_gpu_is_refused_before_anything_is_loaded(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.bench.decode._load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(InvalidRequest, match="is no GPU"):
        run_decode(Options(), list, device=device)
    with pytest.raises(InvalidRequest, match="there is no GPU"):
        run_decode(Options(), list, device="cuda")


def test_a_report_with_a_hole_is_not_complete() -> None:
    options = Options(streams=(1,), depths=(1, 2))
    rows = [{"period_ms": 1.0, "idle_ms": 0.0}, {"period_ms": 1.0, "idle_ms": None}]
    assert not complete({"rows": rows}, options)
    assert not complete({"rows": rows[:1]}, options)
    assert complete({"rows": [rows[0], rows[0]]}, options)


def test_gains_without_a_blocking_row_stay_null() -> None:
    rows = {(8, 2): {"streams": 8, "depth": 2, "tokens_per_s": 5.0, "observed_gain": None}}
    fill_gains(rows)
    assert rows[8, 2]["observed_gain"] is None and rows[8, 2]["predicted_gain"] is None
