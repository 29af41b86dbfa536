"""Pictures of more crops than usual, from their pixels to an answer: very long ones, and models that allow more tiles.

A micro model, in a thread and with the engine in a process of its own, whose arena holds the longest picture.
"""

import json

import numpy as np
import pytest
from tests.api.asking import idle, told
from tests.fakes.micro import write_micro

import gapless
from gapless.api.desk import EncodedImage
from gapless.config import ImageLimits
from gapless.images.picture import prepare

COLD = {"temperature": 0, "max_tokens": 12}


def pixels(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


LONG = pixels(60, 4000)
"""Of the micro model's crops of 56 pixels and budget of 4 this is 2 x 142 windows: one row of 16 tiles."""


@pytest.fixture(scope="module")
def roomy_folder(tmp_path_factory):
    """A model of up to 40 tiles."""
    folder = write_micro(tmp_path_factory.mktemp("roomy"))
    config = json.loads((folder / "config.json").read_text())
    config["vision"]["max_crops"] = 40
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_long_picture_and_a_square_one_of_many_tiles(vlm, roomy_folder):
    with gapless.load(roomy_folder) as roomy:
        for model, image, crops in ((vlm, LONG, 17), (roomy, pixels(300, 300), 37), (roomy, LONG, 54)):
            encoded = model.encode_image(image)
            assert encoded.picture.crops.shape[0] == crops
            answer = told(model.caption(encoded, settings=COLD))
            assert answer["caption"] and answer == told(model.caption(image, settings=COLD))
            assert isinstance(model.point(image, "dog", {"max_objects": 2})["points"], list)
            idle(model)
        other = LONG.copy()
        other[:, -200:] = 255 - other[:, -200:]  # the last tiles are seen as well
        bare = [m.desk.encode(i).picture for m in (roomy,) for i in (LONG, other)]
        assert not np.array_equal(bare[0].crops[-1], bare[1].crops[-1])


@pytest.mark.slow
def test_the_longest_picture_fits_in_the_arena_of_a_process(micro_folder):
    """One row: room for five usual pictures is less than for the longest."""
    limits = ImageLimits(max_pixels=4_000_000)
    longest = pixels(57, 70_000, seed=3)
    with gapless.load(micro_folder, max_rows=1) as here:
        right = told(here.caption(longest, settings=COLD))
        crops = here.encode_image(longest).picture.crops
    assert len(crops) > 70 > 5 * 5
    with gapless.load(micro_folder, device="cpu", process=True, max_rows=1, image_limits=limits) as there:
        assert told(there.caption(longest, settings=COLD)) == right


def test_a_picture_encoded_for_a_gpu_is_cut_for_a_model_on_a_cpu(vlm):
    pictures = (pixels(90, 130), pixels(300, 30), pixels(20, 20))
    there = [EncodedImage(prepare(p, vlm.desk._crops, device_cuts=True), vlm.desk._crops) for p in pictures]
    assert all(image.picture.uncut for image in there)
    assert [vlm.encode_image(image).picture.uncut for image in there] == [False] * 3
    for image, picture in zip(there, pictures, strict=True):
        assert told(vlm.caption(image, settings=COLD)) == told(vlm.caption(picture, settings=COLD))
