"""Two reports side by side: what changed between them, row by row, column by column.

In: two reports of the same kind, any of ours. Out: `Compared` rows. A section is a list of objects in a report; its
rows are matched by their labels: every column of text, and those of `KEYS`. Numbers are compared, also inside objects
(as `trace.span_ms`); lists and text are not. The change of a gain or a share is a difference (0.01 is one point), of
anything else a ratio less one. Whether a change is for the better follows from the column's name, where it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gapless.errors import InvalidRequest

KEYS = ("streams", "concurrency", "rows", "batch", "text_tokens", "crops", "depth")
LESS_IS_BETTER = ("_ms", "wall_s", "zombie_share", "idle_share")
MORE_IS_BETTER = ("_per_s", "roofline_share", "observed_gain")
NO_MATTER = ("wait_ms", "floor_ms")
"""More waiting is as good as less work elsewhere; the floor follows from the machine."""
POINTS = ("_gain", "_share")
Label = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both reports.

    `change`: see the module, None from zero to something; `in_points`: it is a difference; `marked`: it is above the
    threshold; `better`: None if that cannot be said, or if it is not marked.
    """

    a: float
    b: float
    change: float | None
    in_points: bool
    marked: bool
    better: bool | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `ratio` is B / A, None where A is 0."""
        return {"ratio": self.b / self.a if self.a else None, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Compared:
    """A row that both reports have. `section`: the list it stands in; `label`: what it was matched by; `lost`: numbers
    of A that B has not."""

    section: str
    label: Label
    columns: Mapping[str, Change]
    lost: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        columns = {name: change.as_dict() for name, change in self.columns.items()}
        return {"section": self.section, **dict(self.label), "columns": columns, "lost": list(self.lost)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it. `only_a`, `only_b`: rows without a partner, with their section."""

    threshold: float
    rows: tuple[Compared, ...]
    only_a: tuple[tuple[str, Label], ...]
    only_b: tuple[tuple[str, Label], ...]

    @property
    def failed(self) -> bool:
        """Whether a number became worse by more than the threshold, or a row or a number was lost."""
        return (
            bool(self.only_a)
            or any(row.lost for row in self.rows)
            or any(c.marked and c.better is False for row in self.rows for c in row.columns.values())
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "threshold": self.threshold,
            "failed": self.failed,
            "rows": [row.as_dict() for row in self.rows],
            "only_a": [{"section": section, **dict(label)} for section, label in self.only_a],
            "only_b": [{"section": section, **dict(label)} for section, label in self.only_b],
        }


def compare(a: Mapping[str, Any], b: Mapping[str, Any], threshold: float, columns: Sequence[str] = ()) -> Comparison:
    """Compare two reports. `columns`: only these; none given: all but those inside objects.

    Raises `InvalidRequest` if no row is in both, or if no row has a column that was asked for.
    """
    rows_a, rows_b = _labelled(a), _labelled(b)
    both = [key for key in rows_a if key in rows_b]
    if not both:
        raise InvalidRequest("the reports have no row in common; compare two of the same kind", param="file")
    rows = tuple(_compared(key, rows_a[key], rows_b[key], threshold, columns) for key in both)
    unknown = [name for name in columns if not any(name in row.columns for row in rows)]
    if unknown:
        raise InvalidRequest(f"no row has a number in both reports called {', '.join(unknown)}", param="column")
    only_a, only_b = (tuple(k for k in one if k not in other) for one, other in ((rows_a, rows_b), (rows_b, rows_a)))
    return Comparison(threshold, rows, only_a, only_b)


def _labelled(report: Mapping[str, Any]) -> dict[tuple[str, Label], Mapping[str, Any]]:
    """Rows by section and label; rows with equal labels are told apart by their order."""
    found: dict[tuple[str, Label], Mapping[str, Any]] = {}
    for section, rows in report.items():
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            continue
        for row in rows:
            label = label_of(row)
            key, again = (section, label), 1
            while key in found:
                again += 1
                key = (section, (*label, ("again", again)))
            found[key] = row
    return found


def label_of(row: Mapping[str, Any]) -> Label:
    """What a row is matched by."""
    return tuple((name, value) for name, value in row.items() if _names_a_row(name, value))


def _names_a_row(name: str, value: object) -> bool:
    return isinstance(value, str) or (name in KEYS and isinstance(value, int))


def _compared(
    key: tuple[str, Label], a: Mapping[str, Any], b: Mapping[str, Any], threshold: float, columns: Sequence[str]
) -> Compared:
    wanted = {name: value for name, value in _numbers(a) if (name in columns if columns else "." not in name)}
    found = dict(_numbers(b))
    changes = {n: _change(n, value, found[n], threshold) for n, value in wanted.items() if n in found}
    return Compared(*key, changes, tuple(name for name in wanted if name not in found))


def _numbers(row: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (before or name not in KEYS):
            yield before + name, float(value)


def _change(name: str, a: float, b: float, threshold: float) -> Change:
    change: float | None
    if name.endswith(POINTS):
        change = b - a
    elif a:
        change = b / a - 1.0
    else:
        change = 0.0 if a == b else None
    marked = change is None or abs(change) > threshold
    return Change(a, b, change, name.endswith(POINTS), marked, _better(name, b - a) if marked else None)


def _better(name: str, difference: float) -> bool | None:
    if name.endswith(NO_MATTER):
        return None
    if name.endswith(LESS_IS_BETTER):
        return difference < 0
    return difference > 0 if name.endswith(MORE_IS_BETTER) else None
