"""The scene generator is seeded, its boxes agree with the pixels it draws, its renderers agree with each other."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from recipes.glint import scenes
from recipes.glint.data import Renderer, scene_arrays
from recipes.glint.phrases import KINDS


def test_same_seed_gives_the_same_scene_and_pixels():
    one, two = (scenes.make_scene(random.Random(3)) for _ in range(2))
    assert one == two
    assert np.array_equal(scenes.draw(one, 90, 60, 1), scenes.draw(two, 90, 60, 1))
    assert one != scenes.make_scene(random.Random(4))


def test_scenes_hold_one_to_eight_things_from_left_to_right_inside_the_picture():
    for seed in range(300):
        scene = scenes.make_scene(random.Random(seed))
        assert 1 <= len(scene.things) <= scenes.MOST
        xs = [t.x for t in scene.things]
        assert xs == sorted(xs)
        for t in scene.things:
            x, y, w, h = scene.box(t)
            assert min(x - w / 2, y - h / 2) > 0 and max(x + w / 2, y + h / 2) < 1


@pytest.mark.parametrize("kind", range(8), ids=KINDS)
@pytest.mark.parametrize("size", [(300, 200), (160, 240)])
def test_boxes_agree_with_pixels(kind, size):
    width, height = size
    thing = scenes.Thing(kind, 0, 2, 0.45, 0.55, 0.12, (1.0, 0.0, 0.0))
    black = (0.0, 0.0, 0.0)
    scene = scenes.Scene(width / height, (thing,), 2, 0, black, black, 0.0, 0.1, 0.0)
    rows, cols = np.nonzero(scenes.draw(scene, width, height)[..., 0] > 127)
    x, y, w, h = scene.box(thing)
    got = (cols.min(), rows.min(), cols.max() + 1, rows.max() + 1)
    want = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
    assert np.abs(np.subtract(got, want)).max() <= 2  # the tip of a star is thin


def test_torch_renderer_agrees_with_the_reference():
    for seed in range(12):
        scene = dataclasses.replace(scenes.make_scene(random.Random(seed), 1.0), noise=0.0)
        arrays = {k: torch.from_numpy(a) for k, a in scene_arrays([scene]).items()}
        crop = Renderer(((1, 1, 1),), torch.device("cpu"))(arrays, (1.0, 1.0))[0]
        drawn = torch.from_numpy(scenes.draw(scene, 224, 224)).permute(2, 0, 1) / 127.5 - 1
        assert ((crop - drawn).abs() > 0.1).float().mean() < 2e-3


def test_outlines_start_at_the_top_and_fill_the_box():
    assert scenes.contour(KINDS.index("square")) == [(0, 0), (960, 0), (960, 960), (0, 960)]
    assert len(scenes.contour(KINDS.index("star"))) == 10
    for kind in range(8):
        points = np.asarray(scenes.contour(kind))
        assert points.min() >= 0 and points.max() <= 960
        assert (np.ptp(points, axis=0) > 900).all()
        following = np.roll(points, -1, 0)
        area = (points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]).sum()
        assert area > 0  # clockwise on the screen


@pytest.mark.parametrize(
    ("size", "tiles"),
    [((224, 224), (1, 1)), ((640, 480), (1, 2)), ((480, 640), (2, 1)), ((400, 400), (2, 2)), ((1000, 300), (1, 3))],
)
def test_tiling(size, tiles):
    assert scenes.tiling(*size) == tiles
