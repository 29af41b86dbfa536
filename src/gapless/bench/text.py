"""Numbers of a report as text.

In: values of rows. Out: cells, rounded values, and a plain table for where nothing draws a better one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

DIGITS = 5
"""More than any of the measured numbers is good for."""


def rounded(value: float | None) -> float | None:
    """`value` to five digits that count."""
    if value is None or not math.isfinite(value) or value == 0:
        return value
    return round(value, max(0, DIGITS - 1 - math.floor(math.log10(abs(value)))))


def cell(value: Any) -> str:
    """A value of a table as text; "-" for what was not measured."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else str(value)


def cells(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> list[tuple[str, ...]]:
    """The rows' columns as text, None where a row lacks one."""
    return [tuple(cell(row.get(column)) for column in columns) for row in rows]


def filled(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Those columns in which some row has a value; all of them where there is no row."""
    return [column for column in columns if not rows or any(row.get(column) is not None for row in rows)]


def callers(count: int) -> str:
    """So many callers, as a cluster of bars is called."""
    return f"{count} caller{'s' if count > 1 else ''}"


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned columns."""
    lines = [tuple(columns), *cells(rows, columns)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True)) for line in lines)
