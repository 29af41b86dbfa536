"""How a fleet starts, is watched and ends, without Ray: what a person is told, and what a machine is asked for."""

import threading
from types import SimpleNamespace

import pytest

from gapless.errors import InvalidRequest
from gapless.serve import ray_run
from gapless.serve.fleet import read_fleet
from gapless.serve.fleet_status import reason, standing
from gapless.serve.ray_run import check_folder, check_machine, drain, machine, until_running, watch, with_replicas
from gapless.serve.settings import read_settings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("GAPLESS_CONFIG", "GAPLESS_MODEL", "GAPLESS_API_KEYS"):
        monkeypatch.delenv(name, raising=False)


TRACE = """The deployment failed to start 3 times in a row. See controller logs for details. Error:
\x1b[36mray::ServeReplica:gapless:GaplessEngine.initialize_and_get_metadata()\x1b[39m (pid=1, ip=192.0.2.2)
  File "replica.py", line 3521, in initialize_and_get_metadata
    await self._replica_impl.initialize(config)
RuntimeError: Traceback (most recent call last):
  File "load.py", line 9, in load
    raise found
{last}"""


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            TRACE.format(last="gapless.errors.InvalidAdapter: the adapter /no does\nnot exist"),
            "the adapter /no does not exist",
        ),
        (TRACE.format(last="torch.OutOfMemoryError: CUDA out of memory"), "OutOfMemoryError: CUDA out of memory"),
        ('A replica has taken more than 30s:\n {"GPU": 1.0}', 'A replica has taken more than 30s: {"GPU": 1.0}'),
        (TRACE.format(last="ValueError: " + 900 * "x"), "ValueError: " + 588 * "x"),
        ("", ""),
    ],
)
def test_the_reason_of_a_failure_is_one_line(message, said):
    assert reason(message) == said


def fleet_app(status, *messages, own=""):
    deployments = {str(number): SimpleNamespace(message=text) for number, text in enumerate(messages)}
    return SimpleNamespace(status=SimpleNamespace(value=status), message=own, deployments=deployments)


class Lines:
    def __init__(self):
        self.said = []

    def say(self, line):
        self.said.append(line)


def test_whoever_starts_a_fleet_is_told_what_is_in_its_way(monkeypatch):
    monkeypatch.setattr(ray_run, "LOOK", 0.001)
    slow = standing(fleet_app("DEPLOYING", "", "no GPU is free", "no GPU is free"))
    looks = [standing(None), slow, slow, standing(fleet_app("RUNNING", ""))]
    lines, ended = Lines(), threading.Event()
    assert until_running(lambda: looks.pop(0), lines, ended) == "" and not looks
    assert lines.said == ["not yet: no GPU is free"]
    assert until_running(lambda: standing(fleet_app("DEPLOY_FAILED", own="all is lost")), lines, ended) == "all is lost"
    ended.set()
    assert until_running(looks.pop, lines, ended) == ""


def test_a_fleet_that_is_not_whole_is_told_once_and_its_end_waits_for_requests(monkeypatch):
    monkeypatch.setattr(ray_run, "WATCH", 0.001)
    monkeypatch.setattr(ray_run, "PAUSE", 0.001)
    lines, ended = Lines(), threading.Event()
    ill, well = standing(fleet_app("UNHEALTHY", "its health check failed")), standing(fleet_app("RUNNING"))
    looks = [well, ill, ill, well]

    def look():
        if len(looks) == 1:
            ended.set()
        return looks.pop(0)

    watch(look, lines, ended)
    assert lines.said == ["not all is there: its health check failed", "all is there again"]
    held = [3, 1, 0]
    drain(lambda: held.pop(0), 60)
    assert held == []
    drain(lambda: 1, 0.01)  # no longer than it may


def test_a_machine_of_its_own_counts_the_cpus_that_its_engines_are_said_to_need(monkeypatch, tmp_path):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    two = read_fleet({"model": "glint", "fleet": {"min_replicas": 2}})
    assert machine(None, *two)["num_cpus"] == 3 and machine(None, *two)["address"] == "local"
    assert machine("ray://there", *two) == {"address": "ray://there"}
    gpus = read_fleet({"model": "vikhyatk/moondream2", "fleet": {"min_replicas": 2, "max_replicas": 3}})
    assert machine(None, *gpus)["num_cpus"] == 13
    check_machine(*two, {"CPU": 3.0})
    check_machine(*gpus, {"GPU": 2.0})
    with pytest.raises(InvalidRequest, match="asked for 2 GPU, and it has 1; ask for fewer --replicas"):
        check_machine(*gpus, {"GPU": 1.0})
    with pytest.raises(InvalidRequest, match=r"there is no folder .*gone; adapters_folder"):
        check_folder(tmp_path / "gone")


def test_a_file_says_how_many_engines_and_what_is_given_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "gapless.yaml"
    file.write_text("max_rows: 3\nfleet: {min_replicas: 2, affinity_slack: 5, adapters_folder: shared}\n")
    server, fleet = read_fleet(with_replicas({"config": str(file)}, "4"))
    assert (server.max_rows, fleet.min_replicas, fleet.affinity_slack) == (3, 4, 5)
    assert fleet.adapters_folder == tmp_path / "shared"
    with pytest.raises(InvalidRequest, match="one server has no fleet; give --ray too"):
        read_settings({}, file)
    file.write_text("fleet: {affinity_slack: -1}\n")
    with pytest.raises(InvalidRequest, match=r"fleet\.affinity_slack: input should be greater"):
        read_fleet({"config": str(file)})
    file.write_text("fleet: [2]\n")
    with pytest.raises(InvalidRequest, match="fleet must hold settings by their names"):
        read_fleet({"config": str(file)})
