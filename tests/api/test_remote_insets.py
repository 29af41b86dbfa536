"""Several pictures in one prompt, with the engine in a process of its own: all cross through one arena."""

from dataclasses import replace
from random import Random

import pytest
from tests.api.engine_room import submit, until, within
from tests.fakes.oracle import answer
from tests.fakes.scene import mix_of_requests, picture, table_of, with_insets
from tests.fakes.sim_child import SPEC
from tests.fakes.verdict import judge

from gapless.api.arena import ALIGN
from gapless.api.opening import Opening
from gapless.api.remote import RemoteRunner
from gapless.api.spawn import EngineProcess
from gapless.errors import InvalidRequest

TABLE = table_of(SPEC)


@pytest.fixture(scope="module")
def runner():
    """An engine with room for three pictures."""
    process = EngineProcess(3 * ALIGN, "tests.fakes.sim_child")
    runner = RemoteRunner(process, process.open(Opening("plain")))
    yield runner
    within(lambda: runner.close(drain=False))


def test_all_arrive_in_their_places_and_all_room_comes_back(runner):
    requests = [entry.request for entry in mix_of_requests(3, 40, cancels=0, inset=SPEC.prefix - 1)]
    assert sum(len({p.digest for p in request.prompt.pictures}) == 3 for request in requests) > 3
    asked = [submit(runner, request) for request in requests]
    for one, request in zip(asked, requests, strict=True):
        judge(one.hear(), answer(SPEC, TABLE, request))
    until(lambda: runner.pictures_held == 0, "an empty arena")


def test_more_than_the_arena_ever_holds_is_refused(runner):
    (entry,) = mix_of_requests(1, 1)
    for pictures, fits in (([1, 2, 3, 1], True), ([1, 2, 3, 4], False)):
        prompt = replace(entry.request.prompt, picture=None)
        prompt = with_insets(prompt, [picture(seed) for seed in pictures], SPEC.prefix - 1, Random(1))
        request = replace(entry.request, prompt=prompt)
        if fits:
            judge(submit(runner, request).hear(), answer(SPEC, TABLE, request))
        else:
            with pytest.raises(InvalidRequest, match=r"pictures take 16384 bytes.* fewer at once"):
                submit(runner, request)
