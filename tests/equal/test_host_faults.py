"""Faults inside the CPU device, through the whole engine: they stay in their step or row, the engine goes on (I11)."""

from dataclasses import dataclass, field

import pytest
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.host_stage import host_stage
from tests.fakes.scene import Entry, ask, expected, mix_of_requests, picture
from tests.fakes.verdict import judge

from gapless.errors import DeviceLost, NonFiniteLogits, RequestFailed

SPEC = HashSpec(end_permille=15)


@dataclass
class FragileModel(HashModel):
    """Fails at the picture `bad` and at forward number `at` (from 0) with `error`."""

    bad: int | None = None
    at: int | None = None
    error: BaseException = field(default_factory=lambda: ValueError("a bug in a kernel"))
    forwards: int = 0

    def encode_picture(self, crops, tiling):
        if self.bad is not None and torch.equal(crops, torch.from_numpy(picture(self.bad).crops)):
            raise ValueError("cannot encode this picture")
        return super().encode_picture(crops, tiling)

    def forward(self, x, positions, tables, cache):
        self.forwards += 1
        if self.at == self.forwards - 1:
            raise self.error
        return super().forward(x, positions, tables, cache)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_picture_that_cannot_be_encoded_fails_its_step(depth):
    entries = [Entry(ask(i, ids=(10 + i,), shown=picture(i), max_tokens=9), arrives=3 * i) for i in range(1, 8)]
    twin = Entry(ask(9, ids=(33,), shown=picture(4), max_tokens=9), arrives=13)
    entries.append(twin)
    right = expected(SPEC, entries)
    with host_stage(FragileModel(SPEC, bad=4), depth) as (stage, device):
        stage.play(entries)
        device.audit()
        for i, heard in stage.heard.items():
            if i in (4, 9):
                assert isinstance(heard.finish.error, RequestFailed)
                assert "cannot encode" in str(heard.finish.error)
                assert heard.tokens == []
            else:
                judge(heard, right[i])


@pytest.mark.parametrize("host", [0.0, 0.6])
@pytest.mark.parametrize("depth", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_failing_forward_fails_its_riders_alone(depth, host):
    """A forward that fails once: riders of a decode are lost, those of a prefill of several begin again."""
    struck = 0
    for at in (0, 7, 23, 40):
        entries = mix_of_requests(at, 10, host=host, cancels=0.0, spread=10)
        right = expected(SPEC, entries)
        with host_stage(FragileModel(SPEC, at=at), depth) as (stage, device):
            stage.play(entries)
            device.audit()
            lost = [i for i, heard in stage.heard.items() if heard.finish.error is not None]
            for i, heard in stage.heard.items():
                judge(heard, right[i], (RequestFailed,))
            assert len(lost) < len(entries)
            struck += len(lost)
            assert lost or stage.engine.counters.retried > 1
            stage.play(after := [Entry(ask(100, "detect", shown=picture(1)))])
            judge(stage.heard[100], expected(SPEC, after)[100])
    assert struck > 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_s_con_14_a_picture_that_cannot_be_encoded_fails_alone_in_its_batch(depth):
    """Four prefills in one step, one encoder raises each time it is asked: three begin again and answer."""
    entries = [Entry(ask(i, ids=(10 + i,), shown=picture(i), max_tokens=9)) for i in range(1, 5)]
    right = expected(SPEC, entries)
    with host_stage(FragileModel(SPEC, bad=2), depth) as (stage, device):
        stage.play(entries)
        device.audit()
        assert stage.engine.counters.retried == 4
        assert isinstance(stage.heard[2].finish.error, RequestFailed)
        assert "cannot encode" in str(stage.heard[2].finish.error)
        for i in (1, 3, 4):
            judge(stage.heard[i], right[i])


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("host", [0.0, 1.0])
def test_non_finite_logits_end_their_row_alone(depth, host):
    entries = mix_of_requests(5, 12, host=host, cancels=0.0, spread=6)
    right = expected(SPEC, entries)
    victims = {i: len(a.tokens) // 2 for i, a in right.items() if i % 4 == 1}
    model = HashModel(SPEC)
    model.curse([right[i].hidden[at] for i, at in victims.items()])
    with host_stage(model, depth) as (stage, device):
        stage.play(entries)
        device.audit()
        for i, heard in stage.heard.items():
            if i in victims:
                assert isinstance(heard.finish.error, NonFiniteLogits)
                assert [t.id for t in heard.tokens] == [t.id for t in right[i].tokens[: victims[i]]]
            else:
                judge(heard, right[i])


@pytest.mark.parametrize("depth", [1, 2])
def test_out_of_memory_ends_the_loop(depth):
    entries = mix_of_requests(1, 10, cancels=0.0, spread=4)
    model = FragileModel(SPEC, at=12, error=MemoryError("no more"))
    with host_stage(model, depth) as (stage, _), pytest.raises(DeviceLost, match="no more"):
        stage.play(entries)
