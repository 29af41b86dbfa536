"""Every form and mode of a picture gives the same upright RGB pixels."""

import io
import threading
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from gapless.config import ImageLimits
from gapless.images.decode import load_picture

LIMITS = ImageLimits()


def pixels(source):
    found = load_picture(source, LIMITS)
    assert found.dtype == np.uint8
    assert found.ndim == 3
    assert found.shape[2] == 3
    return found


def gap(a, b):
    return float(np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).mean())


def with_orientation(image, value):
    exif = Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_s_img_01_orientation_is_applied(master, save, tmp_path, kind, orientation):
    """S-IMG-01: every path yields the pixels a viewer shows."""
    options = {"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    data = save(master, kind, exif=with_orientation(master, orientation), **options)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert expected.shape[:2] == ((48, 32) if orientation > 4 else (32, 48))
    path = tmp_path / f"picture.{kind}"
    path.write_bytes(data)
    for source in (data, path, str(path), bytearray(data), memoryview(data), Image.open(io.BytesIO(data))):
        assert np.array_equal(pixels(source), expected)


def test_s_img_01_example_of_the_report(save):
    """S-IMG-01: a 24 x 16 gradient tagged orientation 6 is 16 wide and 24 high, its left edge on top."""
    ramp = Image.fromarray(np.repeat(np.arange(24, dtype=np.uint8)[None, :, None] * 10, 16, axis=0).repeat(3, axis=2))
    found = pixels(save(ramp, "PNG", exif=with_orientation(ramp, 6)))
    assert found.shape == (24, 16, 3)
    assert np.array_equal(found[:, 0, 0], np.arange(24) * 10)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_orientation_does_not_refuse_sound_pixels(master, save):
    data = save(master, "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff\xff\xff")
    assert np.array_equal(pixels(data), np.asarray(master))
    for value in (0, 9, 77):
        assert np.array_equal(pixels(save(master, "PNG", exif=with_orientation(master, value))), np.asarray(master))


def sources(master, save):
    """Files that need normalising, each with a numpy array of the pixels that Pillow decodes where it has that form."""
    rgba = master.convert("RGBA")
    rgba.putalpha(Image.fromarray(np.tile(np.linspace(0, 255, 48).astype(np.uint8), (32, 1))))
    return {
        "rgb": (save(master, "PNG"), np.asarray(master)),
        "rgba": (save(rgba, "PNG"), np.asarray(rgba)),
        "grey": (save(master.convert("L"), "PNG"), np.asarray(master.convert("L"))),
        "jpeg turned": (save(master, "JPEG", exif=with_orientation(master, 8)), None),
        "palette": (save(master.quantize(16), "PNG"), None),
        "grey alpha": (save(rgba.convert("LA"), "PNG"), None),
        "webp": (save(rgba, "WEBP", lossless=True, exact=True), None),
    }


@pytest.mark.parametrize("name", ["rgb", "rgba", "grey", "jpeg turned", "palette", "grey alpha", "webp"])
def test_s_img_02_every_input_form_gives_the_same_pixels(master, save, tmp_path, name):
    """S-IMG-02: path, bytes, Pillow image and array of one picture are equal byte for byte."""
    data, array = sources(master, save)[name]
    path = tmp_path / "picture"
    path.write_bytes(data)
    first = pixels(data)
    opened, loaded = Image.open(io.BytesIO(data)), Image.open(path)
    loaded.load()
    for source in (path, str(path), bytearray(data), memoryview(data), opened, loaded, first):
        assert np.array_equal(pixels(source), first)
    if array is not None:
        assert np.array_equal(pixels(array), first)


def test_the_source_is_neither_changed_nor_shared(master):
    image = master.copy()
    image.info["exif"] = with_orientation(master, 6)
    before = image.tobytes()
    found = pixels(image)
    found[:] = 0
    assert image.tobytes() == before
    assert image.info["exif"] == with_orientation(master, 6)
    array = np.zeros((4, 5, 3), dtype=np.uint8)
    pixels(array)[:] = 7
    assert not array.any()


def hidden(seed):
    """Alpha 0 over random colours, an opaque red square in the middle."""
    rgba = np.random.default_rng(seed).integers(0, 256, (20, 20, 4), dtype=np.uint8)
    rgba[:, :, 3] = 0
    rgba[6:14, 6:14] = (200, 10, 20, 255)
    return rgba


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "array", "image"])
def test_s_img_03_alpha_lies_on_white_whatever_hides_under_it(save, kind):
    """S-IMG-03: two pictures that differ only under alpha 0 are equal, and white there."""
    found = []
    for seed in (1, 2):
        rgba = hidden(seed)
        image = Image.fromarray(rgba)
        options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
        source = {"array": rgba, "image": image}.get(kind)
        found.append(pixels(save(image, kind, **options) if source is None else source))
    assert np.array_equal(found[0], found[1])
    assert (found[0][0, 0] == 255).all()
    assert found[0][10, 10].tolist() == [200, 10, 20]


