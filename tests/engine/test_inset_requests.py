"""Requests with pictures inside their prompts: what is refused, what they count as, and failed steps."""

from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, mix_of_requests, picture, sim_stage
from tests.fakes.sim_device import Fault, Timing
from tests.fakes.verdict import judge, judge_all

from gapless.errors import InvalidRequest, PromptTooLong, RequestTooLarge
from gapless.records import Inset, Prompt

SPEC = HashSpec(end_permille=0)
LENGTH = SPEC.prefix - 1


def asked(places, count, shown=None, number=1, values=None, **sampling):
    """A request with `count` ids and insets at these of them."""
    request = ask(number, ids=range(10, 10 + count - (shown is None)), shown=shown, **sampling)
    prompt = request.prompt
    insets = tuple(Inset(at, picture(20 + at)) for at in places)
    return replace(request, prompt=Prompt(prompt.ids, values or prompt.values, shown, insets))


def finish_of(request, **sizes):
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2, **sizes))
    heard = stage.play([Entry(request)])
    device.audit()
    if heard[1].finish.error is None:
        judge(heard[1], expected(SPEC, [Entry(request)])[1])
    return heard[1].finish


@pytest.mark.parametrize(
    ("places", "count", "shown"),
    [
        ((0,), 20, None),  # where BOS is
        ((-1,), 20, picture(1)),
        ((3,), 3 + LENGTH, None),  # nothing behind it
        ((30,), 20, None),
        ((1, LENGTH), 40, None),  # overlapping
        ((20, 1), 40, None),  # in the wrong order
    ],
)
def test_insets_that_do_not_lie_in_the_prompt_are_refused(places, count, shown):
    error = finish_of(asked(places, count, shown)).error
    assert type(error) is InvalidRequest and error.param == "insets"
    assert f"takes {LENGTH} of the prompt's {count} ids" in str(error)


def test_filler_with_a_value_is_refused():
    values = [()] * 30
    values[5] = (0.5,)
    assert type(finish_of(asked((3,), 30, values=tuple(values))).error) is InvalidRequest
    values[5], values[3 + LENGTH] = (), (0.5,)
    assert finish_of(asked((3,), 30, values=tuple(values))).error is None


@pytest.mark.parametrize(("places", "shown"), [((1,), None), ((0, LENGTH), picture(1)), ((4, 8 + LENGTH), picture(1))])
def test_they_count_as_their_positions_in_context_pages_and_usage(places, shown):
    count = places[-1] + LENGTH + 3
    block = SPEC.prefix if shown is not None else 0
    most = SPEC.max_context - block - count
    finish = finish_of(asked(places, count, shown, max_tokens=most))
    assert finish.error is None and finish.metrics.input_tokens == block + count
    error = finish_of(asked(places, count, shown, max_tokens=most + 1)).error
    assert type(error) is PromptTooLong and f"take {block + count} tokens" in str(error)
    pages = -(-(block + count + 4) // 4) + (block % 4 != 0)
    assert finish_of(asked(places, count, shown, max_tokens=5), pages=1 + pages).error is None
    assert type(finish_of(asked(places, count, shown, max_tokens=5), pages=pages).error) is RequestTooLarge


@pytest.mark.parametrize("depth", [1, 3])
def test_a_failed_prefill_of_several_is_done_again_one_by_one(depth):
    entries = [Entry(asked((1 + n,), 20 + n, number=n + 1, max_tokens=9), arrives=0) for n in range(4)]
    fault = Fault("device", 0)
    stage, device = sim_stage(SPEC, limits_of(SPEC, depth), faults=(fault,))
    judge_all(stage.play(entries), expected(SPEC, entries), entries)
    device.audit()
    assert len(fault.rows) > 1 and stage.engine.counters.retried == len(fault.rows)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_many_that_are_cancelled_leave_nothing_behind(depth):
    entries = mix_of_requests(5, 24, cancels=0.7, inset=LENGTH, host=0.2)
    stage, device = sim_stage(SPEC, limits_of(SPEC, depth, pages=60), timing=Timing(copy=0.5), delays=(0.0, 3.0))
    heard = stage.play(entries)
    judge_all(heard, expected(SPEC, entries), entries)
    device.audit()
    assert sum(one.finish.error is not None for one in heard.values()) > 5
