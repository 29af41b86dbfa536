"""What a tail says of rows that do not go on: their flags, and nothing that was drawn."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.drawn_rows import scene

from gapless.device.packet import Asked
from gapless.device.record import TOP, Field
from gapless.device.tail import KINDS, MASKED, RULED
from gapless.records import MAX_TOP_LOGPROBS, POISON, Flags


@pytest.mark.parametrize("kind", [kind for kind in (*KINDS, *RULED, MASKED) if kind.full], ids=lambda kind: kind.name)
def test_a_row_that_is_done_or_closed_draws_nothing(kind) -> None:
    drew = muted = 0
    for seed in range(4):
        of = scene(seed, 64, 26, torch.device("cpu"))
        lines, counts, _ = of.end(None, kind)
        asked = of.batch.asked != Asked.NOTHING
        assert bool((lines[~asked] == -7).all()), "a line that nobody asked for was written"
        waiting = of.batch.rows[~asked]
        assert torch.equal(counts[waiting], of.store.counts[waiting]), "a row that was not asked moved, or ended"
        silent = lines[asked & (lines[:, Field.FLAGS] == Flags.MUTED)]
        assert bool((silent[:, Field.TOKEN] == POISON).all() and (silent[:, Field.LOGPROB] == 0).all())
        assert bool((silent[:, TOP : TOP + MAX_TOP_LOGPROBS] == -1).all())
        assert not bool(silent[:, TOP + MAX_TOP_LOGPROBS :].any())
        muted += len(silent)
        drew += int((lines[asked][:, Field.LOGPROB] < 0).sum())
    assert muted > 4 and drew > 8
