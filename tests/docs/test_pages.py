"""The pages under docs/ name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gapless

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_a_requests_way_names_files_that_exist() -> None:
    names = re.findall(r"`(src/[^`]+)`", (ROOT / "docs" / "request.md").read_text())
    assert len(names) > 30
    missing = [name for name in names if not (ROOT / name).is_file()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_and_folders_named_in_passing_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    names = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", text)
    roots = (ROOT, ROOT / "src" / "gapless")
    missing = [name for name in names if not any((root / name).exists() for root in roots)]
    assert not missing


def test_all_that_is_counted_is_told() -> None:
    """A name ends where a word does, so that `pictures_held_bytes` does not tell `pictures_held`."""
    told = set(re.findall(r"\w+", "".join(page.read_text() for page in PAGES)))
    with gapless.load("glint", device="cpu", max_rows=1) as vlm:
        assert not vlm.stats().keys() - told
