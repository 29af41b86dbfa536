"""Host masks on a GPU: uploads beside what is computed, answers that guides lead, and free rows beside them."""

from __future__ import annotations

import pytest
import torch

triton = pytest.importorskip("triton")

from tests.fakes.guided import guides_of, long_guides, with_guides  # noqa: E402
from tests.fakes.hash_language import HashSpec  # noqa: E402
from tests.fakes.hash_model import HashModel  # noqa: E402
from tests.fakes.scene import expected, mix_of_requests, table_of  # noqa: E402
from tests.fakes.verdict import judge_all  # noqa: E402
from tests.gpu.stage import cuda_stage, prove  # noqa: E402

from gapless.constrain.guides import installed  # noqa: E402

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda")
SPEC = HashSpec()


@pytest.mark.parametrize("host", [0.5, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_masks_of_walked_tables_are_exact(depth, host):
    """Several rows to a finalize, parked rows, and rows whose masks never come since they leave."""
    entries = mix_of_requests(depth + 3, 24, host=host, spread=12)
    with cuda_stage(HashModel(SPEC, device=GPU), table_of(SPEC), depth, seed=depth) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        if host < 1.0:
            prove(played, depth, graphs=True)
        assert played.device.referee.tally.parked > 0


@pytest.mark.skipif(not installed(), reason="needs llguidance")
@pytest.mark.parametrize(("depth", "pages"), [(1, 400), (2, 400), (4, 400), (3, 33)])
def test_answers_that_guides_lead_are_exact(depth, pages):
    """The last one with too few pages: some begin again in the middle of their grammar."""
    guides = guides_of() if pages > 99 else long_guides()
    entries = with_guides(mix_of_requests(7, 20, spread=8), 0.6, 7, 45, guides)
    sizes = {"pages": pages, "page_size": 4, "lookahead": 8}
    with cuda_stage(HashModel(SPEC, device=GPU), table_of(SPEC), depth, seed=depth, **sizes) as played:
        played.device.referee.narrower = True
        heard = played.play(entries)
        judge_all(heard, expected(SPEC, entries), entries)
        led = [heard[e.request.id].finish.metrics for e in entries if e.request.guide is not None]
        assert any(metrics.preemptions for metrics in led) == (pages < 99)
