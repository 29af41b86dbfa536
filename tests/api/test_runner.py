"""The engine's thread: order, one finish each, closing, dying, and nothing left behind."""

import asyncio
import logging
import sys
import threading
import time
from itertools import islice

import pytest
from tests.api.engine_room import PATIENCE, SPEC, BrokenDevice, GatedDevice, run, submit, until, within
from tests.fakes.oracle import answer
from tests.fakes.scene import ask, mix_of_requests, table_of
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge

from gapless.api.channel import AsyncChannel
from gapless.errors import (
    DeviceLost,
    EngineClosed,
    EngineDead,
    InvariantBroken,
    RequestCancelled,
    RequestFailed,
    RequestTimeout,
    StepFailed,
)

TABLE = table_of(SPEC)


def long_requests(count):
    """Plain requests whose answers have at least 20 tokens."""
    asked = (ask(i, ids=(9, 10 + i % 50, 11 + i // 50), max_tokens=60) for i in range(1000))
    return list(islice((r for r in asked if len(answer(SPEC, TABLE, r).tokens) >= 20), count))


@pytest.fixture
def device():
    return GatedDevice()


@pytest.fixture
def runner(device):
    runner = run(device)
    yield runner
    device.gate.set()
    runner.close(drain=False)


def test_many_threads_hear_what_the_oracle_says_in_order_and_to_one_finish(runner, device):
    entries = mix_of_requests(3, 160, cancels=0)

    def one_caller(mine):
        for entry in mine:
            asked = submit(runner, entry.request, whole=entry.request.id % 2 == 0)
            judge(asked.hear(), answer(SPEC, TABLE, entry.request))
            assert asked.channel._queue.empty(), "something came after the finish"

    threads = [threading.Thread(target=one_caller, args=(entries[i::8],)) for i in range(8)]
    failures = []
    threading.excepthook, before = failures.append, threading.excepthook
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        threading.excepthook = before
    assert not failures and not any(t.is_alive() for t in threads)
    assert runner.accounting().counters.finished == len(entries)
    assert runner.accounting().counters.overlapped > 0
    assert runner.accounting().steps["decode"] > 0
    runner.close()
    device.audit()


def test_a_whole_channel_wakes_its_reader_once(runner):
    asked = submit(runner, ask(0, max_tokens=12), whole=True)
    emission = asked.channel.get()
    assert len(emission.tokens) == emission.finish.metrics.output_tokens
    assert asked.channel._queue.empty()


def test_host_masks_give_the_same_answers(device):
    masked = []
    right = device.finalize

    def finalize(step, masks):
        masked.extend(ref for ref, mask in masks.items() if mask is not None)
        right(step, masks)

    device.finalize = finalize
    runner = run(device, constraints="host")
    for entry in mix_of_requests(5, 12, cancels=0):
        judge(submit(runner, entry.request).hear(), answer(SPEC, TABLE, entry.request))
    assert len(masked) >= runner.accounting().counters.tokens > 0, "a token was sampled without a host mask"
    runner.close()


def test_tasks_hear_chunks_and_then_the_finish():
    """S-CON-17: results come from the engine's thread, in order, the finish once and last."""
    device = GatedDevice()
    runner = run(device)

    async def one(entry):
        channel = AsyncChannel(whole=False)
        r = entry.request
        runner.submit(r.prompt, r.program, r.sampling, None, channel)
        tokens = []
        while True:
            emission = await channel.receive()
            tokens += emission.tokens
            if emission.finish is not None:
                assert channel._news.empty()
                return r, tokens, emission.finish

    async def all_of_them():
        return await asyncio.gather(*(one(e) for e in mix_of_requests(8, 300, cancels=0)))

    for request, tokens, finish in asyncio.run(all_of_them(), debug=True):
        right = answer(SPEC, TABLE, request)
        assert [t.id for t in tokens] == [t.id for t in right.tokens] and finish.reason is right.reason
    runner.close()


# -- cancelling ------------------------------------------------------------------------------------------------------


def test_cancelling_a_running_and_a_waiting_request_leaves_the_others(runner, device):
    device.gate.clear()
    asked = [submit(runner, request) for request in long_requests(8)]  # 4 rows: half of them wait
    device.reached.wait(10)
    for victim in (asked[1], asked[6]):
        runner.cancel(victim.id)
    device.gate.set()
    for i, one in enumerate(asked):
        judge(one.hear(), answer(SPEC, TABLE, one.request), (RequestCancelled,) if i in (1, 6) else ())
    assert runner.accounting().counters.failed == 2
    runner.cancel(10_000)
    runner.cancel(asked[0].id)
    assert submit(runner).hear().finish.error is None


def test_a_deadline_that_is_over_ends_one_request(runner):
    late = submit(runner, deadline=runner.now() - 1)
    assert isinstance(late.hear().finish.error, RequestTimeout)
    assert submit(runner).hear().finish.error is None


# -- closing ---------------------------------------------------------------------------------------------------------


def test_close_drains_running_requests_and_refuses_new_ones(device):
    before = sys.getswitchinterval()
    runner = run(device)
    until(lambda: sys.getswitchinterval() == pytest.approx(1e-4), "a short switch interval")
    device.gate.clear()
    asked = [submit(runner, ask(i, max_tokens=30)) for i in range(6)]
    device.reached.wait(10)
    closer = threading.Thread(target=runner.close)
    closer.start()
    until(lambda: runner._closing, "closing")
    with pytest.raises(EngineClosed):
        submit(runner)
    assert closer.is_alive()
    device.gate.set()
    closer.join(20)
    assert not closer.is_alive()
    for one in asked:
        judge(one.hear(), answer(SPEC, TABLE, one.request))
    runner.close()  # a second time is harmless
    assert device.closed and not runner._thread.is_alive()
    assert sys.getswitchinterval() == before


def test_close_without_draining_cancels(device):
    runner = run(device)
    device.gate.clear()
    asked = [submit(runner, request) for request in long_requests(6)]
    device.reached.wait(10)
    threading.Timer(0.05, device.gate.set).start()
    within(lambda: runner.close(drain=False))
    for one in asked:
        error = one.hear().finish.error
        assert isinstance(error, EngineClosed) and "closed while this request ran" in str(error)
    assert not runner._given_up


def test_a_close_with_a_limit_does_not_wait_for_a_device_that_hangs(device):
    device.gate.clear()
    runner = run(device)
    asked = submit(runner)
    assert device.reached.wait(PATIENCE)
    within(lambda: runner.close(drain=False, within=0.05))
    assert runner._thread.is_alive()
    device.gate.set()
    assert asked.hear().finish is not None
    runner.close()


def test_whoever_cancelled_before_the_close_hears_of_that(device):
    runner = run(device)
    device.gate.clear()
    asked = [submit(runner, request) for request in long_requests(6)]
    device.reached.wait(10)
    runner.cancel(asked[0].id)  # running
    runner.cancel(asked[5].id)  # waiting
    threading.Timer(0.05, device.gate.set).start()
    within(lambda: runner.close(drain=False))
    kinds = [type(one.hear().finish.error) for one in asked]
    assert kinds == [RequestCancelled, *[EngineClosed] * 4, RequestCancelled]


def test_the_interpreters_exit_cancels_what_nobody_reads_and_lets_callers_finish(device):
    runner = run(device)
    device.gate.clear()
    one, other = long_requests(2)
    unread, read = submit(runner, one), submit(runner, other, whole=True)
    device.reached.wait(10)
    threading.Timer(0.05, device.gate.set).start()
    within(runner._leave)
    judge(read.hear(), answer(SPEC, TABLE, read.request))
    assert isinstance(unread.hear().finish.error, RequestCancelled)
    assert not runner._thread.is_alive()


def test_abandoning_waits_for_nothing_and_ends_the_thread(device):
    runner = run(device)
    device.gate.clear()
    asked = submit(runner, *long_requests(1))
    device.reached.wait(10)
    runner.abandon()
    assert runner._thread.is_alive()
    device.gate.set()
    assert isinstance(asked.hear().finish.error, EngineClosed)
    until(lambda: not runner._thread.is_alive(), "the thread's end")


# -- dying (I11) -----------------------------------------------------------------------------------------------------


def lost() -> DeviceLost:
    return DeviceLost("the device is gone")


@pytest.mark.parametrize("call", ["launch", "wait", "device"])
@pytest.mark.parametrize("nth", [0, 3])
def test_a_failed_step_ends_its_requests_only(call, nth):
    device = GatedDevice(faults=(Fault(call, nth),))
    runner = run(device)
    first = submit(runner, ask(0, max_tokens=40)).hear()
    assert isinstance(first.finish.error, RequestFailed)
    chain = first.finish.error.__cause__
    assert isinstance(chain, StepFailed)
    following = submit(runner)
    judge(following.hear(), answer(SPEC, TABLE, following.request))
    runner.close()


@pytest.mark.parametrize("error", [lost(), InvariantBroken("I1: a test"), KeyboardInterrupt()], ids=repr)
def test_a_dead_engine_tells_everyone_within_a_second(error, caplog):
    device = BrokenDevice("wait", error)
    device.gate.clear()
    runner = run(device)
    waiting = [submit(runner, ask(i)) for i in range(7)]
    device.reached.wait(10)
    device.gate.set()
    began = time.monotonic()
    errors = [one.hear().finish.error for one in waiting]
    with pytest.raises(EngineDead) as later:
        submit(runner)
    with pytest.raises(EngineDead):
        runner.check()
    assert time.monotonic() - began < 1.0
    for dead in [*errors, later.value]:
        assert isinstance(dead, EngineDead) and dead.__cause__ is error and type(error).__name__ in str(dead)
    within(runner.close)  # the death was told already
    assert not runner._thread.is_alive() and device.closed
    assert "the engine stopped" in caplog.text


def test_an_error_outside_every_step_kills_the_engine():
    runner = run(BrokenDevice("release", RuntimeError("no step's fault")))
    asked = submit(runner)
    asked.hear()
    until(lambda: not runner._thread.is_alive(), "the engine's death")
    with pytest.raises(EngineDead) as dead:
        submit(runner)
    assert isinstance(dead.value.__cause__, RuntimeError)


def test_a_leaked_page_is_found_when_the_engine_falls_idle(device, caplog):
    runner = run(device)
    assert submit(runner).hear().finish.error is None
    until(lambda: bool(runner._mailbox._condition._waiters), "sleep")  # its last audit is over
    runner._engine.ledgers.pages.take(1)
    with caplog.at_level(logging.ERROR, "gapless"), pytest.raises(EngineDead, match="I5"):
        runner.close()
    assert "still holds" in caplog.text


def test_a_device_that_does_not_close_is_told_in_the_log(device, caplog):
    def fail():
        raise OSError("stuck")

    device.close = fail
    within(run(device).close)
    assert "did not close" in caplog.text and "stuck" in caplog.text
