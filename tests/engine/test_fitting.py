"""Requests against the size of the pool and the context: what fits just so must run, what never fits fails alone."""

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.verdict import judge

from gapless.errors import PromptTooLong, RequestTooLarge

SPEC = HashSpec(end_permille=0)
SIZE = 4


def pages_needed(request) -> int:
    """All positions that are ever written, in pages; a picture's partly filled last page is there twice."""
    block = SPEC.prefix if request.prompt.picture is not None else 0
    most = request.sampling.max_tokens
    written = block + len(request.prompt.ids) + most - 1
    return -(-written // SIZE) + (block % SIZE != 0)


@pytest.mark.parametrize("shown", [None, picture(1)])
@pytest.mark.parametrize("length", range(1, 9))
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_a_request_runs_in_exactly_the_pages_it_needs(length, most, shown):
    request = ask(1, ids=range(10, 10 + length), shown=shown, max_tokens=most)
    pages = pages_needed(request)
    stage, device = sim_stage(SPEC, limits_of(SPEC, 2, pages=1 + pages, page_size=SIZE))
    stage.play([Entry(request)])
    judge(stage.heard[1], expected(SPEC, [Entry(request)])[1])
    device.audit()
    stage, _ = sim_stage(SPEC, limits_of(SPEC, 2, pages=pages, page_size=SIZE))
    stage.play([Entry(request)])
    error = stage.heard[1].finish.error
    assert isinstance(error, RequestTooLarge)
    assert str(pages) in str(error) and str(pages - 1) in str(error)


@pytest.mark.parametrize("shown", [None, picture(1)])
def test_a_request_runs_in_exactly_the_context_it_needs(shown):
    block = SPEC.prefix if shown is not None else 0
    for over in (0, 1):
        ids = range(10, 10 + 20)
        request = ask(1, ids=ids, shown=shown, max_tokens=SPEC.max_context - block - 20 - (shown is None) + over)
        stage, _ = sim_stage(SPEC, limits_of(SPEC, 2))
        stage.play([Entry(request)])
        if over:
            assert isinstance(stage.heard[1].finish.error, PromptTooLong)
            assert str(SPEC.max_context) in str(stage.heard[1].finish.error)
        else:
            judge(stage.heard[1], expected(SPEC, [Entry(request)])[1])
