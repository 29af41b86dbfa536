"""Run by itself, with TRITON_INTERPRET=1: the kernels that adjust logits and count tokens, against the plain lines."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.drawn_adjust import adjusted_scene

from gapless.device.quick_rows import COLUMNS, MARKS
from gapless.kernels.triton.rows import TritonRows

CPU, KERNELS = torch.device("cpu"), TritonRows(COLUMNS, MARKS)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("seed", "vocab", "rows"), [(0, 64, 26), (1, 64, 26), pytest.param(2, 5000, 14, marks=pytest.mark.slow)]
)
def test_logits_are_those_of_the_plain_lines(seed: int, vocab: int, rows: int, masked: bool) -> None:
    of = adjusted_scene(seed, vocab, rows, CPU)
    mine, plain = of.adjust(KERNELS, masked), of.adjust(None, masked)
    assert torch.equal(mine.view(torch.int32), plain.view(torch.int32)) or torch.allclose(
        mine, plain, rtol=0, atol=0, equal_nan=True
    )
    changed = (mine != of.of.batch.logits) & ~mine.isnan()
    assert int(changed.any(dim=1).sum()) > rows // 4 and not bool(changed[-2:].any())


@pytest.mark.parametrize("seed", [3, 4])
def test_tokens_are_counted_as_the_plain_lines_count_them(seed: int) -> None:
    of = adjusted_scene(seed, 64, 40, CPU)
    mine, plain = of.count(KERNELS), of.count(None)
    assert torch.equal(mine, plain)
    assert int((mine != of.words).sum()) > 5
