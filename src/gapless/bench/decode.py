"""`python -m gapless.bench.decode`: the decode benchmark as a command that needs torch and a GPU, nothing else.

In: which model, streams, depths and how long. Out: a table on standard output and a JSON file, written anew after every
section, so that a run that is cut short leaves what it had. What is measured, and how, says `bench.decode_run`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gapless.bench.decode_run import Bench, Options, Row, cell, table_of
from gapless.bench.hostpart import ROWS, HostPart, measure_null
from gapless.errors import GaplessError, InvalidRequest

if TYPE_CHECKING:
    from gapless.models.registry import Loaded

RANDOM = "random"
"""The model's name for full-size random weights of Moondream 2: the numbers do not depend on what weights say."""
HOST_COLUMNS = ("device", "rows", "plan_ms", "launch_ms", "wait_ms", "commit_ms", "calls_per_step", "api_calls")


def run_decode(
    options: Options,
    save: Callable[[Mapping[str, Any]], None],
    *,
    model: str = RANDOM,
    device: str = "cuda",
    graphs: bool = True,
) -> dict[str, Any]:
    """Load the model on the GPU, measure, and return the report; `save` is given each stage of it.

    Raises `InvalidRequest` if there is no GPU, and what loading a model raises.
    """
    from gapless.bench.cuda_rig import CudaRig
    from gapless.device.gpus import TorchDriver, find_gpu

    if device.partition(":")[0] != "cuda":
        raise InvalidRequest(
            f"device {device!r} is no GPU, and decode steps are timed on one; use cuda or cuda:N, or --host-only",
            param="device",
        )
    loaded = _load(model, find_gpu(device, TorchDriver()).device)
    buckets = tuple(sorted({*options.streams, *options.host_rows}))
    rig = CudaRig(loaded.model, loaded.config, loaded.name, buckets, graphs)
    try:
        return Bench(rig, options).run(save)
    finally:
        rig.close()


def _load(model: str, device: str) -> Loaded:
    from gapless.models.registry import load_model, random_model

    if model == RANDOM:
        return random_model("moondream-2", device, "bfloat16")
    return load_model(model, device, "bfloat16")


def summary(report: Mapping[str, Any]) -> str:
    """The report for people: rows, the host's part, notes, and what it was measured on."""
    rows: list[Row] = list(report["rows"])
    lines = [table_of(rows), "", host_table(report["host"])]
    roofline = report["roofline"]
    lines += ["", f"read bandwidth {roofline['read_gb_per_s']} GB/s, weights {roofline['weight_bytes'] / 1e9:.3f} GB"]
    lines += [f"note: {note}" for note in report["notes"]]
    return "\n".join(lines)


def complete(report: Mapping[str, Any], options: Options) -> bool:
    """Whether every number of streams was measured at every depth: a period and an idle time each."""
    whole = [row for row in report["rows"] if row["period_ms"] is not None and row["idle_ms"] is not None]
    return len(whole) == len(options.streams) * len(options.depths)


def host_table(parts: Sequence[Mapping[str, Any]]) -> str:
    """The host's part as text."""
    calls = [{**part, "api_calls": sum((part["api_calls"] or {}).values()) or None} for part in parts]
    lines = [HOST_COLUMNS, *(tuple(cell(part[column]) for column in HOST_COLUMNS) for part in calls)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HOST_COLUMNS))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def save_to(path: Path | None) -> Callable[[Mapping[str, Any]], None]:
    """What writes a report to `path`, whole or not at all; with None nothing is written."""

    def save(report: Mapping[str, Any]) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            beside.replace(path)

    return save


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0, 1 if a row has no period or no idle time, 2 if nothing could be measured."""
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m gapless.bench.decode", description="The decode benchmark.")
    parser.add_argument("--model", default=RANDOM, help="a model's name or folder; default: full-size random weights")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--streams", type=_numbers, default=usual.streams, help="for example 1,8,32,64")
    parser.add_argument("--depths", type=_numbers, default=usual.depths, help="for example 1,2")
    parser.add_argument("--host-rows", type=_numbers, default=ROWS, help="rows of the host's part")
    parser.add_argument("--waves", type=int, default=usual.waves, help="how often each row is measured")
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="no new section begins after that long")
    parser.add_argument("--graphs", choices=("on", "off"), default="on")
    parser.add_argument("--host-only", action="store_true", help="the engine's own part alone; needs no GPU")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    given = parser.parse_args(arguments)
    if given.host_only:
        parts: list[HostPart] = measure_null(given.host_rows)
        print(host_table([part.as_dict() for part in parts]))
        return 0
    options = Options(given.streams, given.depths, given.seconds, host_rows=given.host_rows, waves=given.waves)
    try:
        report = run_decode(
            options, save_to(given.out), model=given.model, device=given.device, graphs=given.graphs == "on"
        )
    except GaplessError as error:
        print(error)
        return 2
    print(summary(report))
    return 0 if complete(report, options) else 1


if __name__ == "__main__":
    raise SystemExit(main())
