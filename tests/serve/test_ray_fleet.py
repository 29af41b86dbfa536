"""Two engines behind Ray Serve on this machine: nothing is lost when one is killed, updated or given up."""

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import time
import urllib.request
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.serve.fleet_clients import KINDS, STREAMS, Crowd, ask, pictures, replica_processes

import gapless
from gapless.bench.machine import describe_machine
from gapless.serve.forward import EngineLost
from gapless.serve.hosted import Call

WITHOUT = find_spec("ray") is None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WITHOUT, reason="Ray is not installed (pip install 'ray[serve]>=2.60,<3', the extra `ray`)"),
]
APP = "fleet-test"
URLS = pictures(12)
ARGS = {"model": "glint", "process": False, "threads": 1, "max_requests": 32, "drain_timeout": 20}


class Cluster:
    """Ray on this machine, and one application at a time."""

    def __init__(self, folder):
        self.folder = str(folder)
        self.report = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self):
        import ray
        from ray import serve

        ray.init(
            num_cpus=2,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            namespace="serve",
            log_to_driver=False,
            _temp_dir=self.folder,
        )
        serve.start(http_options={"host": "127.0.0.1", "port": self.port})

    def run(self, server=None, **fleet):
        from ray import serve

        from gapless.serve.ray_app import app_builder

        args = {**ARGS, **(server or {}), "fleet": {"cpus": 0.1, **fleet}}
        serve.run(app_builder(args), name=APP, route_prefix="/")

    def engines(self):
        """Engines that take requests."""
        from ray import serve

        deployments = serve.status().applications[APP].deployments
        return sum(n for state, n in deployments["GaplessEngine"].replica_states.items() if state == "RUNNING")

    def until(self, engines, patience=90.0):
        end = time.monotonic() + patience
        while self.engines() != engines:
            assert time.monotonic() < end, f"there are {self.engines()} engines, not {engines}"
            time.sleep(0.2)

    def processes(self):
        return replica_processes(APP, "GaplessEngine", self.folder)

    def metric(self, name):
        """Sum over the lines of a metric, by their last label."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return [(line, float(line.rpartition(" ")[2])) for line in lines if line.startswith(name)]

    def note(self, what, **found):
        """Say what was seen, and keep it where somebody wants a report."""
        print(what, found)
        self.report[what] = found

    def stop(self):
        if path := os.environ.get("FLEET_REPORT"):
            import ray

            head = {"benchmark": "fleet through Ray", "machine": describe_machine().as_dict(), "ray": ray.__version__}
            Path(path).write_text(json.dumps(head | {"model": "glint", "engines": 2} | self.report, indent=1) + "\n")
        self.shut_down()

    def shut_down(self):
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "RAY_SERVE_LOG_TO_STDERR": "0",
    }
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gr", dir="/tmp") as folder:  # sockets' names must be short
        running = Cluster(folder)
        try:
            running.start()
            yield running
        finally:
            running.stop()


@pytest.fixture(scope="module")
def pair(cluster):
    """Two engines, and what they say undisturbed."""
    cluster.run(min_replicas=2, affinity_slack=4, health_period=2.0)
    told = {(kind, number): ask(cluster.port, kind, URLS[number]) for kind in KINDS for number in range(len(URLS))}
    assert {answer.status for answer in told.values()} == {200}
    return {job: answer.said for job, answer in told.items()}


def test_the_same_picture_goes_to_the_engine_that_has_it(cluster, pair):
    jobs = [(kind, number) for kind in KINDS[:4] for number in range(len(URLS)) for _ in range(3)]
    random.Random(1).shuffle(jobs)
    answers = Crowd(cluster.port, jobs, callers=4, urls=URLS).join()
    homes = {}
    repeats = [homes.setdefault(number, answer.replica) == answer.replica for _, number, answer in answers]
    share = (sum(repeats) - len(homes)) / (len(repeats) - len(homes))
    cluster.note("affinity", requests=len(repeats), pictures=len(homes), share_of_repeats_at_home=round(share, 4))
    assert share >= 0.9
    assert len(set(homes.values())) == 2 and min(Counter(homes.values()).values()) >= 2


def test_each_metric_tells_whose_it_is(cluster, pair):
    tokens = cluster.metric("gapless:generation_tokens_total")
    assert len(tokens) == 2 and all(value > 0 for _, value in tokens)
    assert len({re.search(r'replica="(\w+)"', line)[1] for line, _ in tokens}) == 2
    assert [value for _, value in cluster.metric("gapless:fleet_engines")] == [2.0]
    spent = []
    for _ in range(50):
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/health", timeout=30) as answer:
            answer.read()
        spent.append(1e3 * (time.monotonic() - began))
    assert len(answer.headers.get_all("x-request-id")) == 1
    cluster.note("a look at /health through proxy, front and engine", median_ms=round(sorted(spent)[25], 1))


def test_200_requests_while_an_engine_is_killed(cluster, pair):
    jobs = [(KINDS[number % len(KINDS)], number % len(URLS)) for number in range(200)]
    random.Random(2).shuffle(jobs)
    before = cluster.processes()
    assert len(before) == 2
    crowd = Crowd(cluster.port, jobs, callers=8, urls=URLS)
    crowd.wait_for(50)
    os.kill(before[0], signal.SIGKILL)
    answers = crowd.join()
    assert len(answers) == 200
    broken = [(kind, answer) for kind, _, answer in answers if answer.said is None]
    assert all(kind in STREAMS and "ended in the middle" in answer.error for kind, answer in broken), broken
    right = sum(answer.said == pair[kind, number] for kind, number, answer in answers)
    assert right == 200 - len(broken) and len(broken) <= 8
    assert Counter((kind, number) for kind, number, _ in answers) == Counter(jobs)
    counts = {re.search(r'result="(\w+)"', line)[1]: n for line, n in cluster.metric("gapless:fleet_attempts_total")}
    cluster.note(
        "kill -9 of an engine",
        requests=200,
        right=right,
        streams_broken_off=len(broken),
        asked_again=counts["lost"] - len(broken),
    )
    assert counts["lost"] >= max(1, len(broken))
    cluster.until(2)
    assert before[0] not in cluster.processes() and before[1] in cluster.processes()


def test_engines_that_cannot_be_had_at_all_are_lost_and_nothing_else():
    """Ray says it twice: to whoever reads the answer, and to whoever cancels it."""
    from ray.serve.exceptions import RayServeException

    from gapless.serve.ray_app import RayFleet

    class Response:
        async def __aiter__(self):
            raise RayServeException("no replica will come")
            yield

        def cancel(self):
            raise RayServeException("no replica will come")

    response = SimpleNamespace(remote=lambda call: Response())
    engines = SimpleNamespace(answer=SimpleNamespace(options=lambda stream: response))

    async def once():
        async for _ in RayFleet(engines).ask(Call("GET", "/health")):
            pass

    with pytest.raises(EngineLost, match="no replica will come"):
        asyncio.run(once())


def bundled_adapter():
    return Path(gapless.__file__).parent / "assets" / "glint" / "adapters" / "moon"


def test_an_update_under_load_loses_nothing_and_all_engines_have_its_adapters(cluster, pair, tmp_path):
    before = set(cluster.processes())
    crowd = Crowd(cluster.port, callers=4, urls=URLS)
    crowd.wait_for(20)
    shutil.copytree(bundled_adapter(), tmp_path / "late")
    own = {"adapters": {"own": "glint/moon"}}
    cluster.run(own, min_replicas=2, affinity_slack=4, version="2", adapters_folder=str(tmp_path))
    crowd.wait_for(len(crowd.answers) + 20)
    answers = crowd.end()
    wrong = [(kind, a) for kind, number, a in answers if a.status != 200 or a.said != pair[kind, number]]
    cluster.note("an update under load", requests=len(answers), lost_or_wrong=len(wrong))
    assert not wrong
    assert not before & set(cluster.processes())
    for name in ("own", "late"):  # in the configuration, and found by each engine when it is named
        named = [ask(cluster.port, "query", picture, adapter=name) for picture in URLS]
        assert {answer.status for answer in named} == {200} and len({answer.replica for answer in named}) == 2
    assert ask(cluster.port, "query", URLS[0], adapter="nobody").status == 400


def children(process):
    """Of a process and theirs."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(process):
                found += [int(stat.parent.name), *children(stat.parent.name)]
    return found


