"""The serving benchmark: its arithmetic on known runs, its clients against a server of a few lines, and, slow, all of
it with the bundled model."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import subprocess
import sys
import zipfile
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from tests.fakes.micro import write_micro
from tests.gpu.drive import SKIPPED, Section, benchmark, run, sections, show, unpacked
from tests.gpu.wheels import requirements, strangers

import gapless
from gapless.bench import serve_folder, serve_process, serve_rig
from gapless.bench.clients import QUESTION
from gapless.bench.pictures import jpeg
from gapless.bench.serve import COLUMNS, STREAM_COLUMNS, Serve
from gapless.bench.serve_client import Job, look_of, work
from gapless.bench.serve_folder import NEVER, write_folder
from gapless.bench.serve_load import Heard, Load, Look, Run, run_load
from gapless.bench.serve_process import Clients, Served
from gapless.bench.serve_rows import HERE, HTTP, fill_overheads, fill_step_costs, load_row, stream_row
from gapless.cli.main import main
from gapless.errors import InvalidRequest
from gapless.models.moondream.config import MoondreamConfig, read_config

METRICS = """# HELP gapless:steps_total Steps that landed.
gapless:steps_total{kind="prefill",model_name="a, kind=\\"x\\""} 3.0
gapless:steps_total{kind="decode",model_name="glint"} 40.0
gapless:device_busy_seconds_total{kind="prefill",model_name="glint"} 0.5
gapless:device_busy_seconds_total{kind="decode",model_name="glint"} 1.5
gapless:bubble_seconds_total{model_name="glint"} 0.25
gapless:generation_tokens_total{model_name="glint"} 120.0
gapless:generation_tokens_created{model_name="glint"} 1.7e+09
process_cpu_seconds_total 2.5
"""


def heard(began: float, ended: float, decode_ms: float = 100.0, tokens: int = 10) -> Heard:
    return Heard(began, ended, tokens, decode_ms, "length")


def looks(*totals: tuple[float, float, float]) -> tuple[Look, ...]:
    """A look a second; (tokens, decode steps, prefill steps), a decode step takes 3 ms and 1 ms of idle time."""
    made = [(float(i), tokens, steps, prefills) for i, (tokens, steps, prefills) in enumerate(totals)]
    return tuple(Look(at, at + 0.1, tokens, steps, p, 3.0 * steps, steps, at) for at, tokens, steps, p in made)


def test_a_row_of_known_runs_and_the_overhead() -> None:
    slow = Run(tuple(heard(float(i), i + 1.0) for i in range(4)), looks((0, 0, 0), (40, 40, 4)), 0.4)
    fast = Run(tuple(heard(i / 2, i / 2 + 0.5) for i in range(4)), looks((0, 0, 0), (40, 40, 4)), 0.4)
    rows = [load_row(HERE, 1, [fast]), load_row(HTTP, 1, [slow, slow]), load_row(HTTP, 2, [slow])]
    fill_overheads(rows)
    assert [row["requests_per_s"] for row in rows] == [2.0, 1.0, 1.0]
    assert [row["overhead"] for row in rows] == [None, 0.5, None]
    assert rows[0]["client_cpu"] is None and (rows[1]["client_cpu"], rows[1]["server_cpu"]) == (0.1, 0.25)
    assert (rows[1]["requests"], rows[1]["latency_p99_ms"], rows[1]["ttft_p50_ms"]) == (8, 1000.0, 900.0)
    assert (rows[1]["idle_share"], rows[1]["answer_tokens"], rows[1]["finishes"]) == (0.25, 10.0, ["length"])
    assert Run.read(json.loads(json.dumps(slow.as_dict()))) == slow


def test_a_step_is_measured_only_while_all_streams_are_busy() -> None:
    two = (heard(0, 9), heard(0, 9))
    full = [(42.0 + 20 * i, 24.0 + 10 * i, 2.0) for i in range(5)]  # at the end one of them is not there
    seen = looks((0, 0, 0), (10, 8, 1), (12, 14, 2), *full, (132, 79, 2), (137, 84, 2), (137, 84, 2))
    busy = Run(two, seen, 0.0).busy()
    assert (busy.tokens, busy.decode_steps, busy.asked) == (40, 20, 2.0)  # without the times at both edges
    row = stream_row(HTTP, [Run(two, seen, 0.0)] * 2)
    assert (row["steps"], row["rows_per_step"], row["step_ms"], row["idle_ms"]) == (40, 2.0, 4.0, 1.0)
    assert (row["slices"], row["prefill_steps"], row["tokens_per_s"]) == ([4.0, 4.0], 0, 20.0)
    rows = [row | {"side": HERE, "step_ms": 3.2}, row]
    fill_step_costs(rows)
    assert [one["step_cost"] for one in rows] == [None, 0.25]
    with pytest.raises(ValueError, match="2 streams were seen busy at once in 2 times"):
        Run(two, seen[:6], 0.0).busy()
    with pytest.raises(ValueError, match="3 streams were seen busy at once in 1 times"):
        Run((*two, heard(0, 9)), seen, 0.0).busy()


def test_looks_between_two_counts_cost_no_part_of_the_time() -> None:
    late = [(20.0 * i - 2 * (i % 2), 10.0 * i, 1.0) for i in range(1, 8)]  # every other one misses a step's tokens
    busy = Run((heard(0, 9), heard(0, 9)), looks((0, 0, 0), *late), 0.0).busy()
    assert busy.decode_steps == 40


def test_totals_are_read_from_metrics() -> None:
    look = look_of(METRICS, 1.0, 2.0)
    assert (look.tokens, look.decode_steps, look.prefill_steps) == (120, 40, 3)
    assert (look.busy_ms, look.idle_ms, look.cpu_s) == (2000.0, 250.0, 2.5)
    with pytest.raises(KeyError):
        look_of("up 1\n", 0.0, 0.0)


class FakeServer:
    """Answers as `gapless serve` does; a stream's events come in pieces that end anywhere."""

    def __init__(self, fail: bool = False) -> None:
        self.fail = fail
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        self.open: Counter[int] = Counter()
        self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await self._head(reader):
            if head.startswith(b"GET /metrics"):
                writer.write(_counted(METRICS.encode()))
                continue
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            self.open[0] += 1
            self.most = max(self.most, self.open[0])
            body = json.loads(await reader.readexactly(length))
            await asyncio.sleep(0.01)
            self.open[0] -= 1
            self.bodies.append(body)
            cost = {"finish_reason": "length", "metrics": {"output_tokens": 5, "decode_time_ms": 4.0}}
            if self.fail:
                writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy")
            elif body["stream"]:
                events = [{"chunk": "a", "completed": False}] * 3 + [{"chunk": "", "completed": True} | cost]
                said = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
                parts = [said[i : i + 50] for i in range(0, len(said), 50)]
                chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
            else:
                writer.write(_counted(json.dumps({"answer": "a"} | cost).encode()))
        writer.close()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""


