"""The search of `gapless tune`, with times and verdicts that a test makes up; what it offers; what is right for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from tests.kernels.drawn_decoder import Scene as Drawn
from tests.kernels.drawn_decoder import step
from tests.kernels.drawn_sparse import Sparse as DrawnSparse
from tests.kernels.drawn_sparse import step as sparse_step

from gapless.bench import tune_sparse_menu
from gapless.bench.tune import CAREFUL, QUICK, Search, Steps
from gapless.bench.tune_menu import PARTS, menu
from gapless.bench.tune_scene import Scene, decoder_of
from gapless.bench.tune_sparse_scene import sparse_decoder_of, sparse_scene
from gapless.bench.tune_sparse_scene import step as sparse_margins
from gapless.kernels.triton.choices import BATCHES, ONE, Choice, Dims, Gpu, choice, padded
from gapless.kernels.triton.sparse_choices import Own, SparseDims
from gapless.kernels.triton.sparse_choices import choice as sparse_choice
from gapless.kernels.triton.table import built_in

Pair = tuple[int, int]
MOONDREAM_2 = Dims(dim=2048, inner=8192, heads=32, rotary=32, vocab=51200)
GLINT = Dims(dim=256, inner=512, heads=4, rotary=32, vocab=2048)
MOONDREAM_3 = SparseDims(2048, 8192, 32, 32, 51200, 64, 8, 1024, 1)
GLINT_3 = SparseDims(256, 512, 4, 32, 2048, experts=8, share=2, expert_inner=64)


@dataclass
class Made:
    """A trial of pairs: a step takes 100 + a + b, wrong ones are wrong, broken ones cannot be launched."""

    wrong: frozenset[Pair] = frozenset()
    broken: frozenset[Pair] = frozenset()
    noise: float = 0.0
    prepared: list[Pair] = field(default_factory=list)
    checked: list[Pair] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def prepare(self, rows: int, choices: Sequence[Pair]) -> None:
        self.prepared += choices

    def right(self, rows: int, choice: Pair) -> bool:
        self.checked.append(choice)
        return choice not in self.wrong

    def times(self, rows: int, choices: Sequence[Pair], turns: int) -> list[float | None]:
        assert all(choice in self.prepared for choice in choices), "timed before it was compiled"
        self.turns.append(turns)
        self.noise = -self.noise
        return [None if c in self.broken else 100.0 + sum(c) + self.noise * i for i, c in enumerate(choices)]


def offered(part: str, now: Pair, rows: int) -> list[Pair]:
    values = range(rows, rows + 9)
    pairs = [(a, now[1]) if part == "a" else (now[0], a) for a in values]
    return [pair for pair in pairs if pair != now]


def found(trial: Made, seconds: float = 60.0, rows: Sequence[int] = (1, 4), told: list[str] | None = None):
    def tell(doing: str, done: int, total: int) -> None:
        if told is not None:
            told.append(f"{doing} {done}/{total}")

    search = Search(trial, Steps(("a", "b"), dict.fromkeys(rows, (9, 9)), offered), seconds, tell)
    search.run()
    return search.found


def test_each_part_is_searched_from_what_won_before() -> None:
    trial, told = Made(), list[str]()
    best = found(trial, told=told)
    assert {rows: of.choice for rows, of in best.items()} == {1: (1, 1), 4: (4, 4)}
    assert (best[1].before, best[1].after, best[1].whole, best[1].wrong) == (118.0, 102.0, True, 0)
    assert told == ["a, 1 rows 0/4", "b, 1 rows 1/4", "a, 4 rows 2/4", "b, 4 rows 3/4"]
    assert set(trial.turns) == {QUICK, CAREFUL}
    assert best[1].tried == len(offered("a", (9, 9), 1)) + len(offered("b", (1, 9), 1))


def test_what_is_wrong_or_broken_never_wins() -> None:
    trial = Made(wrong=frozenset([(1, 9), (2, 9), (3, 1)]), broken=frozenset([(3, 2)]))
    best = found(trial, rows=[1])[1]
    assert best.choice == (3, 3) and best.wrong == 3
    assert set(trial.checked) >= trial.wrong and not trial.broken & set(trial.checked)


def test_a_little_faster_is_noise() -> None:
    class Near(Made):
        def times(self, rows: int, choices: Sequence[Pair], turns: int) -> list[float | None]:
            return [100.0 - 0.001 * (9 - sum(choice) / 2) for choice in choices]

    best = found(Near(), rows=[1])[1]
    assert best.choice == (9, 9) and best.before == best.after


def test_if_all_candidates_fail_what_there_is_stays() -> None:
    everything = frozenset((a, b) for a in range(20) for b in range(20)) - {(9, 9)}
    best = found(Made(broken=everything), rows=[1])[1]
    assert best.choice == (9, 9)


def test_without_time_nothing_begins_and_what_has_begun_is_not_whole() -> None:
    assert found(Made(), seconds=0.0) == {}

    class Slow(Made):
        def prepare(self, rows: int, choices: Sequence[Pair]) -> None:
            super().prepare(rows, choices)
            search._ends = -math.inf

    trial = Slow()
    search = Search(trial, Steps(("a", "b"), {1: (9, 9), 4: (9, 9)}, offered), 60.0, lambda *_: None)
    search.run()
    best = search.found
    assert list(best) == [1] and not best[1].whole and best[1].choice == (9, 9)


def test_tiles_that_are_wrong_from_the_start_are_an_error() -> None:
    with pytest.raises(ValueError, match="steps of 1 rows wrongly"):
        found(Made(wrong=frozenset([(9, 9)])))


def test_what_was_found_before_a_failure_stays() -> None:
    class Failing(Made):
        def prepare(self, rows: int, choices: Sequence[Pair]) -> None:
            if rows == 4:
                raise RuntimeError("the GPU is gone")
            super().prepare(rows, choices)

    search = Search(Failing(), Steps(("a",), dict.fromkeys((1, 4), (9, 9)), offered), 60.0, lambda *_: None)
    with pytest.raises(RuntimeError, match="the GPU is gone"):
        search.run()
    assert {rows: of.choice for rows, of in search.found.items()} == {1: (1, 9)}


def usual(kib: int, dims: Dims) -> tuple[Gpu, dict[int, Choice]]:
    table = built_in((9, 0))
    assert table is not None
    gpu = Gpu(kib * 1024, kib > 200, table.decode)
    starts = {rows: choice(dims, rows, 2, gpu) for rows in BATCHES}
    return gpu, {rows: start for rows, start in starts.items() if start is not None}


@pytest.mark.parametrize("kib", [99, 227])
@pytest.mark.parametrize("dims", [MOONDREAM_2, GLINT], ids=["moondream-2", "glint"])
def test_the_menu_offers_each_part_what_fits_as_it_stands(dims: Dims, kib: int) -> None:
    gpu, starts = usual(kib, dims)
    assert tuple(starts) == BATCHES
    for rows, start in starts.items():
        for part in PARTS:
            others = menu(part, start, rows, dims, 2, gpu)
            assert len(set(others)) == len(others) <= 140 and start not in others
            assert others or (part == "launch" and not gpu.dependent) or dims is GLINT
            for other in others:
                assert choice(dims, rows, 2, Gpu(gpu.shared, gpu.dependent, {rows: other})) == other
                changed = {name for name in Choice.__slots__ if getattr(other, name) != getattr(start, name)}
                assert changed <= ({"pdl", "ahead"} if part == "launch" else {part})
                assert (other.down.mode == ONE) is (rows == 1) and padded(rows) >= rows


@pytest.mark.parametrize(
    ("dims", "narrow"), [(MOONDREAM_3, False), (MOONDREAM_3, True), (GLINT_3, False)], ids=["3.1", "3.1 cut", "small"]
)
def test_the_menu_of_steps_with_experts_offers_what_fits_as_it_stands(dims: SparseDims, narrow: bool) -> None:
    gpu = Gpu(227 * 1024, True, {}, narrow)
    for rows in (8,) if narrow else (1, 8, 64):
        start = sparse_choice(dims, rows, 2, gpu)
        assert start is not None
        parts = {part: tune_sparse_menu.menu(part, start, rows, dims, 2, gpu) for part in tune_sparse_menu.PARTS}
        for part, others in parts.items():
            assert len(set(others)) == len(others) <= 140 and start not in others
            assert others or dims is GLINT_3 or (rows == 1 and part in ("proj", "close"))
            for other in others:
                changed = {name for name in type(start).__slots__ if getattr(other, name) != getattr(start, name)}
                assert changed <= {"pdl", "ahead"} if part == "launch" else len(changed) == 1
                assert sparse_choice(dims, rows, 2, gpu, Own({rows: other})) == other


def test_what_is_right_for_a_scene_with_experts_is_what_another_account_of_a_step_says() -> None:
    dims = SparseDims(64, 128, 4, 8, 64, experts=7, share=3, expert_inner=32, expert_itemsize=1)
    decoder = sparse_decoder_of(dims, 1, 2, 160, torch.float32, torch.device("cpu"))
    scene = sparse_scene(decoder, 19, 40)
    tables = scene.tables, scene.keys.clone(), scene.values.clone()
    drawn = DrawnSparse(decoder, tables[1], tables[2], scene.x, scene.positions, tables[0])
    for mine, other in zip(scene.right, sparse_step(drawn)[:2], strict=True):
        assert float((mine - other).norm() / other.norm()) < 1e-5
    margins = sparse_margins(decoder, scene)[2]
    assert float(margins.min()) > 0.01, "a router of these rows can hardly decide"


def test_what_is_right_for_a_scene_is_what_another_account_of_a_step_says() -> None:
    dims = Dims(dim=64, inner=128, heads=4, rotary=8, vocab=64)
    decoder = decoder_of(dims, 2, 160, torch.float32, torch.device("cpu"))
    scene = Scene.of(decoder, 19, 40)
    drawn = Drawn(decoder, scene.keys.clone(), scene.values.clone(), scene.x, scene.positions, scene.tables)
    for mine, other in zip(scene.right, step(drawn), strict=True):
        assert float((mine - other).norm() / other.norm()) < 1e-5
    assert len(scene.positions.unique()) > 3 and len(scene.tables.unique()) == scene.tables.numel()
