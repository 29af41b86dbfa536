"""The fleet benchmark: who takes part when, the same mix at any time, and a small run of real processes."""

import json
import threading
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest

from gapless.bench.fleet import FleetBench, main, options, plan, ratios
from gapless.bench.fleet_engine import Ask, Done, length
from gapless.bench.fleet_load import REPEATS, Phase, Routed, picture_of


def test_phases_take_turns():
    assert plan([1, 2], 2) == [(0,), (0, 1), (1, 0), (1,)]
    assert plan([1, 2, 4], 1) == [(0,), (0, 1), (0, 1, 2, 3)]


def test_every_stretch_of_requests_has_as_many_new_pictures():
    apart = 8
    numbers = [picture_of(number, apart) for number in range(2000)]
    assert min(numbers) == 0
    counts = Counter(numbers)
    inner = [picture for picture in counts if 3 * apart <= picture < 400]
    assert {counts[picture] for picture in inner} == {REPEATS}
    places = [number for number, picture in enumerate(numbers) if picture == 100]
    assert [after - before for before, after in pairwise(places)] == [REPEATS * apart + 1] * (REPEATS - 1)
    seen, new = set(), []
    for picture in numbers:
        new.append(picture not in seen)
        seen.add(picture)
    for start in range(REPEATS * 3 * apart, 1600, 7):
        assert abs(sum(new[start : start + 40]) - 10) <= 1


def test_answers_are_of_many_lengths():
    lengths = [length(number, 32) for number in range(3300)]
    assert set(lengths) == set(range(16, 49)) and sum(lengths) / len(lengths) == pytest.approx(32, abs=0.2)
    assert length(5, 1) in (1, 2) and length(0, 1) == 1


def phase(engines, count, seconds=2.0):
    latencies = tuple(float(n) for n in range(count))
    return Phase(engines, seconds, latencies, 5 * count, count // 2, 3, 4, {"0": count}, {"0": 0.25}, 7)


def test_nine_of_ten_waited_no_longer_than_the_row_says():
    for latencies, middle, most in (((), 0.0, 0.0), ((700.0, 1500.0), 1100.0, 1500.0), (range(1, 11), 5.5, 9)):
        row = Phase(1, 1.0, tuple(latencies), 0, 0, 0, 0, {}, {}, 1).row()
        assert (row["latency_p50_ms"], row["latency_p90_ms"]) == (middle, most)


def test_a_ratio_is_that_of_means():
    assert ratios([phase(1, 10), phase(2, 21), phase(2, 19), phase(1, 10)]) == {"1": 1.0, "2": 2.0}
    assert ratios([]) == {} and ratios([phase(1, 0)]) == {}
    row = phase(2, 10).row()
    assert (row["requests_per_s"], row["tokens_per_s"], row["repeats_at_home_share"]) == (5.0, 25.0, 0.75)
    assert row["latency_p50_ms"] == 4.5 and row["cached_request_share"] == 0.5


class Fake(threading.Thread):
    """An engine at the other end of a pipe, that answers at once."""

    def __init__(self, fail_at=None):
        super().__init__(daemon=True)
        self.here, self.there = Pipe()
        self.asked, self.fail_at = [], fail_at
        self.start()

    def run(self):
        spent = 0.0
        while (message := self.there.recv()) is not None:
            if isinstance(message, Ask):
                self.asked.append(message.picture)
                error = "no" if len(self.asked) == self.fail_at else ""
                self.there.send(Done(message.number, 3, int(self.asked.count(message.picture) > 1), error))
            else:
                spent += 100.0
                self.there.send(("spent", {"busy_ms": 0.9 * spent, "idle_ms": 0.1 * spent}))


def test_requests_are_routed_by_picture_and_counted_while_the_load_is_steady():
    fakes = {"0": Fake(), "1": Fake()}
    pictures = [bytes([number % 251, number // 251]) for number in range(4000)]
    routed = Routed({name: fake.here for name, fake in fakes.items()}, pictures, 8, 0, slack=16)
    found = routed.run(settle=5.0, seconds=0.2)
    assert found.engines == 2 and len(found.latencies) > 50
    assert sum(found.by_engine.values()) == len(found.latencies) and min(found.by_engine.values()) > 0
    assert found.again / len(found.latencies) == pytest.approx(0.75, abs=0.05)
    assert found.home == found.again and found.cached_requests == found.again  # within the slack, all are at home
    assert not set(fakes["0"].asked) & set(fakes["1"].asked)
    assert found.idle_shares == pytest.approx({"0": 0.1, "1": 0.1})
    for fake in fakes.values():
        fake.here.send(None)
        fake.join(5)


def test_a_request_that_fails_ends_the_run():
    fake = Fake(fail_at=20)
    routed = Routed({"0": fake.here}, [bytes([number]) for number in range(250)], 4, 0, slack=4)
    with pytest.raises(ChildProcessError, match="a request failed: no"):
        routed.run(settle=5.0, seconds=1.0)


def test_engines_that_say_nothing_are_given_up(monkeypatch):
    monkeypatch.setattr("gapless.bench.fleet_load.LONGEST_SILENCE", 0.05)
    here, _there = Pipe()
    routed = Routed({"0": here}, [b"picture"], 2, 0, slack=4)
    monkeypatch.setattr(Routed, "_spent", lambda self, loads: {"0": {"busy_ms": 0.0, "idle_ms": 0.0}})
    with pytest.raises(ChildProcessError, match="2 requests got no answer"):
        routed.run(settle=0.01, seconds=0.01)


@pytest.mark.slow
def test_two_engines_of_processes_on_the_cpu(tmp_path, capsys):
    out = tmp_path / "fleet.json"
    words = [
        "--device",
        "cpu",
        "--model",
        "glint",
        "--rows",
        "4",
        "--callers",
        "2",
        "--tokens",
        "3",
    ]
    words += ["--pictures", "900", "--settle", "0.5", "--seconds", "1.5", "--waves", "1"]
    assert main([*words, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [row["gpus"] for row in report["rows"]] == [1, 2] and set(report["ratio"]) == {"1", "2"}
    assert all(row["requests"] > 0 for row in report["rows"]) and set(report["start_seconds"]) == {"0", "1"}
    assert "requests/s over those of 1" in capsys.readouterr().out


def test_a_phase_that_would_show_the_next_ones_pictures_ends_the_run(monkeypatch):
    given = options().parse_args(["--gpus", "1", "--waves", "1", "--pictures", "20", "--device", "cpu"])
    given.words = []
    bench = FleetBench(given)
    monkeypatch.setattr(bench, "_members", [SimpleNamespace(name="0", pipe=None)])
    monkeypatch.setattr(bench, "_pictures", [b""] * 20, raising=False)
    asked = iter((6, 10, 6, 11))
    monkeypatch.setattr(Routed, "run", lambda routed, settle, seconds: replace(phase(1, 10), pictures=next(asked)))
    bench.run()
    with pytest.raises(ValueError, match=r"asked about 11 pictures and had 10 of its own: .*--pictures 20"):
        bench.run()
