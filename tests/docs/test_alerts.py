"""The alerts that come along ask for metrics that exist, and the page explains each."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_alerts_are_over_metrics_that_the_server_has() -> None:
    [group] = yaml.safe_load((ROOT / "packaging" / "alerts.yaml").read_text())["groups"]
    told = set(re.findall(r"\| `(gapless:\w+)[{`]", (ROOT / "docs" / "server.md").read_text()))
    assert len(told) > 40 and len(group["rules"]) == 7
    for rule in group["rules"]:
        names = set(re.findall(r"gapless:\w+", rule["expr"]))
        assert names and {re.sub(r"_bucket$", "", name) for name in names} <= told, rule["alert"]
        assert rule["annotations"]["summary"] and rule["labels"]["severity"] in {"page", "ticket"}


def test_the_page_tells_what_to_do_about_each() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    [group] = yaml.safe_load((ROOT / "packaging" / "alerts.yaml").read_text())["groups"]
    rows = re.findall(r"^\| ([a-z ]+) \| .+ \| .+ \|$", page, flags=re.M)
    assert len([row for row in rows if row != "alert"]) == len(group["rules"])
