"""Everything that is shown on a GPU, as one command from a checkout, without installing:

    python3 tests/gpu/drive.py --out DIR                     # all of it, about 20 minutes on an H200
    python3 tests/gpu/drive.py --out DIR --only bench query
    python3 tests/gpu/drive.py --tests               # what `make gpu-check` runs

Each section is a process of its own with a time limit; one that fails or hangs stops nothing else. The sections that
test run side by side (their timing decides nothing); the bubble's gate, the benchmarks and `checkpoints` run alone. DIR
receives `report.json` (status, seconds and last line of each section), `log.txt` (all they printed), of each
benchmark `NAME-moondream2.json` and `.png` (bench is `decode`), and `checkpoints.json`. A short table comes last. Ends
with 0 if all sections passed, 1 if one did not or none ran, 2 without a GPU.

`serve` needs the server's packages. Where they are not installed, `wheels.py` brings them along, in `.wheels/`; without
either the section is skipped, and says so.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--tb=short", "-ra", "--maxfail=6")
NO_TESTS = 5
"""How pytest ends when it found none."""
SANITIZERS = ("/usr/local/cuda/bin", "/opt/cuda/bin", "/usr/local/cuda/compute-sanitizer")
OWN = (
    "test_cuda_experts.py",
    "test_cuda_sampler.py",
    "test_cuda_sparse.py",
    "test_cuda_prompts.py",
    "test_cuda_hash.py",
    "test_cuda_prefix.py",
    "test_cuda_host_pictures.py",
    "test_cuda_equality.py",
    "test_cuda_moondream2.py",
    "test_cuda_adapters.py",
    "test_cuda_bubble.py",
)
"""Test files with a section each."""
QUERY_SECONDS = 90.0
"""After that long the query benchmark begins nothing more."""
INTAKE_SECONDS = 40.0
"""The same of the benchmarks of prefills and of pictures."""
SERVE_SECONDS = 150.0
"""The same of the benchmark of the server."""
CHECKPOINT_SECONDS = 400.0
"""After that long the proof of checkpoints begins no further model."""
BENCHES = ("bench", "prefill", "vision", "query", "serve", "checkpoints")
WHEELS = ROOT / ".wheels"
SERVING = (
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "pydantic_settings",
    "yaml",
    "prometheus_client",
    "zmq",
    "msgspec",
)
SKIPPED = "skipped"
NO_GPU = (
    f"gpu-check: {sys.executable} has no torch that sees a CUDA device, so nothing was checked. Run it on a machine "
    "with an NVIDIA GPU, a driver and a CUDA build of torch."
)


@dataclass
class Section:
    """One process. `group`: sections of the same group run side by side; `limit` in seconds; `needs`: packages without
    which it is skipped."""

    name: str
    group: int
    limit: float
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    status: str = "not run"
    seconds: float = 0.0
    said: str = ""
    output: str = ""


@dataclass
class Running:
    """A section on its way."""

    section: Section
    process: subprocess.Popen[bytes]
    began: float
    log: Path = field(default_factory=Path)


def sections(out: Path, bench_seconds: float) -> list[Section]:
    """All there is, in order. Test files that have no section of their own share one."""
    others = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/gpu").glob("test_*.py"))
    others = [path for path in others if Path(path).name not in OWN]
    return [
        Section("smoke", 0, 90, (*PYTEST, "tests/gpu/test_cuda_hash.py", "-k", "test_graphs_are_exact and 2-0.5-27")),
        Section("hash", 1, 150, (*PYTEST, "tests/gpu/test_cuda_hash.py")),
        Section("prefix", 1, 90, (*PYTEST, "tests/gpu/test_cuda_prefix.py")),
        Section("host pictures", 1, 180, (*PYTEST, "tests/gpu/test_cuda_host_pictures.py")),
        Section("prompts", 1, 240, (*PYTEST, "tests/gpu/test_cuda_prompts.py")),
        Section("equality", 1, 200, (*PYTEST, "tests/gpu/test_cuda_equality.py")),
        Section("moondream2", 1, 200, (*PYTEST, "tests/gpu/test_cuda_moondream2.py", "--durations=8")),
        Section("adapters", 1, 420, (*PYTEST, "tests/gpu/test_cuda_adapters.py", "--durations=8")),
        Section("experts", 1, 240, (*PYTEST, "tests/gpu/test_cuda_experts.py")),
        Section("sparse", 1, 300, (*PYTEST, "tests/gpu/test_cuda_sparse.py")),
        Section("sampler", 1, 240, (*PYTEST, "tests/gpu/test_cuda_sampler.py")),
        *([Section("others", 1, 150, (*PYTEST, *others))] if others else []),
        Section("memcheck", 1, 420, sanitizer("memcheck", "hash", "micro", "fused", "sparse", "fp8", "kept", "pixels")),
        Section("memcheck 2", 1, 420, sanitizer("memcheck", "rules", "tuned", "experts")),
        Section("racecheck", 1, 300, sanitizer("racecheck", "pixels", "experts")),
        Section("bubble", 2, 120, (*PYTEST, "-s", "tests/gpu/test_cuda_bubble.py")),
        Section("bench", 3, bench_seconds + 40, benchmark("decode", out, bench_seconds)),
        Section("prefill", 4, INTAKE_SECONDS + 30, benchmark("prefill", out, INTAKE_SECONDS)),
        Section("vision", 5, INTAKE_SECONDS + 30, benchmark("vision", out, INTAKE_SECONDS)),
        Section("query", 6, QUERY_SECONDS + 40, benchmark("query", out, QUERY_SECONDS)),
        Section("serve", 7, SERVE_SECONDS + 50, benchmark("serve", out, SERVE_SECONDS), SERVING),
        Section("checkpoints", 8, CHECKPOINT_SECONDS + 160, checkpoints(out)),
    ]


def benchmark(name: str, out: Path, seconds: float) -> tuple[str, ...]:
    """A benchmark with full-size random weights on the GPU: its JSON and its picture go to `out`."""
    kept = ("--out", str(out / f"{name}-moondream2.json"), "--png", str(out / f"{name}-moondream2.png"))
    return (sys.executable, "-m", f"gapless.bench.{name}", "--device", "cuda", "--seconds", str(seconds), *kept)


def checkpoints(out: Path) -> tuple[str, ...]:
    """Random checkpoints of the published sizes and layouts, on disk; see `checkpoints.py`."""
    kept = ("--out", str(out / "checkpoints.json"), "--seconds", str(CHECKPOINT_SECONDS))
    return (sys.executable, "-m", "tests.gpu.checkpoints", *kept)


def sanitizer(tool: str, *names: str) -> tuple[str, ...]:
    """One of compute-sanitizer's tools around runs of `sanitize.py`; if there is none, a command that says so and
    fails."""
    found = shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", ""), *SANITIZERS)))
    if found is None:
        return (sys.executable, "-c", "raise SystemExit('compute-sanitizer was not found on this machine')")
    return (found, "--tool", tool, "--error-exitcode", "9", sys.executable, "tests/gpu/sanitize.py", *names)


def unpacked(wheels: Path, into: Path) -> list[str]:
    """Where the packages of a folder of wheels can be imported from; nothing without such a folder."""
    found = sorted(wheels.glob("*.whl"))
    for wheel in found:
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(into)
    return [str(into)] if found else []


def skip(chosen: Sequence[Section], places: Sequence[str]) -> None:
    """Mark those that need a package that is not here, neither installed nor in `places`."""
    for section in chosen:
        missing = [name for name in section.needs if not _is_here(name, places)]
        if missing:
            section.status = SKIPPED
            section.said = f"{', '.join(missing)} not installed, and not in {WHEELS.name}/ (see tests/gpu/wheels.py)"
            print(f"-- {section.name}: skipped, {section.said}", flush=True)


def _is_here(name: str, places: Sequence[str]) -> bool:
    return importlib.machinery.PathFinder.find_spec(name, [*places, *sys.path]) is not None


def start(section: Section, folder: Path, places: Sequence[str] = ()) -> Running:
    """Begin a section in a process group of its own; `places`: of further packages, for those that need them."""
    paths = [str(ROOT / "src"), str(ROOT), *(places if section.needs else ())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environment.setdefault("OMP_NUM_THREADS", "2")
    log = folder / f".{section.name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            section.command, cwd=ROOT, env=environment, stdout=sink, stderr=subprocess.STDOUT, start_new_session=True
        )
    print(f"-- {section.name} began", flush=True)
    return Running(section, process, time.monotonic(), log)


def watch(running: list[Running], deadline: float) -> None:
    """Wait until all have ended or their time is over; note how each ended."""
    while running:
        time.sleep(0.2)
        for one in list(running):
            section, code, spent = one.section, one.process.poll(), time.monotonic() - one.began
            late = spent > section.limit or time.monotonic() > deadline
            if code is None and not late:
                continue
            if code is None:
                os.killpg(one.process.pid, signal.SIGKILL)
                one.process.wait()
            section.seconds = round(spent, 1)
            section.output = one.log.read_text(encoding="utf-8", errors="replace")
            section.said = _last_line(section.output)
            section.status = _status(section, code)
            one.log.unlink()
            running.remove(one)
            print(f"-- {section.name}: {section.status} after {section.seconds} s: {section.said}", flush=True)


def _status(section: Section, code: int | None) -> str:
    """How a process that ended with `code` (None: it was stopped) did; tests that were all skipped showed nothing."""
    if code is None:
        return "timeout"
    if "pytest" in section.command and (code == NO_TESTS or (code == 0 and "passed" not in section.said)):
        return "nothing ran"
    return "passed" if code == 0 else f"failed ({code})"


def _last_line(output: str) -> str:
    lines = [line.strip(" =") for line in output.splitlines() if line.strip(" =")]
    return lines[-1][:160] if lines else ""


def run(chosen: Sequence[Section], out: Path, seconds: float, places: Sequence[str] = ()) -> None:
    """Run the sections group by group, and write report and log after each group."""
    deadline = time.monotonic() + seconds
    skip(chosen, places)
    for group in sorted({section.group for section in chosen}):
        members = [section for section in chosen if section.group == group and section.status != SKIPPED]
        if time.monotonic() > deadline:
            for section in members:
                section.status = "left out"
            continue
        watch([start(section, out, places) for section in members], deadline)
        write(chosen, out)


def write(chosen: Sequence[Section], out: Path) -> None:
    """Report and log."""
    report = [{key: value for key, value in asdict(section).items() if key != "output"} for section in chosen]
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    logs = [f"===== {s.name}: {s.status}\n$ {' '.join(s.command)}\n{s.output}\n" for s in chosen if s.output]
    (out / "log.txt").write_text("".join(logs), encoding="utf-8")


def show(chosen: Sequence[Section]) -> None:
    """What failed said, then the table."""
    for section in chosen:
        if section.status not in {"passed", "not run", "left out", SKIPPED}:
            print(f"===== {section.name}: {section.status}\n{section.output[-2500:]}\n")
        elif section.name in BENCHES:
            print(section.output[-3500:])
    print(f"{'section':<12}{'status':<14}{'seconds':>8}  last line")
    for section in chosen:
        print(f"{section.name:<12}{section.status:<14}{section.seconds:>8}  {section.said[:100]}")


def _sees_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Run what needs a GPU.")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-out", help="folder for report, log and benchmarks")
    parser.add_argument("--only", nargs="+", metavar="SECTION", help="some of the sections")
    parser.add_argument("--tests", action="store_true", help="everything but the benchmarks")
    parser.add_argument("--seconds", type=float, default=1400.0, help="time for all of it")
    parser.add_argument("--bench-seconds", type=float, default=150.0, help="time for the decode benchmark's rows")
    options = parser.parse_args(arguments)
    if not _sees_gpu():
        print(NO_GPU)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    every = sections(options.out.resolve(), options.bench_seconds)
    names = options.only or [s.name for s in every if not (options.tests and s.name in BENCHES)]
    unknown = set(names) - {section.name for section in every}
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in every)}")
    chosen = [section for section in every if section.name in names]
    with tempfile.TemporaryDirectory(prefix="gapless-wheels-") as folder:
        run(chosen, options.out.resolve(), options.seconds, unpacked(WHEELS, Path(folder)))
    show(chosen)
    statuses = {section.status for section in chosen}
    return 0 if "passed" in statuses and statuses <= {"passed", SKIPPED} else 1


if __name__ == "__main__":
    raise SystemExit(main())
