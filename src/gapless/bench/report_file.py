"""Reports of measurements: written to their files, and read back.

In: a path. Out: the report, or its decode rows, checked. Raises `InvalidRequest` with what is wrong with the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gapless.errors import InvalidRequest

Row = dict[str, Any]
PARTS = ("period_ms", "forward_ms", "sampling_ms", "plan_ms", "launch_ms", "commit_ms")
"""Columns that the cost model computes with."""


def read_report(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises `InvalidRequest` if there is none."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {str(path)!r}: {error.strerror or error}; name a report's file", param="file"
        ) from error
    except ValueError as error:
        raise InvalidRequest(f"{str(path)!r} is no JSON ({error}); name a report's file", param="file") from error
    if not isinstance(report, dict):
        raise InvalidRequest(f"{str(path)!r} holds no JSON object; name a report's file", param="file")
    return report


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no number")


def save_to(path: Path | None) -> Callable[[Mapping[str, Any]], None]:
    """What writes a report to `path`, whole or not at all; with None nothing is written."""

    def save(report: Mapping[str, Any]) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{path.name}.part")
            beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            beside.replace(path)

    return save


def decode_rows(report: dict[str, Any], path: Path) -> list[Row]:
    """The rows of a decode report: each has whole `streams` and `depth`, and numbers or null in all other columns of
    times and shares; no part of a step is below 0, and a `sampler` is a word. Raises `InvalidRequest` for another
    kind of report."""
    rows = report.get("rows")
    if not isinstance(rows, list) or not rows or not all(_is_decode_row(row) for row in rows):
        raise InvalidRequest(
            f"{str(path)!r} is no decode report: its rows need streams, depth and times; "
            "make one with: gapless bench decode --out FILE",
            param="file",
        )
    return rows


def _is_decode_row(row: object) -> bool:
    if not isinstance(row, dict) or "period_ms" not in row:
        return False
    counts = all(type(row.get(name)) is int and row[name] > 0 for name in ("streams", "depth"))
    names = [name for name in row if name.endswith(("_ms", "_share", "_gain", "_tokens"))]
    numbers = all(row[name] is None or type(row[name]) in (int, float) for name in names)
    parts = numbers and all((row.get(name) or 0) >= 0 for name in PARTS)
    return counts and parts and isinstance(row.get("sampler", ""), str)
