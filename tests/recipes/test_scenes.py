"""The scene generator is seeded, its boxes agree with the pixels it draws, its renderers agree with each other."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
from recipes.glint import grounds, letters, scenes, shapes
from recipes.glint.compression import compress
from recipes.glint.data import (
    ASPECTS,
    TILINGS,
    Batches,
    Renderer,
    blow_up,
    crop_frames,
    groups,
    random_aspect,
    scene_arrays,
    small_pictures,
)
from recipes.glint.phrases import KINDS, PATTERNS, WORDS


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


def overlapping(scene: scenes.Scene) -> list[tuple[scenes.Thing, scenes.Thing]]:
    """Pairs of things whose boxes meet."""
    out = []
    for i, one in enumerate(scene.things):
        for other in scene.things[:i]:
            x, y = np.subtract(scene.box(one)[:2], scene.box(other)[:2])
            reach = np.add(scene.box(one)[2:], scene.box(other)[2:]) / 2
            if abs(x) < reach[0] and abs(y) < reach[1]:
                out.append((one, other))
    return out


def masks(scene: scenes.Scene, side: int = 160) -> dict[scenes.Thing, np.ndarray]:
    """Which points of a grid every whole thing covers."""
    root, at = scene.aspect**0.5, (np.arange(side) + 0.5) / side
    return {
        t: shapes.DISTANCES[t.kind](np, (at[None, :] - t.x) * root / t.r, (at[:, None] - t.y) / root / t.r) < 0
        for t in scene.things
    }


def test_about_half_of_the_scenes_have_overlaps_and_those_hide_little():
    drawn = [scenes.make_scene(random.Random(seed)) for seed in range(240)]
    some = [scene for scene in drawn if overlapping(scene)]
    assert 0.35 < len(some) / len(drawn) < 0.65
    for scene in some:
        assert all(one.colour != other.colour for one, other in overlapping(scene))
        covered = masks(scene)
        for t, mask in covered.items():
            later = np.zeros_like(mask)
            for other in scene.things:
                if other.depth > t.depth:
                    later |= covered[other]
            assert (mask & later).sum() <= 0.25 * mask.sum()
            row, col = int(t.y * len(mask)), int(t.x * len(mask))
            assert not later[row, col]
    depths = [[t.depth for t in scene.things] for scene in some]
    assert all(sorted(d) == list(range(len(d))) for d in depths) and any(d != sorted(d) for d in depths)


def test_a_later_thing_is_painted_over_an_earlier_one():
    one = scenes.Thing(1, 0, 2, 0.4, 0.5, 0.12, (1.0, 0.0, 0.0), 1)
    other = scenes.Thing(1, 3, 2, 0.55, 0.5, 0.12, (0.0, 1.0, 0.0), 0)
    white = (1.0, 1.0, 1.0)
    scene = scenes.Scene(1.0, (one, other), 0, 0, white, white, 0.0, 0.1, 0.0)
    assert scenes.draw(scene, 100, 100)[50, 48].tolist() == [255, 0, 0]
    turned = dataclasses.replace(scene, things=(dataclasses.replace(one, depth=0), dataclasses.replace(other, depth=1)))
    assert scenes.draw(turned, 100, 100)[50, 48].tolist() == [0, 255, 0]


def test_things_are_apart_from_each_other_in_x_and_stand_out_from_the_ground():
    for seed in range(300):
        scene = scenes.make_scene(random.Random(seed))
        assert (np.diff([t.x for t in scene.things]) > 0.02).all()
        for t in scene.things:
            assert min(grounds.contrast(t.rgb, scene.first), grounds.contrast(t.rgb, scene.second)) > 0.25


def test_eight_things_find_room():
    class Eight(random.Random):
        def randint(self, a, b):
            return 8 if b == 8 else super().randint(a, b)

    counts = [len(scenes.make_scene(Eight(seed)).things) for seed in range(100)]
    assert max(counts) == 8 and np.mean(np.asarray(counts) >= 7) > 0.95


def test_printed_text_is_legible_inside_and_alone():
    drawn = [scenes.make_scene(random.Random(seed)) for seed in range(400)]
    some = [scene for scene in drawn if scene.printed]
    assert 0.27 < len(some) / len(drawn) < 0.43
    assert all(scene.text_box() is None and scene.letter_cell(224, 224) == 0 for scene in drawn if not scene.printed)
    assert any(scene.printed.text in WORDS for scene in some) and any(scene.printed.text.isdigit() for scene in some)
    for scene in some:
        x, y, w, h = scene.text_box()
        assert min(x - w / 2, y - h / 2) > 0.01 and max(x + w / 2, y + h / 2) < 0.99
        assert scene.letter_cell(224, 224) >= 1.4
        for t in scene.things:
            tx, ty, tw, th = scene.box(t)
            assert abs(x - tx) > (w + tw) / 2 or abs(y - ty) > (h + th) / 2
        ink = grounds.brightness(scene.printed.rgb)
        assert min(abs(ink - grounds.brightness(c)) for c in (scene.first, scene.second)) > 0.25


@pytest.mark.parametrize("text", ["STOP", "AVX", "QUICK", "7", "1049"])
@pytest.mark.parametrize("size", [(300, 200), (200, 330)])
def test_the_text_box_is_the_box_of_the_drawn_ink(text, size):
    width, height = size
    aspect, tall = width / height, 0.12
    root, wide = aspect**0.5, letters.columns(text) * tall / letters.ROWS
    printed = scenes.Printed(text, 0.5, 0.4, wide / root, tall * root, (1.0, 1.0, 1.0))
    black = (0.0, 0.0, 0.0)
    scene = scenes.Scene(aspect, (), 2, 0, black, black, 0.0, 0.1, 0.0, printed)
    rows, cols = np.nonzero(scenes.draw(scene, width, height)[..., 0] > 127)
    x, y, w, h = scene.text_box()
    got = (cols.min(), rows.min(), cols.max() + 1, rows.max() + 1)
    want = ((x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height)
    assert np.abs(np.subtract(got, want)).max() <= 1


def test_letters_of_small_pictures_are_larger():
    for seed in range(200):
        scene = scenes.make_scene(random.Random(seed), 1.3, 96.0)
        assert scene.printed is None or scene.letter_cell(109, 84) >= 1.4
        assert scenes.make_scene(random.Random(seed), 1.3, 30.0).printed is None
    tilings = ((40, 1, 1), (10, 1, 2))
    assert small_pictures(tilings) == [(0, 4, 96), (4, 8, 128), (8, 12, 176)] and not small_pictures(tilings[1:])
    assert len(Batches(0, 64, 383).scenes(random.Random(0))) == 64


def test_every_glyph_differs_fills_its_rows_and_every_word_fits():
    seen = {c: letters.bitmap(c) for c in letters.FONT}
    assert len({(b.shape, b.tobytes()) for b in seen.values()}) == 36
    for bits in seen.values():
        assert bits.shape[0] == 7 and bits[[0, -1]].any(1).all() and bits[:, [0, -1]].any(0).all()
    assert max(letters.columns(word) for word in WORDS) <= letters.MOST_COLUMNS


def crops_of(drawn: list[scenes.Scene], tilings, **how) -> torch.Tensor:
    arrays = {k: torch.from_numpy(a) for k, a in scene_arrays(drawn).items()}
    torch.manual_seed(0)
    return Renderer(tilings, torch.device("cpu"), **how)(arrays, (1.0, 1.0))


def test_torch_renderer_agrees_with_the_reference():
    drawn = [dataclasses.replace(scenes.make_scene(random.Random(seed), 1.0), noise=0.0) for seed in range(16)]
    assert {PATTERNS[scene.pattern] for scene in drawn} == set(PATTERNS) and any(scene.printed for scene in drawn)
    for crop, scene in zip(crops_of(drawn, ((16, 1, 1),)), drawn, strict=True):
        picture = torch.from_numpy(scenes.draw(scene, 224, 224)).permute(2, 0, 1) / 127.5 - 1
        assert ((crop - picture).abs() > 0.03).float().mean() < 2e-3


def test_local_crops_show_their_part_of_the_picture():
    scene = dataclasses.replace(scenes.make_scene(random.Random(5), 392 / 224), noise=0.0)
    crops = crops_of([scene], ((1, 1, 2),))
    picture = torch.from_numpy(scenes.draw(scene, 392, 224)).permute(2, 0, 1) / 127.5 - 1
    for crop, left in zip(crops[1:], (0, 168), strict=True):
        assert ((crop - picture[:, :, left : left + 224]).abs() > 0.03).float().mean() < 2e-3


def test_patterns_can_be_told_from_the_pixels():
    for seed in range(60):
        scene = dataclasses.replace(scenes.make_scene(random.Random(seed), 1.0), things=(), printed=None)
        picture = scenes.draw(scene, 96, 96, seed).astype(float) / 255
        grain = np.median(np.abs(np.diff(picture, axis=1)))
        name = PATTERNS[scene.pattern]
        assert (picture.std((0, 1)).max() < 0.01) == (name == "plain")
        assert (grain > 0.02) == (name == "noisy")


def test_worn_crops_differ_a_little_and_keep_their_noise():
    drawn = [scenes.make_scene(random.Random(seed), 1.0) for seed in range(6)]
    clean, worn = (crops_of(drawn, ((6, 1, 1),), worn=w) for w in (0.0, 1.0))
    assert 0 < (clean - worn).abs().mean() < 0.12 and worn.abs().max() <= 1
    flat = torch.full((1, 3, 224, 224), 0.25)
    assert torch.allclose(blow_up(flat, 96), flat) and (blow_up(clean, 96) - clean).abs().mean() > 0.01
    noise = (torch.randn(2, 3, 64, 64) * 0.08).clamp(-1, 1)
    for flat, step in ((0.0, 0.01), (0.3, 0.06)):
        rounded = compress(noise + flat, torch.full((2,), step))
        assert rounded.std() > 0.02
        level = compress(torch.full((1, 3, 16, 16), flat), torch.full((1,), step))
        assert (level - flat).abs().max() < 0.02


def test_every_tiling_up_to_four_crops_is_trained_with_the_ratios_it_sees():
    possible = {(w, h): scenes.tiling(w, h) for w in range(100, 1600, 60) for h in range(100, 1600, 60)}
    wide = {t for (w, h), t in possible.items() if 1 / 3 <= w / h <= 3}
    assert wide <= set(TILINGS) and {(r, c) for _, r, c in groups(384)} == set(TILINGS)
    for (w, h), t in possible.items():
        if 1 / 3 <= w / h <= 3 and t != (1, 1):
            low, high = ASPECTS[TILINGS.index(t)]
            assert low * 0.9 <= w / h <= high * 1.1
    rng = random.Random(0)
    ratios = [random_aspect(rng, 1, 1) for _ in range(400)]
    assert min(ratios) < 0.4 and max(ratios) > 2.5
    assert len(crop_frames(((1, 1, 1), (1, 4, 1)))) == 6


def test_outlines_start_at_the_top_and_fill_the_box():
    assert shapes.contour(KINDS.index("square")) == [(0, 0), (960, 0), (960, 960), (0, 960)]
    assert len(shapes.contour(KINDS.index("star"))) == 10
    for kind in range(8):
        points = np.asarray(shapes.contour(kind))
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
