"""The figure shows a typical stretch of real steps: what it says and hatches is what the log says."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from PIL import ImageColor
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, limits_of, sim_stage
from tests.fakes.sim_device import Timing

from gapless.errors import InvalidRequest
from gapless.observe.figure import FEEDING, FORWARD, PANEL, PARTS, SAMPLING, WIDTH, draw
from gapless.observe.moments import Moment, find
from gapless.observe.recording import Span, record
from gapless.observe.window import compare, works_of
from gapless.records import StepKind

SPEC = HashSpec(end_permille=0, answer_permille=0)
MS = 1e-3
TIMING = Timing(4.0 * MS, 0.5 * MS, copy=0.25 * MS, bookkeeping=1.0 * MS, prefill=9.0 * MS, launch=0.125 * MS)


def spans_of(depth: int, count: int = 3, tokens: int = 30, timing: Timing = TIMING) -> list[Span]:
    entries = [Entry(ask(i, ids=(10 + i, 20), max_tokens=tokens)) for i in range(1, count + 1)]
    with record() as recording:
        stage, _ = sim_stage(SPEC, limits_of(SPEC, depth), timing=timing)
        stage.play(entries)
    return recording.spans()


def test_windows_have_the_period_and_the_idle_time_of_the_timing():
    blocking, pipelined = compare(spans_of(1), spans_of(2), (1, 2))
    assert blocking.rows == pipelined.rows == 3 and blocking.steps == pipelined.steps == 3
    assert blocking.period == pytest.approx(5.875 * MS) and blocking.idle == pytest.approx(1.375 * MS)
    assert pipelined.period == pytest.approx(4.5 * MS) and pipelined.idle == pytest.approx(0.0, abs=1e-12)
    for window in (blocking, pipelined):
        inside = [w for w in works_of(window.spans) if window.start <= w.start < window.end]
        assert [w.step.kind for w in inside] == [StepKind.DECODE] * 3 and inside[0].step.id == window.first


def test_a_window_is_a_typical_one():
    """The device stands still for 50 ms before one step: the stretches around that one are not shown."""
    blocking = spans_of(1)
    late = works_of(blocking)[12].step.id
    moved = [
        replace(s, start=s.start + 0.05, end=s.end + 0.05) if s.step and s.step.id >= late else s for s in blocking
    ]
    assert compare(moved, spans_of(2), (1, 2))[0].period == pytest.approx(5.875 * MS)


def test_steps_of_more_rows_are_preferred_unless_rows_are_named():
    entries = [Entry(ask(i, ids=(9 + i,), max_tokens=12 * i)) for i in (1, 2, 3)]
    both = []
    for depth in (1, 2):
        with record() as recording:
            stage, _ = sim_stage(SPEC, limits_of(SPEC, depth), timing=TIMING)
            stage.play(entries)
        both.append(recording.spans())
    assert compare(*both, (1, 2))[0].rows == 3
    assert [window.rows for window in compare(*both, (1, 2), rows=1)] == [1, 1]
    with pytest.raises(InvalidRequest, match="with 7 rows; trace"):
        compare(*both, (1, 2), rows=7)


def test_answers_that_are_too_short_are_told_so():
    with pytest.raises(InvalidRequest, match="longer answers"):
        compare(spans_of(1, tokens=3), spans_of(2, tokens=3), (1, 2))


def red(image, top: int, bottom: int) -> int:
    """How many pixels of these lines are of the hatch or of its labels."""
    part = image.convert("RGB").crop((0, top, WIDTH, bottom))
    return sum(n for n, (r, g, b) in part.getcolors(WIDTH * bottom) if r > 180 and g < 200 and b < 200 and r > g + 40)


def widths(image, y: int, colour: str) -> list[int]:
    """How long the stretches of a colour in a line are."""
    wanted = ImageColor.getrgb(colour)
    line = [image.getpixel((x, y)) for x in range(WIDTH)]
    near = [all(abs(a - b) < 8 for a, b in zip(pixel, wanted, strict=True)) for pixel in line]
    return [len(list(run)) for same, run in groupby(near) if same]


def test_both_runs_are_drawn_on_the_scale_of_the_first():
    windows = compare(spans_of(1), spans_of(2), (1, 2))
    image = draw(windows, "decode steps").convert("RGB")
    top = image.height - 92 - 2 * PANEL
    device = 46 + 50 + 34
    scale = (WIDTH - 36 - 170) / (windows[0].lead + 1.02 * 3 * 5.875 * MS)
    for panel in (0, 1):
        y = top + panel * PANEL + device + 5
        assert widths(image, y, FORWARD[0])[0] == pytest.approx(4.0 * MS * scale, abs=3)
        assert max(widths(image, y, SAMPLING)) == pytest.approx(0.5 * MS * scale, abs=3)
        between = y - 5 - 17
        assert len(widths(image, between, PARTS["launch"])) >= 2, "a line from each launch to its forward"
        assert len(widths(image, between, PARTS["commit"])) >= 2, "and from each sampling to its commit"


def test_idle_time_is_hatched_where_there_is_some():
    image = draw(compare(spans_of(1), spans_of(2), (1, 2)), "decode steps")
    first = image.height - 92 - 2 * PANEL
    device = 46 + 50 + 34 + 8
    blocking = red(image, first + device, first + PANEL - 10)
    pipelined = red(image, first + PANEL + device, first + 2 * PANEL - 10)
    assert image.width == WIDTH and 400 < image.height < 900
    width = 3 * 1.375 / (3 * 5.875) * (WIDTH - 170)  # pixels that three gaps take, of three steps
    assert blocking > 0.2 * width * 60 and pipelined == 0


def test_a_picture_is_small_enough_for_a_page(tmp_path):
    path = tmp_path / "bubble.png"
    draw(compare(spans_of(1), spans_of(2), (1, 2)), "decode steps").save(path)
    assert path.stat().st_size < 60_000


def test_moments_are_found_where_they_happen_and_say_who_rides():
    """A short answer between two long ones: its prompt is fed while they decode; at depth 2 it rides once too often."""
    spec = HashSpec(end_permille=60, answer_permille=0)
    entries = [Entry(ask(i, ids=(9 + i,), max_tokens=60), arrives=8 * i) for i in range(1, 9)]
    for depth in (1, 2):
        with record() as recording:
            stage, _ = sim_stage(spec, limits_of(spec, depth), timing=TIMING)
            stage.play(entries)
        for moment in (Moment.PREFILL, Moment.END):
            window = find(recording.spans(), depth, moment, 2)
            inside = [w for w in works_of(window.spans) if window.start <= w.start < window.end]
            assert tuple(w.step.kind for w in inside) == moment.value
            ended = moment is Moment.END
            rows, zombies = [len(w.step.rows) for w in inside], [w.spans[0].zombies for w in inside]
            assert rows == ([2, 1, 3, 3] if not ended else [3, 2, 2, 2] if depth == 1 else [3, 3, 2, 2])
            assert zombies == [0, int(ended and depth == 2), 0, 0]
            colours = draw([window], "a moment").convert("RGB").getcolors(1 << 20)
            feeding = sum(n for n, colour in colours if colour == ImageColor.getrgb(FEEDING))
            assert (feeding > 5000) != ended
    with pytest.raises(InvalidRequest, match="no parked beside 2 rows"):
        find(recording.spans(), 2, Moment.PARKED, 2)