def _counted(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def ask(server: FakeServer, stream: bool, load: Load) -> Run:
    async def both() -> Run:
        async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            return Run.read(await work(Job(port, 56, stream, load)))

    return asyncio.run(both())


LOAD = Load(3, 7, 40, {"temperature": 0.0, "max_tokens": 5})


@pytest.mark.parametrize("stream", [False, True])
def test_clients_ask_about_each_picture_once_on_kept_connections(stream: bool) -> None:
    server = FakeServer()
    found = ask(server, stream, LOAD)
    assert server.connections == 4 and server.most == 3  # one of them looks
    asked = [base64.b64decode(body["image_url"].partition("base64,")[2]) for body in server.bodies]
    assert sorted(asked) == sorted(jpeg(number, 56) for number in range(40, 47))
    assert all(body["settings"] == LOAD.settings and body["question"] == QUESTION for body in server.bodies)
    assert len(found.heard) == 7 and len(found.looks) == 2 and found.cpu_s > 0
    for one in found.heard:
        assert (one.tokens, one.decode_ms, one.finish, one.events) == (5, 4.0, "length", 4 if stream else 0)
        assert one.latency_ms >= 10 and one.ttft_ms == pytest.approx(one.latency_ms - 4.0)


def test_looks_are_taken_while_they_ask_and_a_refusal_is_told() -> None:
    found = ask(FakeServer(), True, replace(LOAD, every=0.002))
    assert len(found.looks) > 3 and [look.asked for look in found.looks] == sorted(look.asked for look in found.looks)
    with pytest.raises(ExceptionGroup) as caught:
        ask(FakeServer(fail=True), False, LOAD)
    assert "429: busy" in str(caught.value.exceptions[0])


class Stuck:
    async def ask(self, caller: int, number: int) -> Heard:
        await asyncio.sleep(60)
        raise AssertionError

    async def look(self) -> Look:
        return looks((0, 0, 0))[0]


def test_a_load_does_not_wait_for_ever() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(run_load(replace(LOAD, limit=0.05, every=0.01), Stuck()))


def test_the_folders_answers_end_by_their_length_and_every_token_is_sent(tmp_path: Path) -> None:
    folder = write_folder("glint", tmp_path, "cpu")
    settings = {"temperature": 0.0, "max_tokens": 30}
    with gapless.load(folder, device="cpu", max_rows=1) as vlm:
        answer = vlm.query(jpeg(0, 224), QUESTION, settings=settings)
        pieces = list(vlm.query(jpeg(0, 224), QUESTION, stream=True, settings=settings)["answer"])
    assert answer["finish_reason"] == "length" and answer["metrics"]["output_tokens"] == 30
    assert len(pieces) >= 29
    with pytest.raises(InvalidRequest, match="no words"):
        write_folder(str(write_micro(tmp_path / "micro")), tmp_path / "other", "cpu")


def test_random_weights_are_written_at_full_size_with_a_tokenizer_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(config: MoondreamConfig, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        assert device.type == "cuda" and dtype is torch.bfloat16
        return {"text.lm_head.bias": torch.zeros(config.text.vocab_size, dtype=dtype)}

    monkeypatch.setattr(serve_folder, "random_tensors", few)
    folder = write_folder("random", tmp_path, "cuda:0")
    config = read_config(json.loads((folder / "config.json").read_text()))
    assert (config.text.n_layers, config.vision.crop_size, config.text.vocab_size) == (24, 378, 51200)
    bias = load_file(folder / "model.safetensors")["model.text.lm_head.bias"]
    said = int((bias == 0).sum())
    assert 300 < said < 2048 and bias[config.tokenizer.eos_id] < NEVER / 2 and bool((bias[2048:] < NEVER / 2).all())


def test_a_benchmark_without_the_servers_packages_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapless.bench.serve.NEEDED", ("json", "no_such_package"))
    with pytest.raises(InvalidRequest, match=r"no_such_package missing\); pip install"):
        Serve().run(list)


def test_the_drivers_command_line_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("gapless.bench.serve")
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(module, "finish", lambda *given: found.append(given) or 0)
    assert module.main(benchmark("serve", tmp_path, 12.0)[3:]) == 0
    assert found == [(Serve(None, "cuda", None, None, 2, 12.0), tmp_path / "serve-moondream2.json", found[0][2], False)]
    (section,) = [one for one in sections(tmp_path, 1.0) if one.name == "serve"]
    assert section.limit == 200 and section.command[-5] == "150.0" and "zmq" in section.needs


def test_a_section_without_its_packages_is_skipped_and_one_with_wheels_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    assert unpacked(wheels, tmp_path / "site") == []
    with zipfile.ZipFile(wheels / "far_away-1-py3-none-any.whl", "w") as packed:
        packed.writestr("far_away.py", "HERE = 'it is here'\n")
    command = (sys.executable, "-c", "import far_away; print(far_away.HERE)")
    lacking = Section("lacking", 0, 30, command, ("far_away",))
    run([lacking], tmp_path, 30)
    show([lacking])
    assert (lacking.status, lacking.output) == (SKIPPED, "")
    assert "far_away not installed" in capsys.readouterr().out.splitlines()[-1]
    having = Section("having", 0, 30, command, ("far_away",))
    run([having], tmp_path, 30, unpacked(wheels, tmp_path / "site"))
    assert (having.status, having.said) == ("passed", "it is here")


def test_what_is_fetched_for_another_machine(tmp_path: Path) -> None:
    names = {requirement.partition(">")[0] for requirement in requirements()}
    assert {"fastapi", "uvloop", "prometheus-client", "pyzmq", "msgspec", "typer"} <= names
    assert not any(name.startswith(("torch", "numpy", "gapless")) for name in names)
    right = ("a-1-py3-none-any", "b-1-cp312-cp312-manylinux_2_17_x86_64", "c-1-cp312-abi3-manylinux_2_28_x86_64")
    wrong = ("d-1-cp311-cp311-manylinux_2_17_x86_64", "e-1-cp312-cp312-manylinux_2_17_aarch64")
    for name in (*right, *wrong):
        (tmp_path / f"{name}.whl").touch()
    assert [path.stem for path in strangers(tmp_path, "3.12")] == list(wrong)


# -- with real processes --------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Every process that is started."""
    processes: list[subprocess.Popen[str]] = []
    begin = serve_process._started

    def noted(*words: Any) -> subprocess.Popen[str]:
        processes.append(begin(*words))
        return processes[-1]

    monkeypatch.setattr(serve_process, "_started", noted)
    return processes


@pytest.mark.slow
def test_all_of_it_with_the_bundled_model(
    tmp_path: Path,
    started: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rooms: list[Path] = []
    make = serve_rig.mkdtemp
    monkeypatch.setattr(serve_rig, "mkdtemp", lambda prefix: rooms.append(Path(make(prefix=prefix))) or rooms[-1])
    out, png = tmp_path / "serve.json", tmp_path / "serve.png"
    words = ["--device", "cpu", "--concurrency", "2", "--streams", "2", "--waves", "1"]
    assert main(["bench", "serve", *words, "--out", str(out), "--png", str(png)]) == 0
    told, err = capsys.readouterr()
    assert "step_cost" in told and "glint, float32" in told and str(png) in err
    report = json.loads(out.read_text())
    assert (report["exit_code"], report["notes"]) == (0, [])
    assert [(row["side"], row["concurrency"]) for row in report["rows"]] == [(HERE, 2), (HTTP, 2)]
    for row in report["rows"]:
        assert set(COLUMNS) <= set(row) and row["finishes"] == ["length"] and row["answer_tokens"] == 110
        assert 0 < row["ttft_p50_ms"] < row["latency_p50_ms"] <= row["latency_p99_ms"]
    assert report["rows"][1]["overhead"] is not None and 0 < report["rows"][1]["client_cpu"] < 0.5
    for row in report["streams"]:
        assert set(STREAM_COLUMNS) <= set(row) and row["prefill_steps"] == 0 and row["steps"] > 100
        assert row["rows_per_step"] == pytest.approx(2, rel=0.05)
    assert report["streams"][1]["events"] > 500 and report["streams"][1]["step_cost"] is not None
    assert Image.open(png).height == 1280 and report["versions"]["uvicorn"]
    assert main(["bench", "serve", "--compare", str(out), str(out), "--json"]) == 0
    assert len(started) == 2 and all(process.poll() is not None for process in started)
    assert len(rooms) == 1 and not rooms[0].exists()


@pytest.mark.slow
def test_a_server_ends_with_its_starter_and_tells_why_it_could_not_begin(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    bad = Served([str(tmp_path / "nothing"), "--device", "cpu"], tmp_path / "bad.log")
    with pytest.raises(ChildProcessError, match="neither a bundled model nor a folder"):
        bad.until_ready()
    bad.close()
    good = Served(["glint", "--device", "cpu", "--max-rows", "2", "--process", "on"], tmp_path / "good.log")
    good.until_ready()
    clients = Clients(tmp_path / "clients.log")
    with pytest.raises(ChildProcessError, match="answered 400"):
        clients.run(Job(good.port, 224, False, Load(1, 1, 0, {"no_such_setting": 1})))
    found = clients.run(Job(good.port, 224, False, Load(1, 2, 0, {"max_tokens": 2})))  # they go on after a failure
    assert len(found.heard) == 2 and found.spent.tokens == sum(one.tokens for one in found.heard)
    clients.close()
    assert started[1].stdin is not None
    started[1].stdin.close()  # as when this process is killed
    assert started[1].wait(20) == 9
    good.close()


def test_jobs_travel_as_json() -> None:
    job = Job(1, 224, True, LOAD)
    assert Job.read(json.loads(json.dumps(asdict(job)))) == job
