"""The host device answers as the hash language says: every program, pipelined, poisoned, jittered and late."""

from __future__ import annotations

import numpy as np
import pytest
from tests.device.rig import REHEARSAL, SPEC, TABLE, Rig, Seq, expected, host_device, picture
from tests.fakes.hash_model import HashModel
from tests.fakes.micro import micro_config, micro_tensors

from gapless.config import EngineConfig
from gapless.constrain.table import PROGRAMS, Rules, build_table
from gapless.device.host import HostDevice
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.records import Flags, PageGrant, Picture, RowRef, StepKind, Token

VALUED = ((5, 5, 6, 9, 5), ((0.25,), (0.5,), (0.125, 0.75), (), ()))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_all_programs_together_answer_as_alone(depth, temperature):
    """18 rows, long and short prompts, with and without pictures, values in prompts."""
    device = host_device(HashModel(SPEC), depth=depth, pages=900)
    rig = Rig(device)
    seqs = []
    for i in range(18):
        ids, values = VALUED if i % 3 == 0 else (tuple(range(7, 8 + 2 * i)), None)
        seqs.append(
            rig.seq(
                PROGRAMS[i % 5],
                ids,
                values,
                picture(i) if i % 2 else None,
                max_tokens=3 + i,
                max_objects=1 + i % 3,
                temperature=temperature if i % 4 else 0.0,
                top_p=(1.0, 0.8)[i % 2],
                seed=1000 + i,
                top_logprobs=(-1, 0, 3)[i % 3],
            )
        )
    for first in range(0, 18, 4):
        rig.once(rig.prefill_step(seqs[first : first + 4]), seqs[first : first + 4])
    muted = rig.play(seqs, depth)
    for seq in seqs:
        assert seq.tokens == expected(seq), seq.program
    assert {Flags.STOP, Flags.LENGTH} <= {s.flags for s in seqs}
    assert (muted > 0) == (depth > 1)
    device.close()


def test_a_picture_is_shared_within_a_step_and_after_it():
    model = HashModel(SPEC)
    device = host_device(model)
    rig = Rig(device)
    first, second, third = (rig.seq("detect", (1, 20 + i), picture=picture(5)) for i in range(3))
    lead = rig.prefill(first)
    follow = rig.prefill(second, shared=first.prefix_pages)
    assert lead.tail is not None
    assert follow.picture is None
    rig.once(rig.step(StepKind.PREFILL, [first, second], prefills=(lead, follow)), [first, second])
    late = rig.prefill(third, shared=first.prefix_pages)
    rig.once(rig.step(StepKind.PREFILL, [third], prefills=(late,)), [third])
    rig.play([first, second, third], 2)
    for seq in (first, second, third):
        assert seq.tokens == expected(seq)
    device.close()


@pytest.mark.parametrize("program", ["reason", "segment", "detect"])
def test_a_row_resumes_exactly_anywhere(program):
    """Preemption: after every number of committed tokens, a new row goes on as if nothing had happened (I5)."""
    device = host_device(HashModel(SPEC))
    rig = Rig(device)

    def ask(image: int) -> Seq:
        return rig.seq(program, (1, 4), picture=picture(image), temperature=2.0, seed=4, ref=RowRef(1, image + 1))

    answers = ((i, expected(ask(i))) for i in range(300))
    image, whole = next((i, a) for i, a in answers if len(a) > 6 and any(t.values for t in a[1:-1]))
    for kept in range(len(whole)):
        seq = ask(image)
        seq.ref = RowRef(1 + kept % 3, 100 + kept)
        for token in whole[:kept]:
            seq.walker.advance(token.id)
        seq.tokens = list(whole[:kept])
        rig.once(rig.prefill_step([seq]), [seq])
        rig.play([seq], 2)
        assert seq.tokens == whole
        device.release(seq.ref)
    device.close()


def test_pages_are_granted_as_a_sequence_grows_and_freed_ones_are_poisoned():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    first = rig.seq("text", tuple(range(8, 14)), max_tokens=30, lasts=8)
    prefill = rig.prefill(first, room=2)
    rig.once(rig.step(StepKind.PREFILL, [first], prefills=(prefill,)), [first])
    position = len(first.ids)
    while not first.ended:
        grants = ()
        if position == len(first.pages) * 4:
            grants = (PageGrant(first.ref.row, len(first.pages), rig.take(1)),)
            first.pages.extend(grants[0].pages)
        rig.once(rig.decode_step([first], grants=grants), [first])
        position += 1
    assert first.tokens == expected(first)

    reader, bystander = (rig.seq(ids=(1, 30, 31, 32, 10 + i), max_tokens=30, lasts=3) for i in range(2))
    rig.once(rig.prefill_step([reader, bystander]), [reader, bystander])
    records = rig.once(rig.decode_step([reader, bystander], freed=tuple(reader.pages[:1])), [reader, bystander])
    assert records[0].flags == Flags.NONFINITE, "a stale read of a freed page went unnoticed"
    assert bystander.tokens == expected(bystander)[:2]
    device.close()