def leave_early(port):
    """Begin a stream, read something of it, and close the connection."""
    body = {"question": "Who are you?", "stream": True, "settings": {"temperature": 0}}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/query", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().read1(10)
    connection.close()


def test_an_engine_whose_process_is_killed_is_replaced_and_clients_that_leave_end_their_requests(cluster, pair):
    cluster.run({"process": True}, min_replicas=2, version="engines")
    cluster.until(2)
    for _ in range(30):
        leave_early(cluster.port)
        ended = cluster.metric('gapless:request_success_total{finished_reason="abort"')
        if sum(count for _, count in ended):
            break
    assert sum(count for _, count in ended)
    before = cluster.processes()
    engines = [child for child in children(before[0]) if "gapless" in Path(f"/proc/{child}/cmdline").read_text()]
    crowd = Crowd(cluster.port, callers=4, urls=URLS)
    crowd.wait_for(10)
    os.kill(engines[-1], signal.SIGKILL)
    end = time.monotonic() + 60
    while before[0] in cluster.processes():
        assert time.monotonic() < end
        time.sleep(0.2)
    cluster.until(2)
    answers = crowd.end()
    broken = [(kind, answer) for kind, _, answer in answers if answer.said is None]
    assert all(kind in STREAMS and answer.status == 200 and answer.error for kind, answer in broken), broken
    assert all(a.said is None or a.said == pair[kind, number] for kind, number, a in answers)
    cluster.note("kill -9 of an engine's process", requests=len(answers), streams_broken_off=len(broken))


