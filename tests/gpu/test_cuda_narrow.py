"""Experts in FP8 multiplied as they are, on a GPU that does: any numbers against float64, the same bits whatever else
the GPU does, and nobody who waits for ever."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tests.gpu.held import NARROW, Holder
from tests.kernels.drawn_narrow import Launch, cuts_of, draw_narrow, gated_of, joined, said_of
from tests.kernels.drawn_sparse import MOONDREAM_3, draw

from gapless.kernels.choose import choose
from gapless.kernels.stacks import FP8, Stack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0), reason="needs Hopper's units"
    ),
]
KEPT = 2.0**-8
"""What the units lose at most of sums of 256 products, as a part of how large these are: all of one sign are worst."""


def plain(seed: int = 1, rows: int = 8, experts: int = 8, share: int = 2):
    return draw_narrow(rows, seed, **(NARROW | {"experts": experts, "share": share}))


def normal(*shape: int, seed: int = 9):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def stacked(values) -> Stack:
    scales = values.abs().amax(-1) / 448
    return Stack((values / scales[..., None]).to(FP8), scales)


def with_outliers(of, size: float):
    of.n[:, 5] = size
    of.n[:, 64::64] *= 30
    return of


def of_one_sign(of):
    up, down = normal(*of.up.values.shape).abs() / 1800, normal(*of.down.values.shape).abs() / 32
    return replace(of, n=of.n.abs(), up=stacked(up), down=stacked(down))


def of_any_bytes(of):
    stored = (normal(*of.up.values.shape) * 1000).to(torch.int32).to(torch.uint8)
    stored = torch.where((stored & 127) == 127, stored - 1, stored)  # no NaN
    scales = torch.full_like(of.up.scales, 2e-4)
    scales[:, ::5] = 0
    return replace(of, up=Stack(stored.view(FP8), scales))


def of_tiny_weights(of):
    """All of them subnormal."""
    stored = normal(*of.up.values.shape).mul(4).abs().clamp(max=7).to(torch.uint8)
    return replace(of, up=Stack(stored.view(FP8), torch.full_like(of.up.scales, 2.0)))


CASES = {
    "usual": plain,
    "outliers": lambda: with_outliers(plain(2), 100.0),
    "far outliers": lambda: with_outliers(plain(3), 1000.0),
    "of one sign": lambda: of_one_sign(plain(4)),
    "any bytes": lambda: of_any_bytes(plain(5)),
    "tiny weights": lambda: of_tiny_weights(plain(6)),
    "small tokens": lambda: replace(plain(7), n=plain(7).n * 1e-3),
    "large": lambda: replace(plain(8), n=plain(8).n * 100),
    "many rows": lambda: plain(9, rows=33),
    "one expert": lambda: plain(10, rows=20, experts=1, share=1),
}


def test_tokens_cut_on_a_gpu_are_those_tokens():
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.arange(2**16, dtype=torch.int32, device="cuda").to(torch.int16).view(dtype).float().view(64, -1)
        found, right = joined(cuts_of(x)), x.double()
        said = right.abs() < 2.0**20
        away, small = (found - right).abs(), right.abs() < 2.0**-11
        assert not away[said & ~small].any() and (away[said & small] <= 2.0**-21).all() and found[~said].isnan().all()


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_all_kinds_against_float64(name):
    of = CASES[name]()
    out = Launch(of)()
    right, size = gated_of(of)
    gated = joined(out.gated)
    # rounded to bfloat16, and cut; each of its inputs cut too
    bound = 2.0**-8 * right.abs() + KEPT * size + 2.0**-21 * (1 + size)
    assert ((gated - right).abs() <= bound).all()
    right, size = said_of(of, gated)
    assert ((out.said.double() - right).abs() <= KEPT * size + 1e-30).all()
    limit = 2.0**-9 if name == "of one sign" else 2.0**-11
    assert (out.said.double() - right).norm() <= limit * right.norm()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 2.0**20])
def test_a_row_that_is_not_finite_stays_alone_and_company_changes_nothing(bad):
    of = plain(11)
    right = Launch(of)().said.clone()
    spoilt, order = of.n.clone(), [5, 2, 7, 0, 3, 6, 1, 4]
    spoilt[3, 100] = bad
    found = Launch(replace(of, n=spoilt))().said
    mine = torch.arange(16, device="cuda") // 2 == 3
    assert found[mine].isnan().all() and torch.equal(found[~mine], right[~mine])
    found = Launch(replace(of, n=spoilt[order], picks=of.picks[order]))().said.view(8, 2, -1)
    assert torch.equal(found[[3, 0, 1]], right.view(8, 2, -1)[[0, 5, 2]])
    same = replace(of, n=torch.cat((of.n[:1], spoilt[1:])), picks=of.picks[:1].expand(8, -1).contiguous())
    assert torch.equal(Launch(same)().said[:2], right[:2])


@pytest.mark.parametrize("pdl", [0, 1, 2])
@pytest.mark.parametrize(("rows", "experts", "share"), [(8, 64, 8), (32, 8, 8), (8, 2, 2)])
def test_300_launches_are_the_same_bits_while_others_hold_multiprocessors(rows, experts, share, pdl):
    """With few experts all programs run at once, and the second product truly waits for the first."""
    launch, holder = Launch(plain(rows, rows, experts, share), pdl=pdl), Holder()
    out = launch()
    right = [part.clone() for part in (out.said, out.gated.view(torch.uint8), out.parts[:, :rows])]
    for number in range(300):
        if number % 10 == 0:
            holder.hold(1 + 7 * (number // 10 % 17), 3e-4)
        out.said.fill_(torch.nan)
        out.gated.view(torch.uint8).fill_(127)
        launch()
        found = out.said, out.gated.view(torch.uint8), out.parts[:, :rows]
        assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True)), number


@torch.inference_mode()
def test_graphs_of_two_models_and_four_numbers_of_rows_in_turns():
    """Each model on a stream of its own, its graphs over one room; and a launch before that broke off anywhere."""
    kernels, of, rng = (
        choose(torch.device("cuda")),
        replace(MOONDREAM_3, vocab=2048, ff=2048, layers=3),
        random.Random(1),
    )
    holder, held = Holder(), []
    for number in range(2):
        scene = draw(32, 3 + number, of, narrow=True, dtype=torch.bfloat16, device="cuda", longest=200)
        fused, stream, graphs = kernels.fuse_sparse(scene.decoder), torch.cuda.Stream(), {}
        kernels.compile_ahead(fused, (8, 32), 16)
        fused.poison()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for rows in (8, 32, 5, 20):
                given = [part[:rows].clone() for part in (scene.x, scene.positions, scene.tables)]
                given += [scene.keys, scene.values]
                fused.logits(fused.forward(*given))
                assert fused.choice(rows).cut
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    hidden = fused.forward(*given)
                    logits = fused.logits(hidden)
                graph.replay()
                torch.cuda.synchronize()
                graphs[rows] = graph, given, (hidden, logits), (hidden.clone(), logits.clone())
        held.append((fused, stream, graphs))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for turn in range(200):
        holder.hold(1 + 11 * (turn % 11), 3e-4)
        tallies = []
        for fused, stream, graphs in rng.sample(held, 2):
            with torch.cuda.stream(stream):
                for rows in rng.sample(list(graphs), 4):
                    if turn % 20 == 19:
                        fused.poison()
                    graph, _, found, right = graphs[rows]
                    found[0].fill_(torch.nan)
                    graph.replay()
                    tallies += [(one != other).sum() for one, other in zip(found, right, strict=True)]
        torch.cuda.synchronize()
        wrong += torch.stack(tallies).sum()
    assert not wrong.item()


def test_who_waits_leaves_room_for_those_who_are_waited_for():
    paths = {"PYTHONPATH": os.pathsep.join(("src", ".", *sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.held"], env={**os.environ, **paths}, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:4] for line in lines] == [["8", "True", "True", "True"], ["1", "True", "True", "True"]], done.stdout
