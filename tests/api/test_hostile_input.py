"""Hostile pictures and prompts through the library: the documented result or an error with a remedy, in that request
only. After each of them the same ordinary request, with the same answer as before."""

import io
import struct
import zlib
from functools import cache

import numpy as np
import pytest
from PIL import Image
from tests.api.asking import WARM, told
from tests.api.conftest import noise

from gapless import errors

ORDINARY = WARM | {"seed": 11}
SMALL = {"temperature": 0, "max_tokens": 2}


@pytest.fixture(scope="module")
def usual(vlm):
    return told(vlm.query(noise(5), "What is here?", settings=ORDINARY))


@pytest.fixture(autouse=True)
def the_next_ordinary_request_succeeds(vlm, usual):
    yield
    assert told(vlm.query(noise(5), "What is here?", settings=ORDINARY)) == usual


def encoded(image, kind, **options):
    data = io.BytesIO()
    image.save(data, kind, **options)
    return data.getvalue()


def rgb(height=24, width=16):
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([8 * x, 9 * y, 255 - 4 * x - 4 * y], axis=2).astype(np.uint8)


@cache
def bomb():
    """A one-colour PNG of 30000 x 30000, some hundred kilobytes."""

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 30000, 30000, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(3751 * 30000), 1)) + chunk(b"IEND", b"")


def cut(data, part):
    return data[: int(len(data) * part)]


PICTURE = Image.fromarray(noise(6))
JPEG, PNG = encoded(PICTURE, "JPEG", quality=90), encoded(PICTURE, "PNG")


# -- pictures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "picture",
    [
        *(
            pytest.param(noise(1, h, w), id=f"S-IMG-06 {w}x{h}")
            for h, w in [(1, 1), (3, 3), (2, 3), (1, 4000), (4000, 1)]
        ),
        *(pytest.param(noise(1, h, w), id=f"S-IMG-13 {w}x{h}") for h, w in [(56, 300), (300, 56), (600, 58)]),
        *(
            pytest.param(encoded(PICTURE.convert(mode), kind), id=f"S-IMG-11 {mode}")
            for mode, kind in [
                ("1", "PNG"),
                ("L", "PNG"),
                ("LA", "PNG"),
                ("P", "PNG"),
                ("CMYK", "TIFF"),
                ("YCbCr", "JPEG"),
            ]
        ),
        pytest.param(encoded(Image.fromarray(rgb()[..., 0].astype(np.uint16) * 256), "PNG"), id="S-IMG-11 I;16"),
        pytest.param(Image.fromarray(rgb()[..., 0].astype(np.float32)), id="S-IMG-11 F"),
        pytest.param(encoded(PICTURE.quantize(16), "PNG", transparency=0), id="S-IMG-11 P with transparency"),
        pytest.param(encoded(PICTURE, "WEBP", quality=80), id="S-IMG-04 lossy"),
        pytest.param(encoded(PICTURE, "WEBP", lossless=True), id="S-IMG-04 lossless"),
        pytest.param(
            encoded(PICTURE, "WEBP", save_all=True, append_images=[PICTURE.rotate(90)]), id="S-IMG-04 animated"
        ),
    ],
)
def test_odd_pictures_are_answered(vlm, picture):
    result = vlm.caption(picture, settings=SMALL)
    assert result["metrics"]["input_tokens"] == 17 + 4 + len("normal"), "the picture is part of the prompt"
    assert told(vlm.caption(vlm.encode_image(picture), settings=SMALL)) == told(result)


