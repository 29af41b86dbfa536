"""docs/reports.md has a line for every report, and the tests it points to do name them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reports.md").read_text()
COUNTS = {
    **{"IMG": 13, "TOK": 8, "STR": 9, "API": 10, "CON": 19, "NUM": 6, "MEM": 5, "LOR": 9, "PFX": 6, "STA": 6},
    **{"SHU": 4, "MET": 3, "SEC": 8, "DET": 8},
}
EXPECTED = [f"S-{group}-{number:02}" for group, count in COUNTS.items() for number in range(1, count + 1)]
LINES = re.findall(r"^\| (S-[A-Z]{3}-\d\d) \| (.+) \| (.+) \| (?:`(tests/\S+)`|(-)) \|$", PAGE, flags=re.M)
WHOLE = re.compile(r"S-([A-Z]{3})-(\d\d)")
IN_NAMES = re.compile(r"s_(?!and)([a-z]{3})((?:_(?:and_)?\d\d)+)")
"""In a test's name several numbers of a group may follow one another."""


def named(text: str) -> set[str]:
    """The ids that a test file names, in words or in the names of its tests."""
    found = {f"S-{group}-{number}" for group, number in WHOLE.findall(text)}
    for group, numbers in IN_NAMES.findall(text):
        found |= {f"S-{group.upper()}-{number}" for number in re.findall(r"\d\d", numbers)}
    return found


def test_every_report_has_one_line() -> None:
    assert len(EXPECTED) == 114
    assert sorted(line[0] for line in LINES) == sorted(EXPECTED)
    assert len(LINES) == len(re.findall(r"^\| S-", PAGE, flags=re.M)), "a line is not of the table's form"


@pytest.mark.parametrize("path", sorted({line[3] for line in LINES} - {""}))
def test_the_tests_name_what_they_are_said_to_show(path: str) -> None:
    told = {line[0] for line in LINES if line[3] == path}
    assert told <= named((ROOT / path).read_text()), told


def test_every_report_has_a_test() -> None:
    assert not [line[0] for line in LINES if line[4]]


def test_tests_name_no_report_that_does_not_exist() -> None:
    pages = [page for page in (ROOT / "tests").rglob("*.py") if page != Path(__file__)]
    assert set().union(*(named(page.read_text()) for page in pages)) <= set(EXPECTED)
