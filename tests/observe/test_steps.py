"""Single steps that somebody watches: what each took, and that nothing is kept of those that nobody asked for."""

from tests.fakes.still_runtime import still_session

from gapless.bench.wave import advance, questions
from gapless.observe.bubble import Bubble
from gapless.observe.steps import KEPT, StepTimes, Watched
from gapless.records import Arrival, DeviceSpan, Lane, RowRef, Step, StepKind

STEP = Step(7, StepKind.DECODE, (RowRef(1, 0), RowRef(2, 0)), 0)


def arrival(*spans, paused=0.0):
    return Arrival(7, (), 1.0, 3.0, paused, spans=spans)


def test_what_a_step_took():
    forward, sampling = DeviceSpan(Lane.COMPUTE, "forward", 1.0, 2.5), DeviceSpan(Lane.COMPUTE, "sampling", 2.5, 3.0)
    copy = DeviceSpan(Lane.COPY, "copy", 3.0, 3.1)
    told = StepTimes.of(STEP, arrival(forward, sampling, copy), 0.25)
    assert told == StepTimes(7, StepKind.DECODE, 2, 1.0, 1.5, 0.5, 0.25)
    unmarked = StepTimes.of(STEP, arrival(paused=0.5), 0.0)
    assert (unmarked.forward, unmarked.sampling) == (1.5, None)


def test_only_so_many_are_kept_and_each_is_told_once():
    watched = Watched()
    watched.left = KEPT + 8
    for _ in range(KEPT + 8):
        watched.note(STEP, arrival(), 0.0)
    assert watched.left == 0 and len(watched.take()) == KEPT and watched.take() == ()


def test_the_bubble_says_what_each_step_added():
    bubble = Bubble()
    added = [bubble.note(StepKind.DECODE, Arrival(1, (), start, start + 1.0)) for start in (0.0, 1.5, 2.5)]
    assert added == [0.0, 0.5, 0.0] and sum(added) == bubble.idle


def test_a_gpu_marks_where_the_forward_ends_only_while_somebody_watches():
    session = still_session(2)
    for i in range(2):
        session.submit(questions(1, i + 1, None, 300))
    advance(session, 2, 4)
    engine, watch = session.engine, session.watch.device._watch
    session.watch.device.runtime.calls.clear()
    assert engine.watch(0) == ()
    advance(session, 2, 6)
    assert engine.watch(10) == (), "nobody watched"
    advance(session, 2, 20)
    spare = len(watch._spare)
    steps = engine.watch(0)
    assert len(steps) == 10 and all(step.rows == 2 and step.forward > 0 for step in steps)
    assert sum(step.sampling is not None for step in steps) >= 8  # those in flight when it began have no mark
    advance(session, 2, 20)
    assert engine.watch(0) == () and len(watch._spare) == spare, "marks are used again"
    session.stop()
