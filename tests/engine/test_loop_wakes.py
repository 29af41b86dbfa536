"""While nothing but a row without its mask is in flight the loop sleeps; news must wake it and be acted on at once."""

from dataclasses import replace

from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.verdict import judge

from gapless.errors import RequestCancelled, RequestTimeout

SPEC = HashSpec(end_permille=0)
SLOW = 1000.0


def stage_with_slow_masks():
    """A host-masked request is prefilled and waits for a mask that takes a very long time."""
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2), delays=(SLOW, SLOW))
    stage.mailbox.submit(replace(ask(1, "detect", shown=picture(1)), host_masked=True))
    return stage, device


def run_until_finished(stage, request_id):
    """Tick until a request has its finish; returns the simulated time."""
    while request_id not in stage.heard or stage.heard[request_id].finish is None:
        stage.tick()
        assert stage.ticks < 1000
    return stage.clock.now()


def test_a_new_request_is_served_while_another_waits_for_its_mask():
    stage, _ = stage_with_slow_masks()
    other = ask(2, max_tokens=5)
    stage.mailbox.submit(other, at=20.0)
    assert run_until_finished(stage, 2) < SLOW
    judge(stage.heard[2], expected(SPEC, [Entry(other)])[2])
    assert stage.mailbox.slept >= 1


def test_a_cancelled_request_is_told_at_once_though_its_mask_is_not_ready():
    stage, device = stage_with_slow_masks()
    stage.mailbox.cancel(1, at=20.0)
    assert run_until_finished(stage, 1) == 20.0
    assert isinstance(stage.heard[1].finish.error, RequestCancelled)
    while stage.tick():
        pass
    assert stage.clock.now() < SLOW, "its row waited for a mask nobody wants"
    stage.engine.audit()
    device.audit()


def test_a_deadline_passes_while_the_mask_is_not_ready():
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2), delays=(SLOW, SLOW))
    request = replace(ask(1, "detect", shown=picture(1)), host_masked=True, deadline=30.0)
    stage.mailbox.submit(request)
    assert run_until_finished(stage, 1) == 30.0
    assert isinstance(stage.heard[1].finish.error, RequestTimeout)
    while stage.tick():
        pass
    assert stage.clock.now() < SLOW
    stage.engine.audit()
    device.audit()


def test_the_loop_sleeps_and_does_not_spin_while_masks_are_built():
    stage, _ = stage_with_slow_masks()
    run_until_finished(stage, 1)
    masks = stage.heard[1].finish.metrics.output_tokens
    assert stage.mailbox.slept == masks
    assert stage.ticks <= 5 * masks


def test_a_starved_row_does_not_wait_for_the_mask_of_the_row_that_makes_room():
    """I7 under preemption: the youngest is to go, but its forward waits for a mask that takes very long."""
    old = Entry(ask(1, ids=range(10, 18), max_tokens=40))
    young = Entry(replace(ask(2, "detect", shown=picture(1), max_objects=4), host_masked=True), arrives=2)
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2, pages=14), delays=(SLOW, SLOW))
    stage.mailbox.submit(old.request)
    for _ in range(4):
        stage.tick()
    stage.mailbox.submit(young.request)
    assert run_until_finished(stage, 1) < SLOW
    while stage.tick():
        pass
    right = expected(SPEC, [old, young])
    judge(stage.heard[1], right[1])
    judge(stage.heard[2], right[2])
    assert stage.engine.counters.preemptions > 0, "nobody had to make room"
    stage.engine.audit()
    device.audit()
