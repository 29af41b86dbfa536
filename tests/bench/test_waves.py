"""A row of several waves is the median one, whatever order they came in."""

from __future__ import annotations

import random
from dataclasses import replace

from gapless.bench.decode_run import row_of
from gapless.bench.roofline import Roofline
from gapless.bench.wave import Wave

WAVE = Wave(8, 50, 800.0, 4.0, 3.9, 0.02, 0.1, 0.2, 0.3, 0.4, tokens=880, seconds=1.0, row_steps=900, zombies=8)


def test_the_median_wave_is_the_row():
    waves = [replace(WAVE, seconds=s, period_ms=4 * s, zombies=z) for s, z in ((1.0, 8), (2.0, 9), (4.0, 10))]
    for seed in range(6):
        random.Random(seed).shuffle(waves)
        row = row_of(waves, 2, Roofline(10**9, 10**5, 4e12))
        assert (row["tokens_per_s"], row["period_ms"], row["zombie_share"]) == (440.0, 8.0, 0.01)
        assert row["waves"] == [220.0, 880.0]
