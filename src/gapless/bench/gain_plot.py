"""Predicted and observed gains as a picture: two bars per number of streams, in percent.

In: bars and words, or the rows of a decode report. Out: an RGB image. Gains are fractions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from gapless.bench.bar_plot import PALE, STRONG, Cluster, Style, draw_bars

PREDICTED, OBSERVED = PALE, STRONG
STYLE = Style(("predicted", "observed"), unit=" %", number="+.1f", least=1.0)


@dataclass(frozen=True, slots=True)
class Bars:
    """One pair. `group`: what stands under all pairs of a kind, may be empty; a gain of None has no bar."""

    label: str
    group: str
    predicted: float | None
    observed: float | None


def draw_gains(bars: Sequence[Bars], title: str, subtitle: str) -> Image.Image:
    """Draw the bars, left to right, pairs of one group next to one another. Raises `ValueError` without a gain."""
    clusters = [Cluster(pair.label, pair.group, (_percent(pair.predicted), _percent(pair.observed))) for pair in bars]
    return draw_bars(clusters, STYLE, title, subtitle)


def gain_bars(rows: Sequence[Mapping[str, Any]]) -> list[Bars]:
    """The gains of a decode report's rows above depth 1, by model, sampler and depth where there are several."""
    shown = [row for row in rows if row["depth"] > 1]
    depths = sorted({row["depth"] for row in shown})
    kinds = list(dict.fromkeys((row.get("model"), row["sampler"]) for row in shown))
    samplers = {sampler for _, sampler in kinds}

    def group(row: Mapping[str, Any]) -> str:
        words = [row["model"]] if row.get("model") else []
        words += [f"{row['sampler']} sampler"] if len(samplers) > 1 else []
        return ", ".join([*words, f"depth {row['depth']}"] if len(depths) > 1 else words)

    ordered = [
        row
        for kind in kinds
        for depth in depths
        for row in shown
        if ((row.get("model"), row["sampler"]), row["depth"]) == (kind, depth)
    ]
    return [Bars(streams(r["streams"]), group(r), r["predicted_gain"], r["observed_gain"]) for r in ordered]


def streams(count: int) -> str:
    """ "1 stream", "8 streams"."""
    return f"{count} stream{'s' if count > 1 else ''}"


def _percent(gain: float | None) -> float | None:
    return None if gain is None else 100 * gain
