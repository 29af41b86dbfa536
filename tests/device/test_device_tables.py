"""Tables on the device walk exactly as `Walker` does, for every program, many rows at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gapless.constrain.table import PROGRAMS, Rules, Walker, build_table
from gapless.device.tables import DeviceTable
from gapless.records import Flags, ValueHead

CPU = torch.device("cpu")


@pytest.mark.parametrize("mask_answer", [True, False])
def test_random_walks_agree_with_the_walker(mask_answer):
    rules = Rules(vocab=24, end=0, answer=3, coord=5, size=6, mask_answer=mask_answer)
    table = build_table(rules)
    device_table = DeviceTable(table, CPU)
    rng = np.random.default_rng(7)
    walkers = [
        Walker.start(table, PROGRAMS[i % 5], int(rng.integers(1, 12)), int(rng.integers(1, 4))) for i in range(200)
    ]
    running = list(walkers)
    seen: set[tuple[str, int]] = set()
    while running:
        tokens = [int(rng.choice(np.flatnonzero(w.mask()))) for w in running]
        tensors = [torch.tensor([getattr(w, f) for w in running]) for f in WALK]
        masks = device_table.masks(tensors[0])
        assert np.array_equal(masks.numpy(), np.stack([w.mask() for w in running]))
        got = device_table.advance(*tensors, torch.tensor(tokens))
        judged = [w.advance(t) for w, t in zip(running, tokens, strict=True)]
        assert got.head.tolist() == [int(h) for h, _ in judged]
        assert got.flags.tolist() == [int(f) for _, f in judged]
        assert got.state.tolist() == [w.state for w in running]
        assert got.left.tolist() == [w.left for w in running]
        assert got.objects_left.tolist() == [w.objects_left for w in running]
        seen |= {(f.name or "", int(h)) for h, f in judged}
        running = [w for w, (_, flags) in zip(running, judged, strict=True) if not flags]
    assert {("STOP", 0), ("LENGTH", 0), ("LENGTH", 1), ("LENGTH", 2), ("NONE", 1), ("NONE", 2)} <= seen


WALK = ("state", "left", "left_next", "objects_left")


def test_forbidden_tokens_move_the_same_way_too():
    """Host masks may differ from the table's, so every state must take every class."""
    table = build_table(Rules(vocab=10, end=0, answer=3, coord=5, size=6, mask_answer=True))
    device_table = DeviceTable(table, CPU)
    for state in range(len(table.mask)):
        for token in range(10):
            for left, objects in ((5, 2), (1, 2), (5, 1), (1, 1)):
                walker = Walker(table, state, left, 4, objects)
                head, flags = walker.advance(token)
                one = [torch.tensor([x]) for x in (state, left, 4, objects, token)]
                got = device_table.advance(*one)
                assert (int(got.head), int(got.flags)) == (int(head), int(flags))
                assert (int(got.state), int(got.left), int(got.objects_left)) == (
                    walker.state,
                    walker.left,
                    walker.objects_left,
                )
                assert int(got.flags) in (Flags.NONE, Flags.STOP, Flags.LENGTH)


def test_heads_that_a_program_can_need_are_known_beforehand():
    table = build_table(Rules(vocab=10, end=0, answer=3, coord=5, size=6, mask_answer=True))
    device_table = DeviceTable(table, CPU)
    want = {
        "text": set(),
        "reason": {ValueHead.COORD},
        "point": {ValueHead.COORD},
        "forced-point": {ValueHead.COORD},
        "detect": {ValueHead.COORD, ValueHead.SIZE},
        "segment": {ValueHead.COORD, ValueHead.SIZE},
    }
    assert {p: set(device_table.heads_from(table.programs[p])) for p in PROGRAMS} == want


def test_what_the_next_token_may_carry_is_known_by_state_exactly():
    """Every token that may come in a state, with the value that the walker says it carries."""
    table = build_table(Rules(vocab=10, end=0, answer=3, coord=5, size=6, mask_answer=True))
    may = DeviceTable(table, CPU).may.tolist()
    seen = [0] * len(may)
    for state in range(len(may)):
        for token in np.flatnonzero(table.masks[table.mask[state]]):
            head, _ = Walker(table, state, 3, 4, 2).advance(int(token))
            seen[state] |= {ValueHead.NONE: 0, ValueHead.COORD: 1, ValueHead.SIZE: 2}[ValueHead(head)]
    assert may == seen and {0, 1, 2} <= set(may)
