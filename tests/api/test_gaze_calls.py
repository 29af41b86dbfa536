"""`detect_gaze` of both libraries on a micro model: one eye, a face, force, and what is cancelled."""

import asyncio

import pytest
from safetensors.torch import load_file, save_file
from tests.api.asking import idle, told
from tests.fakes.micro import write_micro

import gapless
from gapless import AsyncVLM
from gapless.errors import GaplessError, InvalidRequest, RequestTimeout
from gapless.images.picture import mirrored
from gapless.models.moondream.weights_map import PREFIX
from gapless.skills.gaze import gathered, looks

FACE = {"x_min": 0.25, "y_min": 0.125, "x_max": 0.5, "y_max": 0.375}
CAREFUL = {"prioritize_accuracy": True}
FORCED = CAREFUL | {"force_detect": True}


@pytest.fixture(scope="module")
def vlm(tmp_path_factory):
    """A micro model to which an eye's place matters, and which knows about every second time where that looks."""
    folder = write_micro(tmp_path_factory.mktemp("gaze"), end_bias=0.0)
    tensors = load_file(folder / "model.safetensors")
    tensors[PREFIX + "region.coord_encoder.weight"] *= 20
    save_file(tensors, folder / "model.safetensors")
    with gapless.load(folder) as vlm:
        yield vlm


def well_formed(gaze):
    return gaze is None or (set(gaze) == {"x", "y"} and all(0 <= v <= 1 for v in gaze.values()))


def test_from_an_eye(vlm, pictures):
    eyes = [(image, (0.1 * i, 0.5)) for i in range(1, 4) for image in pictures]
    results = [vlm.detect_gaze(image, eye=eye) for image, eye in eyes]
    assert all(well_formed(result["gaze"]) and result["metrics"]["input_tokens"] > 17 for result in results)
    gazes = [result["gaze"] for result in results]
    assert None in gazes and any(gazes)
    assert {result["finish_reason"] for result in results} == {"stop"}  # one place is all that is asked for
    for (image, eye), gaze in zip(eyes, gazes, strict=True):
        forced = vlm.detect_gaze(image, eye, None, {"force_detect": True})["gaze"]
        assert forced is not None and well_formed(forced)
        assert gaze is None or forced == gaze


def test_from_a_face_it_is_the_mean_of_twenty_questions(vlm, pictures):
    image = vlm.encode_image(pictures[0])
    other = type(image)(mirrored(image.picture), image.crops)
    seen = looks(None, FACE, FORCED, {"seed": 3})
    force = {"force_detect": True}
    singles = [vlm.detect_gaze(image, eye, None, force) for eye in seen.eyes]
    singles += [vlm.detect_gaze(other, eye, None, force) for eye in seen.mirrored]
    assert len({(s["gaze"]["x"], s["gaze"]["y"]) for s in singles}) > 2
    result = vlm.detect_gaze(pictures[0], face=FACE, unstable_settings=FORCED, settings={"seed": 3})
    assert result == gathered(singles) and well_formed(result["gaze"]) and result["gaze"]
    assert vlm.detect_gaze(pictures[0], None, FACE, FORCED, {"seed": 4}) != result
    assert well_formed(vlm.detect_gaze(pictures[0], None, FACE, CAREFUL)["gaze"])
    idle(vlm)


def test_tasks_get_the_same(vlm, pictures):
    async def ask():
        model = AsyncVLM(vlm)
        one = await model.detect_gaze(pictures[1], (0.25, 0.5))
        return told(one), await model.detect_gaze(pictures[1], None, FACE, FORCED, {"seed": 5})

    one, many = asyncio.run(ask())
    assert one == told(vlm.detect_gaze(pictures[1], (0.25, 0.5)))
    assert many == vlm.detect_gaze(pictures[1], None, FACE, FORCED, {"seed": 5})


def test_what_is_refused(vlm, pictures):
    for arguments, param in (
        ((pictures[0],), "eye"),
        ((pictures[0], (0.5, 2)), "eye"),
        ((pictures[0], None, None, CAREFUL), "face"),
        ((pictures, (0.5, 0.5)), "image"),
        ((None, (0.5, 0.5)), "image"),
        ((pictures[0], (0.5, 0.5), None, {"flip_enc_img": pictures[1]}), "unstable_settings"),
    ):
        with pytest.raises(InvalidRequest) as raised:
            vlm.detect_gaze(*arguments)
        assert raised.value.param == param
    with pytest.raises(RequestTimeout):
        vlm.detect_gaze(pictures[0], None, FACE, CAREFUL, {"timeout": 1e-6})
    with pytest.raises(GaplessError):
        asyncio.run(AsyncVLM(vlm).detect_gaze(pictures[0], None, FACE, CAREFUL, {"timeout": 1e-6}))
    idle(vlm)
