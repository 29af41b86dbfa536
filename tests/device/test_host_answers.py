"""The host device answers as the hash language says: every program, pipelined, poisoned, jittered and late."""

from __future__ import annotations

import pytest
import torch
from tests.device.rig import SPEC, TABLE, Rig, Seq, expected, host_device, picture
from tests.fakes.hash_model import HashModel

from gapless.config import HostDeviceConfig
from gapless.constrain.table import PROGRAMS
from gapless.records import Flags, PageGrant, RowRef, StepKind

VALUED = ((5, 5, 6, 9, 5), ((0.25,), (0.5,), (0.125, 0.75), (), ()))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_all_programs_together_answer_as_alone(depth, temperature):
    """18 rows (more than one group of 16), long and short prompts, with and without pictures, values in prompts."""
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


class RoundingModel(HashModel):
    """A float32 model in which the number of rows in a product, and so its rounding, would show."""

    def __init__(self) -> None:
        super().__init__(SPEC)
        random = torch.Generator().manual_seed(1)
        self.words = torch.randn(SPEC.rules.vocab, 512, generator=random)
        self.inner = torch.randn(512, 512, generator=random) / 20
        self.seen: set[int] = set()

    def logits(self, hidden):
        self.seen.add(len(hidden))
        bits = (hidden[:, :1] >> torch.arange(0, 60, 1)) & 1
        wide = bits.float() @ self.words[:60]
        return torch.tanh(wide @ self.inner) @ self.words.T / 20


def test_float32_results_do_not_depend_on_company_or_on_prefill():
    model = RoundingModel()
    device = host_device(model, HostDeviceConfig(threads=1))
    rig = Rig(device)
    ask = {"program": "text", "ids": (1, 8, 9), "max_tokens": 6, "temperature": 0.7, "top_logprobs": 20, "seed": 5}
    alone = rig.seq(**ask)
    rig.once(rig.prefill_step([alone]), [alone])
    rig.play([alone], 1)
    crowd = [rig.seq(ids=(1, 10 + i), max_tokens=20) for i in range(8)]
    rig.once(rig.prefill_step(crowd[:4]), crowd[:4])
    rig.once(rig.prefill_step(crowd[4:]), crowd[4:])
    among = rig.seq(**ask)
    rig.once(rig.prefill_step([among]), [among])
    rig.play([*crowd, among], 2)
    assert among.tokens == alone.tokens  # logprobs too, to the last bit
    resumed = rig.seq(**ask)
    resumed.tokens = list(alone.tokens[:3])
    for token in resumed.tokens:
        resumed.walker.advance(token.id)
    rig.once(rig.prefill_step([resumed]), [resumed])
    rig.play([resumed], 1)
    assert resumed.tokens == alone.tokens
    assert model.seen == {16}
    device.close()


def test_tables_and_limits_are_what_the_device_was_built_with():
    device = host_device(HashModel(SPEC), depth=3)
    limits = device.limits
    assert (limits.rows, limits.pages, limits.page_size, limits.depth) == (21, 600, 4, 3)
    assert (limits.prefix, limits.max_context, limits.vocab) == (SPEC.prefix, SPEC.max_context, TABLE.masks.shape[1])
    device.close()
