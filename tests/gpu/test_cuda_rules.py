"""Rules on a GPU: the kernels do what the plain lines do, to the bit, and the engine says what the oracle says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

triton = pytest.importorskip("triton")

from tests.fakes.hash_language import HashSpec  # noqa: E402
from tests.fakes.hash_model import HashModel  # noqa: E402
from tests.fakes.ruled import LONG, tables, with_rules  # noqa: E402
from tests.fakes.scene import expected, mix_of_requests, table_of  # noqa: E402
from tests.fakes.verdict import judge_all  # noqa: E402
from tests.gpu.stage import cuda_stage, prove  # noqa: E402
from tests.kernels.drawn_rows import scene  # noqa: E402

from gapless.device.rows import RowStore  # noqa: E402
from gapless.device.tail import RULED  # noqa: E402

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
SPEC = HashSpec()
LARGEST = max(table.numbers for table in tables())


@pytest.mark.parametrize("kind", RULED, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("vocab", "rows"), [(51200, 66), (64, 30)])
@pytest.mark.parametrize("seed", range(4))
def test_a_step_ends_as_the_plain_lines_end_it(seed, vocab, rows, kind):
    of, kernels = scene(seed, vocab, rows, GPU), RowStore(1, 1, GPU).kernels
    assert kernels is not None, "the kernels are not there"
    mine, plain = of.end(kernels, kind), of.end(None, kind)
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert int((mine[0][:, 4] >= 0).sum()) >= 4, "hardly a row moved"


@pytest.mark.parametrize(("depth", "pages"), [(1, 400), (2, 400), (4, 400), (3, 33)])
def test_free_ruled_and_pointing_rows_are_exact(depth, pages):
    """Three slots for seven tables, beside host masks and adapters' absence; the last one with too few pages."""
    entries = with_rules(mix_of_requests(depth, 24, host=0.15 * (pages > 99), spread=12), 0.6, depth)
    for i, entry in enumerate(entries if pages < 99 else ()):
        request = entry.request
        table = request.grammar and tables(rules=LONG)[i % 2]
        sampling = replace(request.sampling, max_tokens=35, max_objects=10)
        entries[i] = replace(entry, request=replace(request, grammar=table, sampling=sampling))
    model, sizes = HashModel(SPEC, device=GPU), {"pages": pages, "page_size": 4, "lookahead": 8}
    with cuda_stage(model, table_of(SPEC), depth, grammars=3, numbers=LARGEST + 900, seed=depth, **sizes) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        prove(played, depth, graphs=True)
        tally = played.device.referee.tally
        assert tally.grammars > 0 and (tally.resumed_in_rule > 0) == (pages < 99)
