"""What the prefix cache does in one engine, scene by scene: what is kept, what goes first, and what nobody may have."""

from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, picture, sim_stage
from tests.fakes.sim_device import Fault, Timing
from tests.fakes.verdict import judge, judge_all

from gapless.config import EngineConfig
from gapless.errors import InvalidRequest, InvariantBroken, NonFiniteLogits, RequestFailed, StepFailed
from gapless.records import Adapter, Inset, Prompt

SPEC = HashSpec(end_permille=0, answer_permille=0)
PREFIX, SIZE = SPEC.prefix, 4
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.1, bookkeeping=0.4)
IDS = tuple(range(10, 33))
"""Behind a picture of 13 positions: 36 in all, 9 whole pages."""
A = Adapter("a", 1, 0x51ED_2701_0000_0000)


def stage_of(depth=2, *, pages=400, rows=9, faults=(), adapters=0, delays=(0.0, 0.0), **settings):
    limits = limits_of(SPEC, depth, pages=pages, rows=rows, page_size=SIZE, adapters=adapters)
    config = EngineConfig(lookahead=8, **settings)
    return sim_stage(SPEC, limits, timing=TIMING, faults=faults, delays=delays, config=config)


def play(stage, device, *entries):
    """Judge all answers; how many positions of each were there already."""
    stage.play(entries)
    right = expected(SPEC, entries)
    judge_all({e.request.id: stage.heard[e.request.id] for e in entries}, right, entries)
    device.audit()
    return [cached(stage, e.request.id) for e in entries]


def cached(stage, number):
    return stage.heard[number].finish.metrics.cached_tokens


def shown(number, ids=IDS, which=1, adapter=None, **sampling):
    return replace(ask(number, ids=ids, shown=picture(which), **sampling), adapter=adapter)


def later(number, gap=60, **how):
    """One request after another, with nothing running in between."""
    return Entry(shown(number, **how), arrives=gap * number)


def test_a_second_question_finds_the_picture_and_as_much_of_the_prompt_as_is_the_same():
    stage, device = stage_of()
    entries = [later(0), later(1), later(2, ids=(*IDS[:12], 60)), later(3, ids=(60, 61)), later(4, which=2)]
    assert play(stage, device, *entries) == [0, 32, 24, PREFIX, 0], "whole pages, and one id is always computed"
    counters = stage.engine.counters
    assert (counters.prefix_hits, counters.prefix_misses, counters.prefix_evictions) == (3, 2, 0)
    assert counters.prefix_copies == 3, "of those whose prompt goes on in the block's last page"
    assert counters.cached_tokens == 32 + 24 + PREFIX
    assert (counters.pictures, counters.shared_pictures) == (5, 3)


