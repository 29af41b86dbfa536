"""Adapters in slots: every device says what the oracle says, at every depth, with fewer slots than adapters.

The GPU's own code runs here without a GPU, graphs and all (S-LOR-09).
"""

import random
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.inline_stage import inline_stage
from tests.fakes.scene import Entry, ask, expected, limits_of, mix_of_requests, picture, sim_stage
from tests.fakes.sim_device import Fault
from tests.fakes.verdict import judge, judge_all

from gapless.errors import InvalidRequest, RequestFailed, StepFailed
from gapless.records import Adapter

SPEC = HashSpec()
ADAPTERS = [Adapter(f"a{i}", i, 0x51ED_2701_0000_0000 + 7919 * i) for i in range(1, 6)]
AMPLE, TINY = 400, 33


def scene(seed, count=18, host=0.0, adapters=ADAPTERS):
    """A third without adapter, the rest with one of them."""
    rng = random.Random(seed)
    entries = mix_of_requests(seed, count, host=host, spread=12, inset=SPEC.prefix - 1)
    chosen = [rng.choice([None, None, *adapters]) for _ in entries]
    return [replace(e, request=replace(e.request, adapter=a)) for e, a in zip(entries, chosen, strict=True)]


@contextmanager
def stage_on(device, depth, slots, pages=AMPLE, seed=0, faults=()):
    with ExitStack() as stack:
        if device == "sim":
            limits = limits_of(SPEC, depth, pages=pages, adapters=slots)
            yield sim_stage(SPEC, limits, faults=faults, delays=(0.0, 3.0))
        else:
            make = host_stage if device == "host" else inline_stage
            made = make(HashModel(SPEC), depth, pages=pages, seed=seed, delays=(0.0, 0.001), adapters=slots)
            yield stack.enter_context(made)


EVERY = [(device, depth, slots) for device in ("sim", "host", "cuda") for depth in (1, 2, 3, 4) for slots in (1, 2)]
QUICK = [case for case in EVERY if case[0] == "sim" or (case[1] + case[2]) % 4 == 0]


@pytest.mark.parametrize(
    ("device", "depth", "slots"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in EVERY],
)
def test_five_adapters_in_few_slots_are_exact(device, depth, slots):
    """S-LOR-06, S-LOR-08: one or two slots, five adapters in rotation and rows without; cancellations among them."""
    entries = scene(depth + 10 * slots, host=0.2)
    with stage_on(device, depth, slots, seed=depth) as (stage, refereed):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        refereed.audit()
        assert refereed.referee.tally.adapters >= 5
        assert stage.engine.ledgers.adapters.resident == slots and not stage.engine.ledgers.adapters.held()
        if depth > 1:
            assert refereed.referee.tally.zombies > 0


@pytest.mark.parametrize("device", ["sim", "cuda"])
@pytest.mark.parametrize("depth", [1, 3])
def test_preempted_rows_continue_with_their_adapter(device, depth):
    entries = scene(5, host=0.2)
    long = {"max_tokens": 35, "max_objects": 10}
    entries = [replace(e, request=replace(e.request, sampling=replace(e.request.sampling, **long))) for e in entries]
    with stage_on(device, depth, 2, pages=TINY) as (stage, refereed):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        refereed.audit()
        assert refereed.referee.tally.resumed > 0


def shown(number, adapter, **sampling):
    return replace(ask(number, shown=picture(1), **sampling), adapter=adapter)


def test_the_same_picture_is_shared_only_under_the_same_adapter():
    """S-LOR-06: A, then B, then none, about one picture: three blocks, and a fourth request shares A's."""
    asked = [ADAPTERS[0], ADAPTERS[1], None, ADAPTERS[0]]
    entries = [Entry(shown(i, a, max_tokens=30)) for i, a in enumerate(asked, 1)]
    with stage_on("sim", 2, 2) as (stage, refereed):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        assert refereed.referee.tally.shared_blocks == 1
    assert len({e.tokens for e in expected(SPEC, entries[:3]).values()}) == 3, "adapters that change nothing"