def test_an_engine_that_hangs_is_passed_over_at_once_and_replaced(cluster, pair):
    """Stopped, not killed: its connections stay open, and it never says a word."""
    cluster.run({"drain_timeout": 1}, min_replicas=2, version="hang", health_period=1.0, health_timeout=3.0)
    cluster.until(2)
    hung = cluster.processes()[0]
    crowd = Crowd(cluster.port, callers=4, urls=URLS)
    crowd.wait_for(8)
    os.kill(hung, signal.SIGSTOP)
    began = time.monotonic()
    crowd.wait_for(len(crowd.answers) + 30)
    spent = time.monotonic() - began
    assert [value for _, value in cluster.metric("gapless:fleet_engines")] == [1.0]  # told by the one that answers
    end = time.monotonic() + 90
    while hung in cluster.processes():
        assert time.monotonic() < end
        time.sleep(0.2)
    cluster.until(2)
    answers = crowd.end()
    broken = [(kind, answer) for kind, _, answer in answers if answer.said is None]
    assert all(kind in STREAMS and answer.error for kind, answer in broken), broken
    assert all(a.said is None or a.said == pair[kind, number] for kind, number, a in answers)
    silent = sum(count for line, count in cluster.metric("gapless:fleet_attempts_total") if 'result="silent"' in line)
    assert silent >= 1
    cluster.note(
        "an engine that hangs (SIGSTOP)",
        requests=len(answers),
        streams_broken_off=len(broken),
        found_silent=silent,
        seconds_of_the_next_30=round(spent, 1),
        replaced_after_s=round(time.monotonic() - began, 1),
    )


def test_one_engine_two_and_one_again(cluster, pair):
    """Only requests that wait for a row can say that one engine is too few: the target is far away. And only a device
    that is told to be busy lets another one come."""
    scale = {"target_requests": 1000, "most_idle": 0.95, "upscale_delay": 1.0, "downscale_delay": 3.0, "look_back": 3.0}
    cluster.run({"max_rows": 2}, min_replicas=1, max_replicas=2, version="3", **scale)
    cluster.until(1)
    crowd = Crowd(cluster.port, callers=8, urls=URLS)
    cluster.until(2)
    crowd.wait_for(len(crowd.answers) + 20)
    busy = crowd.end()
    quiet = Crowd(cluster.port, callers=1, urls=URLS[:2])
    cluster.until(1)
    answers = busy + quiet.end()
    wrong = [(kind, a) for kind, number, a in answers if a.status != 200 or a.said != pair[kind, number]]
    cluster.note("one engine, two and one again", requests=len(answers), lost_or_wrong=len(wrong))
    assert not wrong