@pytest.mark.parametrize("program", ["text", "detect"])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_further_turn_finds_everything_that_was_said(depth, program):
    stage, device = stage_of(depth)
    first = replace(shown(1, max_tokens=30, max_objects=9), program=program)
    play(stage, device, Entry(first))
    said = stage.heard[1].tokens
    ids = (*IDS, *(token.id for token in said), 40, 41)
    prompt = Prompt(ids, (*first.prompt.values, *(token.values for token in said), (), ()), picture(1))
    known = PREFIX + len(IDS) + len(said) - 1
    assert play(stage, device, Entry(replace(shown(2), prompt=prompt))) == [known // SIZE * SIZE]


def test_a_conversation_without_picture_is_kept_too():
    stage, device = stage_of()
    first, second = (Entry(ask(n, ids=IDS[: 11 + 4 * n], max_tokens=3), arrives=60 * n) for n in (0, 1))
    assert play(stage, device, first, second) == [0, 12]
    assert stage.engine.counters.pictures == stage.engine.counters.shared_pictures == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_a_step_will_have_computed_can_be_shared_from_its_launch(depth):
    """Two in one step, and one in the step behind it, which is launched before the first is looked at."""
    stage, device = stage_of(depth, prefills_per_step=2)
    entries = [Entry(shown(n, ids=(*IDS, n))) for n in (40, 41, 42)]
    assert play(stage, device, *entries) == [0, 36, 36]
    assert stage.engine.counters.prefix_copies == 1


def test_the_pages_left_the_longest_ago_go_first_and_before_anybody_is_preempted():
    """Each conversation takes ten pages and is left with those that are whole; there are pages for three."""
    stage, device = stage_of(pages=1 + 33)
    entries = [later(n, which=n, max_tokens=2) for n in range(3)]
    assert play(stage, device, *entries) == [0, 0, 0]
    assert play(stage, device, later(3, which=0, max_tokens=2)) == [32]
    assert play(stage, device, later(4, which=4, max_tokens=2)) == [0]
    counters = stage.engine.counters
    assert counters.prefix_evictions > 0 and counters.preemptions == 0
    assert play(stage, device, later(5, which=0, max_tokens=2)) == [32], "it was used last but one"
    (found,) = play(stage, device, later(6, which=1, max_tokens=2))
    assert found < 32, "it was left before all others"


def test_what_goes_first_of_a_path_is_its_end():
    stage, device = stage_of(pages=1 + 15)
    play(stage, device, later(0, max_tokens=2))
    play(stage, device, Entry(ask(1, ids=IDS[:20], max_tokens=10)))
    assert stage.engine.counters.prefix_evictions == 3, "of ten pages, five others were free and eight wanted"
    assert play(stage, device, later(2, max_tokens=2)) == [24]


def test_the_block_of_a_pinned_picture_is_kept_before_all_else_and_never_in_the_way():
    stage, device = stage_of(pages=1 + 33, adapters=2)
    stage.engine.pin(picture(1).digest, 2)
    assert play(stage, device, later(0, max_tokens=2), later(1, adapter=A, max_tokens=2)) == [0, 0]
    assert play(stage, device, *(later(n, which=n, max_tokens=2) for n in range(2, 9))) == [0] * 7
    found = play(stage, device, later(9, max_tokens=2), later(10, adapter=A, max_tokens=2))
    assert found == [PREFIX, PREFIX], "the picture with every adapter, and what was said behind it like any other"
    stage.engine.pin(picture(1).digest, -1)
    assert play(stage, device, *(later(n, which=n, max_tokens=2) for n in range(11, 18)), later(18)) == [0] * 7 + [
        PREFIX
    ]
    stage.engine.pin(picture(1).digest, -1)
    assert play(stage, device, *(later(n, which=n, max_tokens=2) for n in range(19, 26)), later(26)) == [0] * 8
    stage.engine.pin(picture(1).digest, 1)
    most = Entry(ask(27, ids=IDS, max_tokens=33 * SIZE - len(IDS) - 1))
    assert play(stage, device, most, later(28)) == [0, 0], "whoever runs has all pages there are"
    with pytest.raises(InvariantBroken, match="I5: the picture"):
        stage.engine.pin(picture(2).digest, -1)


@pytest.mark.parametrize("pages", range(12, 30))
def test_in_any_pool_in_which_they_fit_requests_come_to_their_end(pages):
    """Whatever is kept makes way, also for one that needs nearly all there is."""
    stage, device = stage_of(pages=pages)
    most = 4 * (pages - 2) - PREFIX - 5
    entries = [Entry(shown(n, ids=(*IDS[: 2 + n % 3], 40), which=n % 3, max_tokens=6)) for n in range(1, 9)]
    entries.append(Entry(shown(9, ids=IDS[:4], max_tokens=most - 4), arrives=3))
    play(stage, device, *entries)
    assert stage.engine.counters.prefix_hits > 0


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("call", ["launch", "device", "wait"])
def test_what_a_failed_step_was_to_compute_is_found_by_nobody(call, depth):
    """Whoever shares it begins again, at every distance behind it, and whoever comes later computes it anew."""
    for arrives in (0, 1, 2, 3, 9):
        stage, device = stage_of(depth, faults=(Fault(call, 0),), prefills_per_step=1)
        entries = [Entry(shown(1, ids=(*IDS, 1))), Entry(shown(2, ids=(*IDS, 2)), arrives=arrives)]
        entries.append(Entry(shown(3, ids=(*IDS, 3)), arrives=30))
        stage.play(entries)
        right = expected(SPEC, entries)
        assert isinstance(stage.heard[1].finish.error, RequestFailed)
        for number in (2, 3):
            judge(stage.heard[number], right[number])
        assert (cached(stage, 2), cached(stage, 3)) == (0, 36)
        device.audit()


@pytest.mark.parametrize("depth", [2, 3, 4])
def test_what_a_cancelled_request_was_to_compute_in_a_step_that_fails_is_not_kept(depth):
    stage, device = stage_of(depth, faults=(Fault("wait", 0),))
    first = Entry(shown(1), cancelled=1)
    stage.play([first])
    assert stage.heard[1].finish.error is not None and stage.engine.ledgers.prefixes.entries() == []
    assert play(stage, device, Entry(shown(2))) == [0]


def test_after_a_failed_decode_the_prompt_is_kept_and_the_answer_is_not():
    stage, device = stage_of(faults=(Fault("wait", 9),))
    stage.play([Entry(shown(1, max_tokens=30))])
    assert isinstance(stage.heard[1].finish.error, RequestFailed) and len(stage.heard[1].tokens) == 9
    ids = (*IDS, *(token.id for token in stage.heard[1].tokens), 40)
    assert play(stage, device, Entry(shown(2, ids=ids))) == [36]


def test_what_led_to_numbers_that_are_not_finite_is_found_by_nobody():
    stage, device = stage_of()
    right = expected(SPEC, [Entry(shown(1))])[1]
    device.cursed = {right.hidden[2]}
    stage.play([Entry(shown(1))])
    assert isinstance(stage.heard[1].finish.error, NonFiniteLogits)
    assert stage.engine.ledgers.prefixes.entries() == []
    device.cursed = set()
    assert play(stage, device, Entry(shown(2))) == [0]


def test_pages_behind_which_numbers_are_not_finite_are_trusted_no_more():
    """They may be damaged: a later question about the picture computes them again, other pictures are kept."""
    stage, device = stage_of()
    assert play(stage, device, later(0), later(1, which=2)) == [0, 0]
    entry = Entry(shown(2, ids=(*IDS[:12], 60)), arrives=stage.ticks)
    device.cursed = {expected(SPEC, [entry])[2].hidden[2]}
    stage.play([entry])
    assert isinstance(stage.heard[2].finish.error, NonFiniteLogits) and cached(stage, 2) == 24
    assert play(stage, device, later(3), later(4, which=2)) == [0, 32]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_nothing_that_was_computed_behind_a_failed_adapter_is_kept(depth):
    """The step that brings it fails; prompts of later steps with it, with and without picture, begin again."""
    for arrives in range(4):
        stage, device = stage_of(depth, faults=(Fault("device", 0, StepFailed("no")),), adapters=2, prefills_per_step=1)
        entries = [
            Entry(replace(ask(1, max_tokens=9), adapter=A)),
            Entry(replace(ask(2, ids=IDS, max_tokens=9), adapter=A), arrives=arrives),
            Entry(shown(3, adapter=A), arrives=arrives),
            Entry(shown(4), arrives=arrives),
            Entry(shown(5, adapter=A), arrives=80),
            Entry(replace(ask(6, ids=IDS, max_tokens=9), adapter=A), arrives=80),
        ]
        stage.play(entries)
        right = expected(SPEC, entries)
        assert isinstance(stage.heard[1].finish.error, RequestFailed)
        for number in range(2, 7):
            judge(stage.heard[number], right[number])
        assert [cached(stage, n) for n in range(2, 7)] == [0, 0, 0, 32, 20]
        device.audit()


def test_another_version_of_an_adapter_finds_nothing_of_the_one_before():
    stage, device = stage_of(adapters=2)
    again = Adapter("a", 2, A.weights)
    asked = [None, A, again, A, None, again]
    assert play(stage, device, *(later(n, adapter=adapter) for n, adapter in enumerate(asked))) == [0] * 3 + [32] * 3


def test_spaces_in_which_nothing_is_kept_are_forgotten():
    """Prompts of less than a page, each with a newer version of an adapter."""
    stage, device = stage_of(adapters=2)
    entries = [
        Entry(replace(ask(n, ids=(9,), max_tokens=2), adapter=Adapter("a", n, n)), arrives=9 * n) for n in range(9)
    ]
    assert play(stage, device, *entries) == [0] * 9
    assert stage.engine.ledgers.prefixes.entries() == []


def test_a_picture_further_on_is_found_whole_or_not_at_all():
    """Pages that end within it are of no use to a prompt that needs the rest of it computed."""
    filler = (0,) * (PREFIX - 1)

    def prompt(which, *tail):
        ids = (11, *filler, 12, *tail)
        return Prompt(ids, ((),) * len(ids), picture(1), (Inset(1, picture(which)),))

    stage, device = stage_of()
    asked = [prompt(2), prompt(2, 13), prompt(3), prompt(2, 13, 14, 15, 16, 17)]
    entries = [Entry(replace(shown(n, max_tokens=2), prompt=p), arrives=60 * n) for n, p in enumerate(asked)]
    first = PREFIX + 1 + len(filler)
    assert first % SIZE == 2
    assert play(stage, device, *entries) == [0, PREFIX, PREFIX, 28]


def test_without_the_cache_live_requests_share_their_pictures_block_and_nothing_is_kept():
    stage, device = stage_of(prefix_cache=False)
    entries = [Entry(shown(1)), Entry(shown(2)), Entry(shown(3), arrives=60), Entry(ask(4, ids=IDS), arrives=60)]
    assert play(stage, device, *entries, Entry(ask(5, ids=IDS), arrives=61)) == [0, PREFIX, 0, 0, 0]
    assert stage.engine.ledgers.pages.held() == [] and stage.engine.standing().pages_cached == 0


def test_a_prompt_without_ids_is_refused_alone():
    stage, device = stage_of()
    play(stage, device, later(0))
    stage.play([Entry(shown(1, ids=()))])
    assert isinstance(stage.heard[1].finish.error, InvalidRequest)
    assert play(stage, device, later(2)) == [32]


def test_kept_pages_are_counted_apart_and_are_no_leak():
    stage, device = stage_of()
    play(stage, device, later(0, max_tokens=2))
    standing, engine = stage.engine.standing(), stage.engine
    assert (standing.pages_used, standing.pages_cached) == (0, len(engine.ledgers.pages.held())) == (0, 10)
    engine.audit()
    engine.ledgers.pages.share((engine.ledgers.prefixes.kept()[0],))
    with pytest.raises(InvariantBroken, match="I5: the prefix cache"):
        engine.audit()
    engine.ledgers.pages.give_back((engine.ledgers.prefixes.kept()[0],))
    engine.ledgers.pages.take(1)
    with pytest.raises(InvariantBroken, match="I5: the engine is idle but still holds"):
        engine.audit()


def test_a_preempted_request_finds_what_it_had_computed_unless_others_took_it():
    stage, device = stage_of(pages=1 + 26, rows=3)
    entries = [Entry(shown(n, ids=IDS[:8], which=n, max_tokens=40)) for n in (1, 2)]
    play(stage, device, *entries)
    counters = stage.engine.counters
    assert counters.preemptions > 0 and counters.recomputed_tokens > 0
    assert counters.cached_tokens == 0, "what a request finds of itself is no hit of its prompt"


def test_what_a_request_finds_of_itself_is_no_hit_before_its_first_token_either():
    """It waits for its first mask when it must make room."""
    stage, device = stage_of(pages=1 + 22, rows=3, delays=(60.0, 60.0))
    slow = replace(shown(2, ids=IDS[:8], which=2, max_tokens=3), host_masked=True)
    entries = [Entry(shown(1, ids=IDS[:8], max_tokens=40)), Entry(slow, arrives=1)]
    assert play(stage, device, *entries) == [0, 0]
    assert stage.heard[2].finish.metrics.preemptions > 0 and stage.engine.counters.prefix_hits > 0
