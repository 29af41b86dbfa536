"""Troubles that users of such engines reported, as scenes for this one: scheduling, isolation, repetition, ends."""

from dataclasses import replace

import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import Entry, ask, expected, limits_of, mix_of_requests, picture, sim_stage
from tests.fakes.sim_device import Fault, Timing
from tests.fakes.verdict import judge, judge_all, same_tokens

from gapless.config import EngineConfig
from gapless.errors import NonFiniteLogits, RequestCancelled, RequestTooLarge
from gapless.records import FinishReason, Inset, Prompt, StepKind

SPEC = HashSpec()
ENDLESS = HashSpec(end_permille=0, answer_permille=0)
AT_ONCE = HashSpec(end_permille=1000)
TIMING = Timing(forward=1.0, sampling=0.1, copy=0.1, bookkeeping=0.4)
END, COORD, SIZE = 0, 5, 6


def play(entries, spec=SPEC, depth=2, *, delays=(0.0, 0.0), config=None, faults=(), **sizes):
    stage, device = sim_stage(
        spec, limits_of(spec, depth, **sizes), timing=TIMING, delays=delays, config=config, faults=faults
    )
    stage.play(entries)
    device.audit()
    return stage, device


def test_s_con_01_a_request_that_never_fits_fails_alone_with_the_numbers():
    big = ask(1, ids=range(10, 50), max_tokens=30)
    others = [Entry(ask(i, ids=(i, 20), max_tokens=6)) for i in range(10, 16)]
    stage, _ = play([others[0], Entry(big), *others[1:]], pages=9)
    error = stage.heard[1].finish.error
    assert isinstance(error, RequestTooLarge)
    assert "18" in str(error) and "8" in str(error)
    right = expected(SPEC, others)
    for entry in others:
        judge(stage.heard[entry.request.id], right[entry.request.id])


def test_s_con_02_a_request_between_pool_and_context_is_refused_at_once_and_blocks_nobody():
    assert SPEC.max_context > 4 * 11
    between = ask(1, ids=range(10, 40), max_tokens=30)
    stage, _ = sim_stage(SPEC, limits_of(SPEC, 2, pages=12), timing=TIMING)
    stage.mailbox.submit(between)
    small = [ask(i, max_tokens=5, seed=i) for i in range(2, 6)]
    for request in small:
        stage.mailbox.submit(request)
    stage.tick()
    assert isinstance(stage.heard[1].finish.error, RequestTooLarge)
    idle = 0
    while stage.tick():
        launched = stage.engine.counters.prefill_steps + stage.engine.counters.decode_steps
        idle = 0 if launched else idle + 1
        assert idle < 3, "nothing is launched though requests wait"
    right = expected(SPEC, [Entry(r) for r in small])
    for request in small:
        judge(stage.heard[request.id], right[request.id])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("how", ["end", "length", "cancel"])
