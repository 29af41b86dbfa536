"""The benchmark of rules with a micro model: all ways, and what is counted. Nothing here is timed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.bench.small_rigs import MODEL, InlineRig, MicroRig

from gapless.bench.made_up import made_up
from gapless.bench.rules import COLUMNS, TABLE_COLUMNS, RulesBenchmark
from gapless.bench.rules_run import Options, RulesBench
from gapless.bench.slow_masks import SlowMasks
from gapless.constrain.grammar import Grammar, compile_grammar, host_grammar
from gapless.constrain.guides import installed
from gapless.constrain.table import Walker, build_table
from gapless.records import RowRef

SMALL = Options(3, turns=1, steps=5, seconds=600, host=True, guided=installed())


class Reading(RulesBench):
    """The micro model has too few ids for JSON: any of them, for long."""

    def _compile(self) -> None:
        size = self.rig.config.text.vocab_size
        rule = Grammar.regex("[\\x00-\\x2f]{20,60}")
        words = made_up(size, self.rig.rules.end)
        self.table, self.guide = compile_grammar(rule, words), host_grammar(rule, words)


@pytest.fixture(scope="module", params=[MicroRig, pytest.param(InlineRig, marks=pytest.mark.slow)], ids=["cpu", "cuda"])
def report(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    rig = request.param()
    rig._answers = (300, 301)
    try:
        yield Reading(rig, SMALL).run(list)
    finally:
        rig.close()


def test_a_row_for_each_way_with_every_column(report: dict[str, Any]) -> None:
    assert report["notes"] == [] and json.loads(json.dumps(report)) == report
    ways = [(row["way"], row["sampler"], row["share"]) for row in report["rows"]]
    assert ways == [tuple(key) for key in SMALL.keys] and len(ways) == 2 * 4 + 3 + 1 + 3 * installed()
    for row in report["rows"]:
        assert set(COLUMNS) <= set(row) and row["tokens_per_s"] > 0
        assert (row["of_free"] == 1) or row["share"] or row["way"] == "slow"
    assert set(TABLE_COLUMNS) == set(report["tables"][0]) and report["tables"][0]["fewest"] >= 10
    benchmark = RulesBenchmark(host=True)
    assert benchmark.complete(report) and not RulesBenchmark().complete(report)
    assert benchmark.draw(report).height >= 640


def test_masks_are_slow_by_so_much() -> None:
    masks, woken = SlowMasks(), threading.Event()
    masks.wake = woken.set
    table = build_table(MicroRig().rules)
    walker, ref = Walker.start(table, "text", 9, 1), RowRef(1, 1)
    masks.request(ref, walker)
    assert np.array_equal(masks.take(ref), walker.mask()) and masks.take(ref) is None
    masks.seconds = 0.01
    masks.request(ref, walker)
    assert woken.wait(5) and masks.take(ref) is not None
    masks.seconds = 100.0
    masks.request(ref, walker)
    masks.forget(ref)
    masks.close()
    assert masks.take(ref) is None and MODEL.vocab
