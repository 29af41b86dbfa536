"""A row of several waves is the median one, whatever order they came in."""

from __future__ import annotations

import random

from gapless.bench.decode_rows import row_of
from gapless.bench.roofline import Roofline
from gapless.bench.wave import Typical, Wave
from gapless.observe.accounting import Accounting
from gapless.observe.counters import Counters


def wave(seconds: float, zombies: int) -> Wave:
    counters = Counters(tokens=880, zombies=zombies)
    spent = Accounting(counters, {"decode": 110}, {"decode": 900 * seconds}, 100 * seconds, {}, (0.0, 1.0, 3.0))
    return Wave(8, 50, 800.0, Typical(4 * seconds, 3.9, 0.02, 0.1, 0.2, 0.3, 0.4), spent, answered=8 * 110)


def test_the_median_wave_is_the_row():
    waves = [wave(1.0, 8), wave(2.0, 9), wave(4.0, 10)]
    for seed in range(6):
        random.Random(seed).shuffle(waves)
        row = row_of(("default", 8, 2), waves, Roofline(10**9, 10**5, 4e12))
        assert (row["sampler"], row["streams"], row["depth"], row["answer_tokens"]) == ("default", 8, 2, 110)
        assert (row["tokens_per_s"], row["period_ms"], row["zombie_share"]) == (440.0, 8.0, 0.010124)
        assert (row["idle_share"], row["steps_in_flight"]) == (0.1, 1.75)
        assert row["waves"] == [220.0, 880.0] and row["measured"] == 3
