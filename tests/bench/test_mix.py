"""The fixed mix: what it holds, and that it runs with equal answers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.fakes.micro import write_micro

from gapless.bench.machine import describe_machine
from gapless.bench.mix import MIX, PICTURES, picture_path
from gapless.bench.run import Report, run_mix
from gapless.cli.main import main
from gapless.observe.accounting import Accounting
from gapless.observe.counters import Counters


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro(tmp_path_factory.mktemp("micro"))


@pytest.fixture(scope="module")
def report(micro: Path) -> Report:
    return run_mix(str(micro), (1, 2, 3))


def test_the_mix_is_24_requests_of_all_skills_over_4_small_pictures() -> None:
    assert len(MIX) == 24 and len(PICTURES) == 4
    assert Counter(name for name, _ in MIX) == dict.fromkeys(PICTURES, 6)
    assert set(Counter(ask.skill for _, ask in MIX)) == {"query", "caption", "point", "detect", "segment"}
    assert any(ask.reasoning for _, ask in MIX)
    for _, ask in MIX:  # free text: greedy, or with a seed; else no two runs need agree
        if ask.skill in ("query", "caption"):
            assert ask.settings["temperature"] == 0 or "seed" in ask.settings
    for name in PICTURES:
        assert max(Image.open(picture_path(name)).size) <= 256


def test_every_depth_gives_the_same_answers(report: Report) -> None:
    assert [run.depth for run in report.runs] == [1, 2, 3]
    assert report.answers_equal
    assert all(len(run.answers) == 24 for run in report.runs)
    assert len({str(answer) for answer in report.runs[0].answers}) >= 8


def test_numbers_belong_together(report: Report) -> None:
    for run in report.runs:
        assert run.steps > 0 and run.tokens >= 24 and run.wall_s > 0
        assert run.tokens_per_s == pytest.approx(run.tokens / run.wall_s)
        assert 0 <= run.idle_share < 1 and run.step_ms > 0
    assert len({run.tokens for run in report.runs}) == 1


class CountingVLM:
    """Answers with nothing; its engine has run 10 steps of 3 ms with 1 ms of idle time each, and more before."""

    def __init__(self) -> None:
        self.asked = 0

    def __enter__(self) -> CountingVLM:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode_image(self, path: Path) -> Path:
        return path

    def _answer(self, *_: object, **__: object) -> dict[str, Any]:
        self.asked += 1
        return {"metrics": {"ttft_ms": 1.0}}

    query = caption = point = detect = segment = _answer

    def accounting(self) -> Accounting:
        times = 1 if self.asked < 24 else 2
        steps, busy = {"prefill": 4 * times, "decode": 6 * times}, {"prefill": 18.0 * times, "decode": 12.0 * times}
        return Accounting(Counters(tokens=50 * times), steps, busy, 10.0 * times, {}, (0.0, 30.0 * times))


def test_a_run_is_what_the_accounting_says_of_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.load", lambda *_, **__: CountingVLM())
    (run,) = run_mix("any", (2,)).runs
    assert (run.steps, run.tokens, run.step_ms, run.idle_share) == (10, 50, 4.0, 0.25)
    assert run.answers == ({},) * 24


def test_unequal_answers_are_told(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _ = report.runs
    unequal = Report(report.model, report.machine, (first, type(second)(2, 1.0, 1, 1, 1.0, 0.0, 1.0, ())))
    assert not unequal.answers_equal
    monkeypatch.setattr("gapless.bench.run.run_mix", lambda *_, **__: unequal)
    assert main(["bench", "mix"]) == 1
    out, err = capsys.readouterr()
    assert "answers equal at every depth: NO" in out and "bug" in err


def test_bench_mix_as_json(micro: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "mix", "--depth", "2", "--model", str(micro), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == "" and found["answers_equal"] is True
    assert (found["requests"], found["pictures"], found["model"]) == (24, 4, str(micro))
    assert [run["depth"] for run in found["runs"]] == [2]
    assert found["machine"] == describe_machine().as_dict()
    assert set(found["runs"][0]) == {
        "depth", "wall_s", "steps", "tokens", "step_ms", "idle_share", "tokens_per_s"
    }  # fmt: skip


def test_bench_mix_for_people(micro: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "mix", "--depth", "1", "--model", str(micro)]) == 0
    out = capsys.readouterr().out
    assert "step ms" in out and "idle %" in out and "tokens/s" in out
    assert "answers equal at every depth: yes" in out and describe_machine().torch in out