def test_a_row_begins_a_new_life_with_nothing_of_the_old():
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    old = rig.seq("detect", (1, 8), ref=RowRef(2, 1), temperature=5.0, seed=3, top_logprobs=5)
    rig.once(rig.prefill_step([old]), [old])
    device.release(old.ref)
    new = rig.seq("text", (1, 9, 10), ref=RowRef(2, 2), max_tokens=8)
    rig.once(rig.prefill_step([new]), [new])
    device.release(old.ref)  # late: it must not touch the new life
    rig.play([new], 2)
    assert new.tokens == expected(new)
    device.close()


@pytest.mark.parametrize("constraint", ["table", "host"])
def test_host_masks_give_the_answers_of_the_table(constraint):
    """In place (finalize behind the launch) and parked behind another forward, alternately."""
    device = host_device(HashModel(SPEC))
    rig = Rig(device)
    host = constraint == "host"
    seq = rig.seq("reason", (1, 7), host_masked=host, max_tokens=9, temperature=1.5, seed=8, lasts=5)
    other = rig.seq("text", (1, 3), max_tokens=40, temperature=9.0, seed=1)
    rig.once(rig.prefill_step([other]), [other])
    step = rig.launch(rig.prefill_step([seq]), [seq])
    turns = 0
    while True:
        if host and turns % 2:
            device.park(step, {seq.ref: 3})
            if not other.ended:
                rig.once(rig.decode_step([other], slot=1), [other])
            rig.settle(step, [])  # all its rows are parked; it is waited for all the same
            step = rig.parked_step(seq, 3)
        if host:
            device.finalize(step, {seq.ref: seq.walker.mask()})
        rig.settle(step, [seq])
        turns += 1
        if seq.ended:
            break
        step = rig.launch(rig.decode_step([seq]), [seq])
    assert turns > 4
    assert seq.tokens == expected(seq)
    device.close()


def test_float32_results_do_not_depend_on_company_or_on_prefill():
    """The micro Moondream: ids, values and logprobs are the same bits alone, in a crowd and after preemption."""
    config = micro_config()
    model = Moondream(read_config(config), micro_tensors(config))
    rules = Rules(vocab=model.vocab, end=0, answer=3, coord=5, size=6, mask_answer=True)
    table = build_table(rules)
    device = HostDevice(model, table, EngineConfig(pages=400), REHEARSAL)
    rig = Rig(device, table)
    side = config["vision"]["crop_size"]
    crops = np.random.default_rng(1).integers(0, 256, (2, side, side, 3)).astype(np.uint8)
    shown = Picture("a" * 64, crops, (1, 1), side, side)

    def begin(seed: int, kept: tuple[Token, ...] = ()) -> Seq:
        ask = {"max_tokens": 9, "temperature": 2.0, "top_logprobs": 20, "seed": seed}
        seq = rig.seq("detect", (1, 8, 9), picture=shown, ref=RowRef(10 + len(kept), seed), **ask)
        for token in kept:
            seq.walker.advance(token.id)
        seq.tokens = list(kept)
        return seq

    for seed in range(30):
        alone = begin(seed)
        rig.once(rig.prefill_step([alone]), [alone])
        rig.play([alone], 1)
        if len(alone.tokens) > 6:
            break
    assert {len(t.values) for t in alone.tokens} >= {1, 2}
    crowd = [rig.seq("point", ids=(1, 10 + i), max_tokens=30) for i in range(8)]
    among, resumed = begin(seed), begin(seed, tuple(alone.tokens[:5]))
    among.ref = RowRef(11, 0)
    for some in (crowd[:4], [*crowd[4:], among], [resumed]):
        rig.once(rig.prefill_step(some), some)
    rig.play([*crowd, among, resumed], 2)
    assert among.tokens == alone.tokens
    assert resumed.tokens == alone.tokens
    device.close()


def test_tables_and_limits_are_what_the_device_was_built_with():
    device = host_device(HashModel(SPEC), depth=3)
    limits = device.limits
    assert (limits.rows, limits.pages, limits.page_size, limits.depth) == (21, 600, 4, 3)
    assert (limits.prefix, limits.max_context, limits.vocab) == (SPEC.prefix, SPEC.max_context, TABLE.masks.shape[1])
    device.close()