def test_s_img_03_half_transparent_is_a_blend():
    """S-IMG-03: alpha in between mixes with white."""
    rgba = np.full((1, 1, 4), (0, 100, 200, 128), dtype=np.uint8)
    assert np.abs(pixels(rgba)[0, 0].astype(int) - [127, 177, 227]).max() <= 1


def test_s_img_04_webp_lossy_lossless_and_animated(master, save):
    """S-IMG-04: all three kinds of WebP are decoded; of an animation the first frame counts."""
    assert gap(pixels(save(master, "WEBP", quality=95)), master) < 4
    assert np.array_equal(pixels(save(master, "WEBP", lossless=True)), np.asarray(master))
    frames = [ImageOps.invert(master), Image.new("RGB", master.size, (9, 9, 9))]
    data = save(master, "WEBP", lossless=True, save_all=True, append_images=frames)
    assert b"ANMF" in data
    assert np.array_equal(pixels(data), np.asarray(master))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF"])
def test_animations_and_pages_give_their_first_frame(master, save, kind):
    others = [ImageOps.invert(master), Image.new("RGB", master.size, (9, 9, 9))]
    data = save(master, kind, save_all=True, append_images=others)
    assert Image.open(io.BytesIO(data)).n_frames == 3
    assert gap(pixels(data), master) < 6