def test_s_con_05_the_committed_length_is_what_was_produced(how, depth):
    """Then a follow-up extends the answer by one token, on a prompt that holds exactly what was committed."""
    spec = {"end": HashSpec(end_permille=150, answer_permille=0), "length": ENDLESS, "cancel": ENDLESS}[how]
    entry = Entry(ask(1, shown=picture(1), max_tokens=20), cancelled=9 if how == "cancel" else None)
    stage, _ = play([entry], spec, depth)
    heard, right = stage.heard[1], expected(spec, [entry])[1]
    judge(heard, right, (RequestCancelled,))
    assert heard.finish.metrics.output_tokens == len(heard.tokens) > 1
    reason = {"end": FinishReason.STOP, "length": FinishReason.LENGTH, "cancel": None}[how]
    assert heard.finish.reason is reason
    kept = [t for t in heard.tokens if t.id != END]
    ids = (*entry.request.prompt.ids, *(t.id for t in kept))
    follow = [Entry(ask(2, ids=ids, shown=picture(1), max_tokens=1))]
    stage.play(follow)
    judge(stage.heard[2], expected(spec, follow)[2])
    longer = expected(spec, [Entry(replace(entry.request, sampling=replace(entry.request.sampling, max_tokens=40)))])[1]
    assert stage.heard[2].tokens[0].id == longer.tokens[len(kept)].id, "the follow-up does not go on where it ended"
    assert stage.engine.ledgers.pages.held() == sorted(stage.engine.ledgers.prefixes.kept()), (
        "what was left is in the cache alone"
    )
    first = spec.prefix + len(entry.request.prompt.ids)
    known = min(first + len(heard.tokens), first + len(kept)) - 1  # the last one may not have been fed, or must be now
    assert stage.heard[2].finish.metrics.cached_tokens == max(spec.prefix, known // 4 * 4)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_s_con_06_more_prefills_than_slots_with_staggered_ends(depth):
    """One prefill a step, so that many are in flight one behind the other; ends at every length."""
    entries = [
        Entry(ask(i, ids=(10 + i % 50, 3 + i % 4), max_tokens=1 + i % 7, temperature=0.8, seed=i), arrives=i // 3)
        for i in range(1, 40)
    ]
    stage, device = play(entries, SPEC, depth, config=EngineConfig(lookahead=8, prefills_per_step=1))
    judge_all(stage.heard, expected(SPEC, entries), entries)
    assert device.referee.tally.launches > 60


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_s_con_10_a_newcomer_never_depends_on_the_leaver_of_its_row(depth):
    """One usable row, requests with coordinates behind each other: every request reuses the row of the last."""
    programs = ("point", "detect", "segment", "text")
    entries = [
        Entry(ask(i, programs[i % 4], ids=(10 + i,), shown=picture(i % 2), max_tokens=3 + i % 5, max_objects=2))
        for i in range(1, 25)
    ]
    stage, device = play(entries, SPEC, depth, rows=2)
    judge_all(stage.heard, expected(SPEC, entries), entries)
    assert device.referee.tally.most_rows == 1


@pytest.mark.parametrize("program", ["point", "detect", "segment"])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 6])
def test_s_con_11_an_answer_cut_inside_an_object_is_a_defined_beginning(program, most):
    cut = Entry(ask(1, program, shown=picture(1), max_tokens=most))
    other = Entry(ask(2, shown=picture(1), max_tokens=9))
    stage, _ = play([cut, other], ENDLESS)
    judge_all(stage.heard, expected(ENDLESS, [cut, other]), [cut, other])
    ids = [t.id for t in stage.heard[1].tokens]
    box = {"point": [COORD, COORD], "detect": [COORD, COORD, SIZE], "segment": [COORD, COORD, SIZE]}[program]
    whole = box * 2 if program != "segment" else box
    assert ids[: len(whole)] == whole[:most]
    assert stage.heard[1].finish.reason is FinishReason.LENGTH
    assert all(len(t.values) == (2 if t.id == SIZE else 1) for t in stage.heard[1].tokens[:3])


@pytest.mark.parametrize("program", ["point", "detect", "segment", "text", "reason"])
def test_s_con_11_and_s_det_04_an_end_at_once_is_an_empty_answer_that_stopped(program):
    entries = [Entry(ask(i, program, ids=(10 + i,), shown=picture(1))) for i in range(1, 4)]
    stage, _ = play(entries, AT_ONCE)
    for heard in stage.heard.values():
        assert heard.finish.error is None
        if program != "reason":  # reasoning goes on after an end; what it says then is its own matter
            assert [t.id for t in heard.tokens] == [END]
            assert heard.finish.reason is FinishReason.STOP
    judge_all(stage.heard, expected(AT_ONCE, entries), entries)