@pytest.mark.parametrize(
    "picture",
    [
        pytest.param(b"", id="zero bytes"),
        *(pytest.param(cut(JPEG, part), id=f"S-IMG-05 JPEG {part}") for part in (0.01, 0.5, 0.99)),
        *(pytest.param(cut(PNG, part), id=f"S-IMG-05 PNG {part}") for part in (0.01, 0.5, 0.99)),
        pytest.param(JPEG[:-128], id="S-IMG-05 JPEG tail"),
        pytest.param(bomb(), id="S-IMG-07"),
        pytest.param("data:image/png;base64,AAAA", id="S-IMG-08"),
        pytest.param("https://example.com/x.png", id="S-IMG-10"),
        pytest.param(b"<html><title>404</title></html>", id="S-IMG-10 page"),
        pytest.param(b"\x00\x00\x00\x18ftypheic" + bytes(64), id="S-IMG-12"),
        pytest.param("/", id="folder"),
        pytest.param("nowhere.png", id="missing"),
        pytest.param(np.zeros((3, 8, 8, 3), np.uint8), id="video"),
        pytest.param(np.zeros((8, 8, 3)), id="floats"),
        pytest.param(np.zeros((0, 8, 3), np.uint8), id="no rows"),
        pytest.param(17, id="number"),
        pytest.param({"image_url": "x"}, id="dict"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_picture_is_refused_at_once(vlm, picture, stream):
    before = vlm.stats()
    with pytest.raises(errors.InvalidImage) as refused:
        vlm.caption(picture, stream=stream)
    assert refused.value.param == "image" and len(str(refused.value)) < 500
    assert vlm.stats()["prefill_steps"] == before["prefill_steps"]


def test_s_img_01_orientation_is_applied_in_every_form(vlm, tmp_path):
    turned = Image.fromarray(rgb())
    exif = turned.getexif()
    exif[0x0112] = 6
    data = encoded(turned, "JPEG", exif=exif, quality=100)
    (tmp_path / "p.jpg").write_bytes(data)
    upright = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").transpose(Image.Transpose.ROTATE_270))
    forms = [data, tmp_path / "p.jpg", Image.open(io.BytesIO(data)), upright]
    encodings = [vlm.encode_image(form).picture for form in forms]
    assert {(e.width, e.height) for e in encodings} == {(24, 16)}
    assert len({e.digest for e in encodings}) == 1
    assert len({str(told(vlm.caption(form, settings=SMALL))) for form in forms}) == 1


def test_s_img_02_and_03_alpha_lies_on_white_whatever_is_hidden_under_it(vlm):
    alpha = np.zeros((24, 16), np.uint8)
    alpha[8:16, 4:12] = 255
    hidden = [np.dstack([np.where(alpha[..., None] > 0, rgb(), junk), alpha]) for junk in (rgb()[::-1], 7 * rgb())]
    white = np.where(alpha[..., None] > 0, rgb(), 255).astype(np.uint8)
    forms = [white]
    for pixels in hidden:
        image = Image.fromarray(pixels.astype(np.uint8), "RGBA")
        forms += [image, encoded(image, "PNG"), encoded(image, "WEBP", lossless=True, exact=True)]
    assert len({vlm.encode_image(form).picture.digest for form in forms}) == 1


# -- prompts ---------------------------------------------------------------------------------------------------------

SPECIAL = ["<|endoftext|>", *(f"<|md_reserved_{i}|>" for i in range(20))]


@pytest.mark.parametrize("text", SPECIAL)
def test_s_tok_01_control_strings_are_text(vlm, text):
    """Typed letters: as many ids as letters, so none of them was taken for a control id."""
    settings = {"temperature": 0, "max_tokens": 1}
    plain = vlm.query(question="?", settings=settings)["metrics"]["input_tokens"] - 1
    asked = vlm.desk.ask(None, vlm.desk.query(text, settings, False, None)).prompt.ids
    assert set(asked[4:-2]).isdisjoint(range(21))
    assert vlm.query(question=text, settings=settings)["metrics"]["input_tokens"] == len(asked) > plain + 8
    assert vlm.detect(noise(5), text, settings={"max_objects": 1})["objects"] is not None


@pytest.mark.parametrize("text", ["", "   ", "\n", "\t \n", "\ud800", "a\udfffb"], ids=ascii)
@pytest.mark.parametrize("stream", [False, True])
def test_s_tok_02_and_04_empty_and_broken_texts_are_refused(vlm, text, stream):
    with pytest.raises(errors.InvalidRequest, match=r"empty|surrogate"):
        vlm.query(noise(5), text, stream=stream)
    for skill in (vlm.detect, vlm.point, vlm.segment):
        with pytest.raises(errors.InvalidRequest, match=r"empty|surrogate"):
            skill(noise(5), text)


def test_s_tok_03_the_context_is_used_to_its_last_token_and_not_beyond(vlm):
    settings = {"temperature": 0, "max_tokens": 4}
    room = 192 - 1 - 3 - 2 - 4  # context, BOS, template prefix and suffix, answer
    before = vlm.stats()["failed"]
    assert "answer" in vlm.query(question="x" * room, settings=settings)
    for over in (1, 100, 100_000):
        with pytest.raises(errors.PromptTooLong, match="context"):
            vlm.query(question="x" * (room + over), settings=settings)
    assert vlm.stats()["failed"] == before, "refused before the engine saw them"


def test_s_tok_07_text_that_a_byte_count_would_cut_in_a_character(vlm):
    for length in (90, 91, 92, 93):
        assert "answer" in vlm.query(question="x" * length + "漢🙂", settings=SMALL)


def test_s_tok_08_a_picture_sent_as_text_is_refused_unread(vlm):
    with pytest.raises(errors.PromptTooLong):
        vlm.query(question="data:image/png;base64," + "iVBORw0K" * 4_000_000)


@pytest.mark.parametrize(
    "refs", [[[0.5]], [[0.5, 2.0]], [[0.9, 0.1, 0.1, 0.9]], [[float("nan"), 0.5]], "ab", [0.5, 0.5]]
)
def test_spatial_references_that_are_none(vlm, refs):
    with pytest.raises(errors.InvalidRequest, match="spatial_refs"):
        vlm.point(noise(5), "dog", spatial_refs=refs)


def test_spatial_references_without_a_picture(vlm):
    with pytest.raises(errors.InvalidRequest, match="picture"):
        vlm.query(question="here?", spatial_refs=[[0.5, 0.5]])