def test_a_new_version_serves_no_old_block_and_running_rows_keep_theirs():
    """S-LOR-01: a second version under the same name, while the first runs and after it."""
    old, new = ADAPTERS[0], Adapter(ADAPTERS[0].name, 99, 0x77AA_0000_1234_5678)
    entries = [Entry(shown(1, old, max_tokens=35)), Entry(shown(2, new), arrives=6), Entry(shown(3, new), arrives=90)]
    with stage_on("sim", 2, 2) as (stage, refereed):
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
        assert refereed.referee.tally.adapters == 2
        cached = [stage.heard[number].finish.metrics.cached_tokens for number in (1, 2, 3)]
        assert cached == [0, 0, SPEC.prefix], "the new one finds what it computed itself, and nothing else"


def test_without_slots_a_request_with_an_adapter_is_refused_alone():
    entries = [Entry(replace(ask(1), adapter=ADAPTERS[0])), Entry(ask(2))]
    with stage_on("sim", 2, 0) as (stage, refereed):
        heard = stage.play(entries)
        assert isinstance(heard[1].finish.error, InvalidRequest)
        assert "the adapter a1 has no slot to go to; load the model with max_adapters" in str(heard[1].finish.error)
        judge(heard[2], expected(SPEC, entries)[2])
        refereed.audit()


def test_who_must_be_prefilled_alone_is_so_behind_one_that_waits_for_a_slot_too():
    with stage_on("sim", 2, 1) as (stage, _):
        engine = stage.engine
        engine.ledgers.adapters.lease(ADAPTERS[1])
        for request in (replace(ask(1), adapter=ADAPTERS[0]), ask(2), ask(3), ask(4)):
            stage.mailbox.submit(request)
        engine.book.take_mail(stage.mailbox.take(8), 0.0)
        engine.admission.waiting[2].history.alone = True
        steps = [[seq.history.request.id for seq, _ in engine.feeder.next(0.0, lets_in=True)] for _ in range(3)]
    assert steps == [[2], [3], [4]]


def test_only_requests_without_adapter_pass_one_that_waits_for_a_slot():
    """One slot, held: the second adapter waits, a request for the first one may not pass it, one for none may."""
    a, b = ADAPTERS[:2]
    entries = [Entry(replace(ask(1, max_tokens=30), adapter=a))]
    entries += [Entry(replace(ask(n, max_tokens=4), adapter=x), arrives=3) for n, x in ((2, b), (3, a), (4, None))]
    order = []
    with stage_on("sim", 2, 1) as (stage, refereed):
        launch = refereed.launch

        def noted(step):
            order.extend(p.adapter.name if p.adapter else p.start.adapter for p in step.prefills)
            launch(step)

        refereed.launch = noted
        judge_all(stage.play(entries), expected(SPEC, entries), entries)
    assert order == ["a1", 0, "a2", "a1"]


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_step_that_should_bring_an_adapter_and_fails_leaves_nobody_with_it(depth):
    """S-LOR-04 too: whoever waited for the adapter begins again, brings it again, and all leases come back."""
    a, b = ADAPTERS[:2]
    entries = [Entry(replace(ask(n, max_tokens=9), adapter=x)) for n, x in ((1, a), (2, a), (3, b), (4, None))]
    entries += [Entry(replace(ask(n, max_tokens=9), adapter=a), arrives=1) for n in (5, 6)]
    faults = (Fault("device", 0, StepFailed("an injected fault")), Fault("device", 2, StepFailed("and another")))
    with stage_on("sim", depth, 2, faults=faults) as (stage, refereed):
        heard, right = stage.play(entries), expected(SPEC, entries)
        for entry in entries:
            judge(heard[entry.request.id], right[entry.request.id], (RequestFailed,))
        assert sum(h.finish.error is None for h in heard.values()) >= 4
        refereed.audit()


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_a_block_computed_with_an_adapter_that_never_came_is_shared_with_nobody(depth):
    """The step that should bring the adapter fails; a row of a later step has computed its picture's block with what
    was in the slot, and is not back yet when another request on the same picture and adapter is admitted."""
    a = ADAPTERS[0]
    for arrives in range(1, 8):
        entries = [Entry(replace(ask(1, max_tokens=9), adapter=a)), Entry(shown(2, a, max_tokens=9), arrives=1)]
        entries += [Entry(shown(3, a, max_tokens=9), arrives=arrives)]
        faults = (Fault("device", 0, StepFailed("an injected fault")),)
        with stage_on("sim", depth, 2, faults=faults) as (stage, refereed):
            heard, right = stage.play(entries), expected(SPEC, entries)
            assert isinstance(heard[1].finish.error, RequestFailed)
            for number in (2, 3):
                judge(heard[number], right[number])
            refereed.audit()
