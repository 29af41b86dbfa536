"""Pictures of a step encoded together: each gets what it would get alone, in whatever company, cut or uncut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.device.rig import SPEC, TABLE, Rig, expected
from tests.fakes.hash_model import HashModel
from tests.fakes.hash_tower import SIDE, TowerModel
from tests.fakes.inline_runtime import InlineRuntime

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.device.cuda import CudaDevice
from gapless.device.pictures import CROP_BUCKETS, MOST_CROPS, CropBatch, Shown, bucket_of
from gapless.errors import InvariantBroken
from gapless.kernels.reference import cut_crops
from gapless.records import Picture


@dataclass
class Scene:
    """Pictures as a device gets them, and what each is worth alone."""

    pictures: list[Shown]
    alone: list[torch.Tensor]


def show(seed: int, tilings: list[tuple[int, int]], model: HashModel) -> Scene:
    rng = np.random.default_rng(seed)
    pictures, alone = [], []
    for at, (rows, columns) in enumerate(tilings):
        crops = torch.from_numpy(rng.integers(0, 256, (1 + rows * columns, SIDE, SIDE, 3), dtype=np.uint8))
        pixels = crops
        if at % 2:
            pixels = torch.from_numpy(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))
            cut_crops(pixels, (rows, columns), SIDE - 2, crops)
        pictures.append(Shown(pixels, (rows, columns), 0, 1 + rows * columns))
        alone.append(model.encode_picture(crops, (rows, columns)))
    return Scene(pictures, alone)


@pytest.mark.parametrize("seed", range(6))
def test_each_picture_gets_what_it_gets_alone(seed: int) -> None:
    model = TowerModel(SPEC)
    batch, rng = CropBatch(model, model.tower), np.random.default_rng(100 + seed)
    choices = [(1, 1), (2, 2), (2, 4), (3, 4), (1, 17), (4, 6)]
    shown = show(seed, [choices[i] for i in rng.integers(0, len(choices), rng.integers(1, 9))], model)
    asked, read = [], []
    found = batch.of(
        (picture for picture in shown.pictures),
        lambda count: (asked.append(count), batch.encode(count))[1],
        lambda: read.append(len(asked)),
    )
    assert len(found) == len(shown.alone)
    assert all(torch.equal(mine, right) for mine, right in zip(found, shown.alone, strict=True))
    assert len(read) == len(found) and set(asked) <= set(CROP_BUCKETS)
    alone = [1 + r * c for r, c in (one.tiling for one in shown.pictures) if 1 + r * c > MOST_CROPS]
    assert sorted(model.tower.encoded) == sorted(asked + alone)


def test_as_many_as_fit_share_a_launch() -> None:
    model = TowerModel(SPEC)
    batch = CropBatch(model, model.tower)
    shown = show(1, [(2, 4), (2, 4), (1, 1), (1, 1), (1, 1)], model)  # 9 + 9, then 2 + 2 + 2
    batch.of(shown.pictures, batch.encode, list)
    assert model.tower.encoded == [18, 7] and model.tower.projected == [2, 3]
    assert batch.of([], batch.encode, list) == [] and model.tower.encoded == [18, 7]
    shown = show(2, [(2, 4), (1, 9), (2, 4)], model)  # one crop too many for two of them
    batch.of(shown.pictures, batch.encode, list)
    assert model.tower.encoded == [18, 7, 9, 11, 9]


@pytest.mark.parametrize("fails", ["a launch", "a picture that does not come"])
def test_a_call_that_fails_leaves_nothing_to_the_next(fails: str) -> None:
    model = TowerModel(SPEC)
    batch, shown = CropBatch(model, model.tower), show(3, [(2, 2), (1, 1), (2, 4)], model)

    def failing(*_: object) -> None:
        raise ValueError("a fault")

    broken = fails == "a launch"
    with pytest.raises(ValueError, match="a fault"):
        batch.of(shown.pictures, failing if broken else batch.encode, list if broken else failing)
    found = batch.of(shown.pictures, batch.encode, list)
    assert len(found) == len(shown.alone)
    assert all(torch.equal(mine, right) for mine, right in zip(found, shown.alone, strict=True))


def test_buckets_waste_little_for_usual_pictures() -> None:
    assert [bucket_of(crops) for crops in (2, 5, 7, 9, 13)] == [2, 5, 7, 9, 13]
    assert all(bucket_of(crops) - crops <= 2 for crops in range(1, MOST_CROPS + 1))
    with pytest.raises(InvariantBroken, match="19 crops"):
        bucket_of(MOST_CROPS + 1)


@pytest.mark.parametrize("graphs", [True, False])
def test_a_device_answers_about_pictures_that_share_launches(graphs: bool) -> None:
    model = TowerModel(SPEC)
    config = EngineConfig(max_rows=8, page_size=4, pages=600, depth=2)
    device = CudaDevice(model, TABLE, config, CudaDeviceConfig(poison=True, graphs=graphs), InlineRuntime())
    list(device.prepare())
    rig = Rig(device)
    model.tower.encoded.clear()
    rng = np.random.default_rng(7)
    seqs = []
    for number, tiling in enumerate([(1, 1), (2, 2), (1, 1), (2, 4)]):
        crops = rng.integers(0, 256, (1 + tiling[0] * tiling[1], SIDE, SIDE, 3), dtype=np.uint8)
        seqs.append(rig.seq(picture=Picture(f"{number:064x}", crops, tiling, SIDE, SIDE), max_tokens=6))
    rig.settle(rig.launch(rig.prefill_step(seqs), seqs), seqs)
    rig.play(seqs, 2)
    for seq in seqs:
        assert seq.tokens == expected(seq)
    assert sum(model.tower.encoded) >= 2 + 5 + 2 + 9 and len(model.tower.encoded) < 4
    assert device.graphs.replays["pictures"] == (len(model.tower.encoded) if graphs else 0)
    device.close()
