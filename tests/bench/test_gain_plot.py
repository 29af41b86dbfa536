"""Bars are where the numbers say, in the colours of the key."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from gapless.bench.bar_plot import BAR, axis_for
from gapless.bench.gain_plot import OBSERVED, PREDICTED, Bars, draw_gains


def heights(image: Image.Image, colour: tuple[int, int, int]) -> list[int]:
    """Pixels in height of each bar of a colour, left to right; the key's little square is left out."""
    is_colour = (np.asarray(image)[130:] == colour).all(axis=2).sum(axis=0)
    columns = np.flatnonzero(is_colour)
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    assert all(len(run) == BAR for run in runs if len(run))
    return [int(np.median(is_colour[run])) for run in runs if len(run)]


def test_heights_are_in_proportion() -> None:
    bars = [Bars("1 stream", "a", 0.05, 0.10), Bars("8 streams", "a", 0.20, 0.15), Bars("8 streams", "b", 0.10, None)]
    image = draw_gains(bars, "Title", "what it says")
    predicted, observed = heights(image, PREDICTED), heights(image, OBSERVED)
    unit = predicted[1] / 20
    assert predicted == pytest.approx([5 * unit, 20 * unit, 10 * unit], abs=3)
    assert observed == pytest.approx([10 * unit, 15 * unit], abs=3)


def test_a_loss_hangs_below_zero() -> None:
    image = draw_gains([Bars("1 stream", "", -0.05, 0.05)], "Title", "")
    pixels = np.asarray(image)
    down, up = (np.flatnonzero((pixels[130:] == c).all(axis=2).any(axis=1)) for c in (PREDICTED, OBSERVED))
    assert up.max() <= down.min() + 3
    assert len(up) == pytest.approx(len(down), abs=3)


@pytest.mark.parametrize(
    ("percents", "low", "high", "step"),
    [([39.1, 5.0], 0, 40, 10), ([4.0], 0, 4, 1), ([0.0], 0, 1, 0.2), ([-3.0, 12.0], -5, 15, 5), ([700.0], 0, 700, 100)],
)
def test_the_axis_is_round(percents: list[float], low: float, high: float, step: float) -> None:
    axis = axis_for(percents, least=1.0)
    assert (axis.low, axis.high, axis.step) == pytest.approx((low, high, step))
    assert axis.lines()[-1] == pytest.approx(high) and axis.y(high) < axis.y(low)


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="no number"):
        draw_gains([Bars("1 stream", "", None, None)], "Title", "")
