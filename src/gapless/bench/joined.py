"""Reports of several models as one, as a benchmark of all of them leaves it.

In: reports of one benchmark on one machine, one a model. Out: one report: of a single model its own; of several the
first one's head, all rows in turn, each with its `model`, and whatever else is a model's own under its name. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Report = dict[str, Any]
OWN = ("model", "roofline", "memory", "clocks", "read_gb_per_s", "matmul_tflop_per_s")
"""Facts that each model has its own of."""


def joined(reports: Sequence[Mapping[str, Any]]) -> Report:
    """See the module. `read_gb_per_s` and `matmul_tflop_per_s` of the head are the first model's, and `models` has all
    models' own."""
    if len(reports) == 1:
        return dict(reports[0])
    names = [report["model"]["name"] for report in reports]
    head = dict(reports[0])
    head["model"] = {**head["model"], "name": ", ".join(names)}
    head["models"] = {
        name: {fact: report[fact] for fact in OWN if fact in report}
        for name, report in zip(names, reports, strict=True)
    }
    for section in ("rows", "host"):
        head[section] = [
            {"model": name, **row} for name, report in zip(names, reports, strict=True) for row in report[section]
        ]
    head["seconds"] = {
        f"{name}: {section}": seconds
        for name, report in zip(names, reports, strict=True)
        for section, seconds in report["seconds"].items()
    }
    head["notes"] = [f"{name}: {note}" for name, report in zip(names, reports, strict=True) for note in report["notes"]]
    for fact in ("roofline", "memory", "clocks"):
        head.pop(fact, None)
    return head
