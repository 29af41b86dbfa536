"""Full-size checkpoints of random weights in the published layouts: written, loaded by the library, asked everything.

    PYTHONPATH=src:. python3 -m tests.gpu.checkpoints --out FILE            # all three, some minutes on an H200
    PYTHONPATH=src:. python3 -m tests.gpu.checkpoints --models moondream2
    PYTHONPATH=src:. python3 -m tests.gpu.checkpoints --micro --device cpu    # the same steps, small, without a GPU

For each model: a folder as the hub has it and eight adapters, in a process of its own; then in another one, so that its
memory is its own, what `checkpoint_proof` does. Folders are made below --folder, one at a time (20 GB at most), and are
removed. The files were just written, so loading reads them from memory rather than from a disk.

The report is saved after every model. Ends with 1 if anything was not as it should be; the report says what.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.gpu.checkpoint_proof import LIMITS, Task, prove
from tests.gpu.hub_folders import KINDS, Kind, write_adapters, write_checkpoint
from tests.gpu.near_tie import ERRORS, EXPERTS_SHARE, SHARE

from gapless.bench.gpu import clocks
from gapless.bench.report_file import save_to
from gapless.bench.rig import facts_of
from gapless.bench.text import table
from gapless.models.moondream.config import read_config

SECONDS = 480.0
COUNT = 64
COLUMNS = (
    "model",
    "files_gb",
    "write_s",
    "load_s",
    "host_over_gb",
    "predicted_gb",
    "weights_gb",
    "used_gb",
    "planned_gb",
    "depths",
    "at_once",
    "near",
    "wider",
    "beyond",
    "problems",
)


def write(kind: Kind, folder: Path, device: str, micro: bool) -> tuple[dict[str, Any], dict[str, Path]]:
    """A folder and its adapters: what was written, and where each adapter is."""
    written = write_checkpoint(kind, folder, device, micro)
    config = read_config(kind.config(micro), kind.behaves)
    return written, write_adapters(kind, config, folder.with_name(f"{folder.name}-adapters"), device)


def apart(work: Callable[..., Any], *arguments: object) -> Any:
    """Do something in a process of its own. Raises what it raises."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def prove_one(kind: Kind, below: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    """Write, load and ask one model; an error is among its problems."""
    began, found = time.perf_counter(), {"model": kind.name, "like": kind.published}
    try:
        with TemporaryDirectory(prefix="gapless-hub-", dir=below) as place:
            folder = Path(place) / kind.name
            written, adapters = apart(write, kind, folder, options.device, options.micro)
            print(f"-- {kind.name}: written in {written['seconds']} s", flush=True)
            found |= {"written": written, "adapters": dict(zip(adapters, kind.ranks, strict=False))}
            found |= apart(prove, Task(kind, folder, adapters, options.device, options.micro, options.count))
    except Exception as error:
        found["problems"] = [f"{type(error).__name__}: {error}"]
        found["traceback"] = traceback.format_exc()[-3000:]
    found["seconds"] = round(time.perf_counter() - began, 1)
    print(f"-- {kind.name}: {len(found['problems'])} problems after {found['seconds']} s", flush=True)
    return found


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """A model's line of the table; depth 2 is what is loaded for."""
    load, skills, mix = (found.get(name, {}) for name in ("load, depth 2", "skills", "mix"))
    load = load | found.get("weights", {})
    row: dict[str, Any] = {"model": found["model"], "problems": len(found["problems"]), "load_s": load.get("load_s")}
    if "written" in found:
        row |= {"files_gb": found["written"]["bytes"] / 1e9, "write_s": found["written"]["seconds"]}
    sizes = {"host_over_gb": "host_peak_over", "predicted_gb": "weights_predicted", "weights_gb": "weights"}
    sizes |= {"used_gb": "used", "planned_gb": "planned_at_most"}
    row |= {name: load[key] / 1e9 for name, key in sizes.items() if load.get(key) is not None}
    for name, part in (("depths", skills), ("at_once", mix)):
        row[name] = f"{part['equal']}/{part['questions']}" if part else None
    counted = {"near": "near_ties", "wider": "near_by_the_wider_rule", "beyond": "beyond"}
    return row | {name: skills[key] + mix[key] for name, key in counted.items() if skills and mix}


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Prove checkpoints of random weights in the published layouts.")
    parser.add_argument("--out", type=Path, help="file for the report")
    parser.add_argument("--models", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    parser.add_argument("--device", default="cuda", help="cuda, or cpu")
    parser.add_argument("--micro", action="store_true", help="a few dimensions instead of the published ones")
    parser.add_argument("--count", type=int, default=COUNT, help="questions at once")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no model begins after that long")
    parser.add_argument("--folder", type=Path, help="where the folders are made; the system's place by default")
    options = parser.parse_args(arguments)
    save, began = save_to(options.out), time.monotonic()
    command = shlex.join(
        ["python3", "-m", "tests.gpu.checkpoints", *(sys.argv[1:] if arguments is None else arguments)]
    )
    report: dict[str, Any] = {
        "benchmark": "checkpoints",
        **facts_of(torch.device(options.device)),
        "command": command,
        "device": options.device,
        "settings": {"temperature": 0, **LIMITS},
        "rules": {"near": SHARE, "wider, with experts": EXPERTS_SHARE, "or errors": ERRORS},
        "models": [],
    }
    if options.device != "cpu":
        report["clocks"] = {"before": clocks()}
    for name in options.models:
        if time.monotonic() - began > options.seconds:
            report["models"].append({"model": name, "problems": ["left out: no time was left"]})
            continue
        report["models"].append(prove_one(KINDS[name], options.folder, options))
        save(report)
    if options.device != "cpu":
        report["clocks"]["after"] = clocks()
    save(report)
    for found in report["models"]:
        for problem in found["problems"]:
            print(f"{found['model']}: {problem}")
    print(table([row_of(found) for found in report["models"]], COLUMNS))
    return 1 if any(found["problems"] for found in report["models"]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
