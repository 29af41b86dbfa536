"""Prompts and pictures in parts on a GPU: exact with the hash model, and close enough with a full-size Moondream 2."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.equal.test_cut_prompts import COSTS, SIZE, SPEC, TINY, Notes, happened, scene
from tests.fakes.hash_tower import PackingTowerModel, TowerModel
from tests.fakes.scene import Entry, expected, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.near_tie import Reader, divergence
from tests.gpu.stage import cuda_stage, prove

from gapless.constrain.table import build_table
from gapless.device.pictures import CropBatch, Shown
from gapless.models.moondream.templates import Templates
from gapless.models.registry import random_model
from gapless.records import Picture, Prompt, Request, Sampling

pytestmark = pytest.mark.gpu
DIFFERENT = 1e-2


@pytest.mark.parametrize("kind", [TowerModel, PackingTowerModel])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_cut_prompts_in_few_pages_are_exact(depth, graphs, kind):
    """With prompts one by one and side by side."""
    entries, model = scene(1, cancels=0.0), kind(SPEC, device=torch.device("cuda"))
    sizes = {"pages": TINY, "page_size": SIZE, "lookahead": 8, "adapters": 2, "max_step_ms": 5.5, "costs": COSTS}
    with cuda_stage(model, table_of(SPEC), depth, graphs=graphs, seed=depth, **sizes) as played:
        notes = Notes(played.stage, played.device, 5.5, calm=True)
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        prove(played, depth, graphs, landed=False)
        tally = played.device.referee.tally
        happened({"parts": tally.parts, "looks": tally.looks, "looked": tally.looked})
        assert not notes.wrong()


@pytest.fixture(scope="module")
def loaded():
    return random_model("moondream-2", "cuda", "bfloat16")


def drawn(seed, tiling, side=378):
    crops = np.random.default_rng(seed).integers(0, 256, (1 + tiling[0] * tiling[1], side, side, 3), dtype=np.uint8)
    return Picture(f"{seed:064x}", crops, tiling, side, side)


@torch.inference_mode()
def test_a_picture_encoded_over_several_steps_is_the_same_picture(loaded):
    batch, shown = CropBatch(loaded.model, loaded.model.tower), drawn(1, (3, 4))
    pixels = torch.from_numpy(shown.crops).cuda()

    def embedded(*cuts):
        ends, found = [0, *cuts, 13], []
        for begin, end in pairwise(ends):
            part = Shown(None if begin else pixels, (3, 4), begin, end, later=end < 13)
            found += batch.of([part], batch.encode, list)
        return found[0].double()

    whole = embedded()
    for cuts in ((5, 10), (2, 4, 6, 8, 10, 12), (1,), (12,)):
        assert (embedded(*cuts) - whole).norm() <= DIFFERENT * whole.norm()


def test_a_full_size_model_says_the_same_of_prompts_in_parts(loaded):
    """By what the GPU measured itself; near-ties apart. The largest bucket of costs is the dearest."""
    model, table = loaded.model, build_table(Templates.of(loaded.config).rules())
    rng, entries = np.random.default_rng(3), []
    for number, tiling in enumerate(((1, 1), (3, 4), (2, 4), (1, 1), (3, 4), (2, 2)), start=1):
        ids = tuple(int(i) for i in rng.integers(10, 50_000, 5 if number < 4 else 900))
        prompt = Prompt(ids, ((),) * len(ids), drawn(number, tiling))
        entries.append(Entry(Request(number, prompt, "text", Sampling(max_tokens=24)), arrives=3 * number))
    said, parts = {}, {}
    for limit in (None, 8.0):
        sizes = {"rows": 8, "pages": 900, "buckets": (8,), "max_step_ms": limit, "poison": False}
        with cuda_stage(model, table, 2, **sizes) as played:
            heard = played.play(entries)
            assert all(one.finish.error is None for one in heard.values())
            said[limit] = {number: one.tokens for number, one in heard.items()}
            parts[limit], costs = played.device.referee.tally.parts, played.device.costs
            prove(played, 2, True, landed=False)
    assert parts[None] == 0 and parts[8.0] >= 6
    assert 0 < costs.crops[0][1] < costs.crops[-1][1] and 0 < costs.tokens[0][1] < costs.tokens[-1][1]
    for entry in entries:
        number = entry.request.id
        found = divergence(Reader(model), table, entry.request, said[None][number], said[8.0][number])
        assert found is None or found.near, found