@pytest.mark.parametrize(("height", "width"), [(h, w) for h in range(1, 5) for w in range(1, 5)])
def test_s_img_06_tiny_pictures_are_ordinary(save, height, width):
    """S-IMG-06: no guess at the layout for shapes in which channels might come first."""
    rgb = np.random.default_rng(height * 5 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(pixels(rgb), rgb)
    assert np.array_equal(pixels(save(Image.fromarray(rgb), "PNG")), rgb)
    grey = rgb[:, :, 0].copy()
    assert np.array_equal(pixels(grey), np.repeat(grey[:, :, None], 3, axis=2))
    rgba = np.dstack([rgb, np.full((height, width), 255, dtype=np.uint8)])
    assert np.array_equal(pixels(rgba), rgb)


@pytest.mark.parametrize("size", [(1, 4000), (4000, 1), (2, 3)])
def test_long_thin_pictures(save, size):
    image = Image.new("RGB", size, (10, 20, 30))
    assert pixels(save(image, "PNG")).shape == (size[1], size[0], 3)


def as_modes(master, save):
    """The master in every mode of S-IMG-11: source and how far it may be from its own RGB form."""
    grey = np.asarray(master.convert("L"))
    rgb = np.asarray(master)
    deep = Image.fromarray(grey.astype(np.uint16) * 257)
    flat = np.repeat(grey[:, :, None], 3, axis=2)
    bits = (grey > 127).astype(np.uint8) * 255
    opaque = master.convert("RGBA")
    return {
        "1": (Image.fromarray(bits).convert("1"), np.repeat(bits[:, :, None], 3, axis=2), 0),
        "L": (master.convert("L"), flat, 0),
        "LA": (opaque.convert("LA"), flat, 0),
        "La": (opaque.convert("LA").convert("La"), flat, 1),
        "P": (master.quantize(256), rgb, 6),
        "PA": (master.quantize(256).convert("PA"), rgb, 6),
        "RGBa": (opaque.convert("RGBa"), rgb, 1),
        "RGBX": (master.convert("RGBX"), rgb, 0),
        "I;16": (deep, flat, 0),
        "I;16 png": (save(deep, "PNG"), flat, 0),
        "I;16 tiff": (save(deep, "TIFF"), flat, 0),
        "I;16B": (Image.fromarray(grey.astype(">u2") * 257), flat, 0),
        "I deep": (Image.fromarray(grey.astype(np.int32) * 257), flat, 0),
        "I shallow": (master.convert("L").convert("I"), flat, 0),
        "F 0..1": (Image.fromarray(grey.astype(np.float32) / 255), flat, 0),
        "F 0..255": (save(master.convert("L").convert("F"), "TIFF"), flat, 0),
        "F 0..65535": (Image.fromarray(grey.astype(np.float32) * 257), flat, 0),
        "CMYK": (master.convert("CMYK"), rgb, 1),
        "CMYK jpeg": (save(master.convert("CMYK"), "JPEG", quality=95), rgb, 4),
        "CMYK tiff": (save(master.convert("CMYK"), "TIFF"), rgb, 1),
        "YCbCr": (master.convert("YCbCr"), rgb, 2),
        "YCbCr jpeg": (save(master, "JPEG", quality=95), rgb, 3),
        "HSV": (master.convert("HSV"), rgb, 6),
        "LAB": (master.convert("LAB"), rgb, 6),
    }


MODES = (
    *("1", "L", "LA", "La", "P", "PA", "RGBa", "RGBX", "CMYK", "CMYK jpeg", "CMYK tiff", "YCbCr", "YCbCr jpeg"),
    *("HSV", "LAB", "I;16", "I;16 png", "I;16 tiff", "I;16B", "I deep", "I shallow", "F 0..1", "F 0..255"),
    "F 0..65535",
)


@pytest.mark.parametrize("name", MODES)
def test_s_img_11_all_modes_become_8_bit_rgb(master, save, name):
    """S-IMG-11: 16 bits are scaled, not clipped to white; CMYK is not inverted."""
    source, expected, bound = as_modes(master, save)[name]
    assert gap(pixels(source), expected) <= bound


def test_the_table_of_modes_is_complete(master, save):
    assert set(MODES) == set(as_modes(master, save))


def test_s_img_11_adobe_cmyk_keeps_its_marker_and_its_colours(save):
    """S-IMG-11: an Adobe CMYK JPEG stores inverted inks; red stays red, paper stays white."""
    rgb = np.full((16, 16, 3), 255, dtype=np.uint8)
    rgb[:, :8] = (230, 10, 10)
    data = save(Image.fromarray(rgb).convert("CMYK"), "JPEG", quality=95, subsampling=0)
    assert b"Adobe" in data[:64]
    found = pixels(data)
    assert np.abs(found[8, 2].astype(int) - (230, 10, 10)).max() < 12
    assert found[8, 13].min() > 245


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_palette_transparency_becomes_white(save, kind):
    image = Image.new("P", (8, 8), 0)
    image.putpalette([255, 0, 0, 0, 0, 255] + [0] * 762)
    image.paste(1, (0, 0, 4, 8))
    found = pixels(save(image, kind, transparency=0))
    assert found[0, 0].tolist() == [0, 0, 255]
    assert found[0, 7].tolist() == [255, 255, 255]


def test_palette_with_an_alpha_per_entry(save):
    image = Image.new("P", (3, 1))
    image.putpalette([0, 0, 0, 0, 0, 0, 0, 0, 0] + [0] * 759)
    image.putdata([0, 1, 2])
    found = pixels(save(image, "PNG", transparency=bytes([0, 128, 255])))
    assert [int(v) for v in found[0, :, 0]] == [255, 127, 0]


def test_colour_keys_of_png_become_white(save):
    rgb = Image.new("RGB", (2, 1), (1, 2, 3))
    rgb.putpixel((1, 0), (4, 5, 6))
    assert pixels(save(rgb, "PNG", transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [4, 5, 6]]]
    grey = Image.new("L", (2, 1), 7)
    grey.putpixel((1, 0), 9)
    assert pixels(save(grey, "PNG", transparency=7))[0, :, 0].tolist() == [255, 9]
    deep = Image.fromarray(np.array([[300, 40 * 257]], dtype=np.uint16))
    assert pixels(save(deep, "PNG", transparency=300))[0, :, 0].tolist() == [255, 40]


def test_deep_grey_of_odd_values():
    odd = Image.fromarray(np.array([[np.nan, np.inf, -np.inf, -3.0, 255.0]], dtype=np.float32))
    assert pixels(odd)[0, :, 0].tolist() == [0, 255, 0, 0, 255]
    huge = Image.fromarray(np.array([[0, 2**31 - 1, -5]], dtype=np.int32))
    assert pixels(huge)[0, :, 0].tolist() == [0, 255, 0]
    black = Image.fromarray(np.zeros((2, 2), dtype=np.float32))
    assert not pixels(black).any()


def test_our_limit_replaces_pillows_and_leaves_it_alone(master, save, monkeypatch):
    """S-IMG-07: neither Pillow's global limit nor its global warning has a say, in any thread."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("PNG", "JPEG", "BMP", "GIF"):
            assert pixels(save(master, kind)).shape == (32, 48, 3)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_threads_may_share_one_lazily_opened_image(master, save):
    data = save(master.resize((600, 400)), "PNG")
    expected = pixels(data)
    for _ in range(5):
        image = Image.open(io.BytesIO(data))
        found, gate = [None] * 8, threading.Barrier(8)

        def load(i, image=image, found=found, gate=gate):
            gate.wait()
            found[i] = load_picture(image, LIMITS)

        threads = [threading.Thread(target=load, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(np.array_equal(f, expected) for f in found)