@pytest.mark.parametrize("pages", range(12, 22))
def test_s_con_12_a_shared_block_that_goes_before_its_sharer_is_launched(pages):
    """A nearly full pool, three pictures' requests in line, one counting on a block whose only holder is ending."""
    first = Entry(ask(1, ids=(11,), shown=picture(1), max_tokens=4))
    queued = [Entry(ask(i, ids=(10 + i,), shown=picture(i % 3), max_tokens=6), arrives=1 + i // 3) for i in range(2, 9)]
    stage, device = play([first, *queued], ENDLESS, 2, pages=pages)
    judge_all(stage.heard, expected(ENDLESS, [first, *queued]), [first, *queued])
    cached = sum(h.finish.metrics.cached_tokens for h in stage.heard.values())
    assert cached == device.referee.tally.cached or device.referee.tally.resumed


def test_s_con_14_one_broken_picture_in_eight_fails_alone():
    """Its features are not finite, so neither are its logits."""
    entries = [Entry(ask(i, ids=(10 + i,), shown=picture(i), max_tokens=6)) for i in range(1, 9)]
    right = expected(ENDLESS, entries)
    stage, device = sim_stage(ENDLESS, limits_of(ENDLESS, 2), timing=TIMING, config=EngineConfig(prefills_per_step=8))
    device.cursed = {right[5].hidden[0]}
    stage.play(entries)
    assert stage.engine.counters.prefill_steps == 1, "they were not in one batch"
    for i, heard in stage.heard.items():
        if i == 5:
            assert isinstance(heard.finish.error, NonFiniteLogits) and heard.tokens == []
        else:
            judge(heard, right[i])


def test_s_con_14_a_batch_whose_encoder_raises_once_begins_again_one_by_one():
    entries = [Entry(ask(i, ids=(10 + i,), shown=picture(i), max_tokens=6)) for i in range(1, 9)]
    stage, device = play(entries, ENDLESS, faults=(Fault("device", 0, ValueError("cannot encode this picture")),))
    right = expected(ENDLESS, entries)
    for i, heard in stage.heard.items():
        judge(heard, right[i])
    assert stage.engine.counters.retried == 4, "four prefills go in one step"
    assert stage.engine.counters.preemptions == 0
    prefills = [len(e.rows) for e in device.events if e.name == "launch" and e.kind is StepKind.PREFILL]
    assert sorted(prefills) == [1, 1, 1, 1, 4, 4]


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("program", ["text", "reason", "point", "detect", "segment"])
def test_s_con_15_rules_that_depend_on_what_was_said_hold_when_pipelined(program, depth):
    """The same rules as host masks and as tables, one request and many: the same answers, flag for flag."""
    requests = [ask(i, program, ids=(10 + i, 4), shown=picture(i % 2), max_tokens=15) for i in range(1, 9)]
    table = [Entry(r) for r in requests]
    host = [Entry(replace(r, host_masked=True)) for r in requests]
    by_table, _ = play(table, SPEC, depth)
    by_host, device = play(host, SPEC, depth, delays=(0.0, 5.0))
    assert device.referee.tally.parked > 0
    for i, heard in by_table.heard.items():
        assert same_tokens(heard.tokens, by_host.heard[i].tokens)
        assert heard.finish.reason is by_host.heard[i].finish.reason
    judge_all(by_host.heard, expected(SPEC, host), host)


def test_s_con_16_twenty_questions_at_concurrency_one_two_and_eight():
    entries = [Entry(ask(i, ids=(10 + i, 7), shown=picture(i % 5), max_tokens=14)) for i in range(1, 21)]
    right = expected(SPEC, entries)
    for concurrency in (1, 2, 8):
        stage, device = play(entries, SPEC, 2, rows=1 + concurrency)
        judge_all(stage.heard, right, entries)
        assert device.referee.tally.most_rows == concurrency


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_s_con_19_nothing_of_an_aborted_request_reaches_its_successor(depth):
    """Abort and resubmit in one tick, over and over, on one row: the successor gets only its own tokens."""
    entries = []
    for i in range(1, 12):
        entries.append(Entry(ask(2 * i, ids=(10 + i,), max_tokens=30), arrives=7 * i, cancelled=7 * i + 4))
        entries.append(Entry(ask(2 * i + 1, ids=(10 + i,), max_tokens=2), arrives=7 * i + 4))
    stage, _ = play(entries, ENDLESS, depth, rows=2)
    judge_all(stage.heard, expected(ENDLESS, entries), entries)
    aborted = [stage.heard[2 * i] for i in range(1, 12)]
    assert sum(isinstance(h.finish.error, RequestCancelled) for h in aborted) == 11
    assert any(h.tokens for h in aborted)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_s_num_02_four_times_the_same_question_is_four_times_the_lone_answer(depth):
    alone = Entry(ask(1, ids=(11, 12), shown=picture(1), max_tokens=20))
    stage, _ = play([alone], SPEC, depth)
    four = [Entry(replace(alone.request, id=i)) for i in range(1, 5)]
    together, _ = play([*four, *mix_of_requests(4, 8, cancels=0.0)[5:]], SPEC, depth)
    for entry in four:
        assert together.heard[entry.request.id].tokens == stage.heard[1].tokens


@pytest.mark.parametrize(("program", "each"), [("point", 2), ("detect", 3)])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_s_det_02_objects_without_end_stop_at_the_limit_asked_for(program, each, depth):
    by_objects = Entry(ask(1, program, shown=picture(1), max_objects=7, max_tokens=100))
    by_tokens = Entry(ask(2, program, shown=picture(1), max_objects=50, max_tokens=10))
    stage, device = play([by_objects, by_tokens], ENDLESS, depth)
    assert len(stage.heard[1].tokens) == 7 * each
    assert len(stage.heard[2].tokens) == 10
    assert all(h.finish.reason is FinishReason.LENGTH for h in stage.heard.values())
    assert device.referee.tally.zombies == 0, "both ends were certain"


def test_s_det_02_an_outline_without_end_stops_at_max_tokens():
    entry = Entry(ask(1, "segment", shown=picture(1), max_tokens=25))
    stage, _ = play([entry], ENDLESS)
    assert len(stage.heard[1].tokens) == 25
    assert stage.heard[1].finish.reason is FinishReason.LENGTH


def test_a_finished_row_says_nothing_more_however_long_it_rides():
    """I6 at depth 4: the end comes while three more steps are in flight."""
    spec = HashSpec(end_permille=150)
    entries = [Entry(ask(i, ids=(10 + i,), max_tokens=30)) for i in range(1, 8)]
    stage, device = play(entries, spec, 4)
    judge_all(stage.heard, expected(spec, entries), entries)
    assert device.referee.tally.zombies >= 3
    assert stage.engine.counters.zombies == device.referee.tally.zombies


@pytest.mark.parametrize("same", ["first", "last"])
def test_s_pfx_01_and_02_pictures_are_told_apart_by_their_whole_digest(same):
    """One question about pictures whose digests share all but a few digits: no block is taken for another's."""
    digests = [f"{'a' * 60}{i:04x}" if same == "first" else f"{i:04x}{'a' * 60}" for i in range(4)]
    shown = [replace(picture(i), digest=digest) for i, digest in enumerate(digests)]
    entries = [Entry(ask(i + 1, ids=(11, 12), shown=shown[i % 4], max_tokens=9), arrives=i) for i in range(8)]
    stage, device = play(entries, ENDLESS, 2)
    judge_all(stage.heard, expected(ENDLESS, entries), entries)
    assert device.referee.tally.shared_blocks == 4, "each picture was shown twice"
    assert len({str([t.id for t in stage.heard[i].tokens]) for i in range(1, 5)}) == 4


@pytest.mark.parametrize("pages", range(14, 40, 2))
def test_s_pfx_05_nothing_of_a_block_that_somebody_holds_is_freed_or_split(pages):
    """Prompts that go on differently behind one picture, in pools of every size, some made to leave in the middle."""
    entries = [
        Entry(ask(i, ids=(11, 12, 10 + i), shown=picture(i % 2), max_tokens=14), arrives=i // 2) for i in range(1, 9)
    ]
    entries[2] = replace(entries[2], cancelled=6)
    stage, device = play(entries, ENDLESS, 2, pages=pages)
    judge_all(stage.heard, expected(ENDLESS, entries), entries)
    assert device.referee.tally.shared_blocks or device.referee.tally.resumed


def test_s_pfx_06_a_further_picture_does_not_lose_the_hit_on_the_first():
    """Turn one shows A, turn two A and B: A's block is shared, B is computed with the prompt."""
    first = ask(1, ids=(11, 12), shown=picture(1), max_tokens=20)
    ids = (11, *([END] * (ENDLESS.prefix - 1)), 12)
    prompt = Prompt(ids, ((),) * len(ids), picture(1), (Inset(1, picture(2)),))
    second = replace(ask(2, shown=picture(1), max_tokens=20), prompt=prompt)
    entries = [Entry(first), Entry(second, arrives=3)]
    stage, device = play(entries, ENDLESS)
    judge_all(stage.heard, expected(ENDLESS, entries), entries)
    assert device.referee.tally.shared_blocks == 1
    assert stage.heard[2].finish.metrics.cached_tokens == ENDLESS.prefix
