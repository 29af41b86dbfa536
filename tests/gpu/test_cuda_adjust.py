"""Adjusted logits on a GPU: the kernels do what the plain lines do, to the bit, and the engine says what the formulas
say."""

from __future__ import annotations

import pytest
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.scene import expected, mix_of_requests, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.stage import cuda_stage, prove
from tests.kernels.drawn_adjust import adjusted_scene

from gapless.device.adjust import Adjuster
from gapless.device.rows import RowStore

pytestmark = pytest.mark.gpu
GPU, SPEC = torch.device("cuda"), HashSpec()


def kernels():
    found = RowStore(1, 1, GPU).kernels
    assert found is not None, "the kernels are not there"
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("vocab", "rows"), [(64, 26), (2048, 14), (51200, 66), (51201, 14), (151_936, 14)])
@pytest.mark.parametrize("seed", range(3))
def test_logits_are_those_of_the_plain_lines(seed, vocab, rows, masked):
    of = adjusted_scene(seed, vocab, rows, GPU)
    mine, plain = of.adjust(kernels(), masked), of.adjust(None, masked)
    torch.testing.assert_close(mine, plain, rtol=0, atol=0, equal_nan=True)
    on_cpu = adjusted_scene(seed, vocab, rows, GPU).at(torch.device("cpu")).adjust(None, masked)
    torch.testing.assert_close(mine.cpu(), on_cpu, rtol=0, atol=0, equal_nan=True)
    assert int((mine != of.of.batch.logits).any(dim=1).sum()) > rows // 4


@pytest.mark.parametrize("seed", range(3))
def test_tokens_are_counted_as_the_plain_lines_count_them(seed):
    of = adjusted_scene(seed, 51200, 66, GPU)
    mine, plain = of.count(kernels()), of.count(None)
    assert torch.equal(mine, plain) and int((mine != of.words).sum()) > 5


@pytest.mark.parametrize("pages", [400, 27])
@pytest.mark.parametrize(
    ("depth", "masked", "graphs"), [(1, 0.0, True), (2, 0.5, True), (4, 0.0, True), (3, 0.5, False)]
)
def test_answers_are_those_of_the_formulas(depth, masked, graphs, pages, monkeypatch):
    taken = []
    own = Adjuster.adjust
    monkeypatch.setattr(Adjuster, "adjust", lambda self, *given: (taken.append(self), own(self, *given))[1])
    entries = mix_of_requests(32, 18, host=masked, spread=12, adjusted=0.75)
    model = HashModel(SPEC, device=GPU)
    with cuda_stage(model, table_of(SPEC), depth, graphs=graphs, pages=pages, page_size=4, lookahead=8) as played:
        captured = len(taken)
        heard = played.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        prove(played, depth, graphs, landed=masked < 1)
        assert (len(taken) == captured) == graphs and captured > 0, "logits were adjusted outside of a graph"
        resumed = sum(
            h.finish.metrics.preemptions > 0 and e.request.sampling.adjusts
            for e, h in ((e, heard[e.request.id]) for e in entries)
        )
        assert pages > 27 or resumed > 0
