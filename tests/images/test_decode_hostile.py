"""Pictures that must be refused: with the reason and the remedy, at no cost, and never with a guess."""

import io
import os
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gapless.config import ImageLimits
from gapless.errors import InvalidImage, InvalidRequest
from gapless.images import formats
from gapless.images.decode import load_picture

LIMITS = ImageLimits()
SOURCE = Path(__file__).resolve().parents[2] / "src"


def refusal(source, limits=LIMITS) -> str:
    with pytest.raises(InvalidImage) as caught:
        load_picture(source, limits)
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.status == 400
    assert caught.value.param == "image"
    assert len(str(caught.value)) < 500
    return str(caught.value)


def noisy(width=160, height=120):
    """A picture that does not compress to nothing, so that a cut at half is a cut in the pixels."""
    return Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.parametrize("part", [0.01, 0.5, 0.99])
def test_s_img_05_cut_off_pictures_are_refused(save, tmp_path, kind, part):
    """S-IMG-05: no grey filling, for bytes, path and lazily opened image alike; the whole file still works."""
    data = save(noisy(), kind)
    cut = data[: int(len(data) * part)]
    text = refusal(cut)
    assert "damaged or cut off" in text or "unknown format" in text
    path = tmp_path / "cut"
    path.write_bytes(cut)
    refusal(path)
    try:
        opened = Image.open(io.BytesIO(cut))
    except (OSError, SyntaxError, ValueError):
        opened = None
    if opened is not None:
        refusal(opened)
    assert load_picture(data, LIMITS).shape == (120, 160, 3)


def test_s_img_05_examples_of_the_report(save):
    """S-IMG-05: a JPEG without its last 128 bytes, without its last half, and a PNG cut inside IDAT."""
    jpeg, png = save(noisy(), "JPEG"), save(noisy(), "PNG")
    for cut in (jpeg[:-128], jpeg[: len(jpeg) // 2], png[: png.index(b"IDAT") + 200]):
        assert "damaged or cut off" in refusal(cut)


def test_zero_bytes(tmp_path):
    assert "0 bytes" in refusal(b"")
    (tmp_path / "empty.png").write_bytes(b"")
    assert "0 bytes" in refusal(tmp_path / "empty.png")


def iso_media(*brands: bytes) -> bytes:
    return struct.pack(">I", 16 + 4 * (len(brands) - 1)) + b"ftyp" + brands[0] + b"\0\0\0\0" + b"".join(brands[1:])


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (iso_media(b"heic", b"mif1") + bytes(64), "HEIC"),
        (iso_media(b"mif1", b"mif1", b"heic") + bytes(64), "HEIC"),
        (iso_media(b"isom") + bytes(64), "container"),
        (b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(64), "JPEG 2000"),
        (b"8BPS" + bytes(64), "PSD"),
        (b"%PDF-1.7 " + bytes(64), "PDF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "EPS"),
        (b"  <svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"<!doctype html><title>404</title>", "HTML"),
        (b"\x00\x00\x01\x00\x01\x00" + bytes(64), "ICO"),
        (b"data:image/png;base64,iVBORw0KGgo=", "data URL"),
        (b"hello", "unknown format"),
        (bytes(1000), "unknown format"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_s_img_12_other_formats_are_named_with_the_accepted_ones(tmp_path, data, name):
    """S-IMG-12: also when the file's name says something else."""
    path = tmp_path / "picture.jpg"
    path.write_bytes(data)
    for source in (data, path):
        text = refusal(source)
        assert name in text
        assert "accepted" in text
        assert "PNG, JPEG, WEBP" in text


def test_s_img_12_avif_is_decoded_or_named(master, save, monkeypatch):
    """S-IMG-12: with the codec it works; without it the message names AVIF and does not offer it."""
    data = iso_media(b"avif", b"mif1") + bytes(64)
    if "AVIF" in {name for name, _, _ in formats.accepted()}:
        real = save(master, "AVIF", quality=95)
        assert np.abs(load_picture(real, LIMITS).astype(int) - np.asarray(master)).mean() < 4
        refusal(data)
    monkeypatch.setattr(Image, "OPEN", {k: v for k, v in Image.OPEN.items() if k != "AVIF"})
    text = refusal(data)
    assert "is AVIF" in text
    assert "AVIF" not in text.split("accepted")[1]


def test_a_codec_compiled_out_is_not_offered(monkeypatch):
    """Pillow's reader then answers its quick test with a sentence instead of True."""
    formats.accepted()
    stub = (Image.OPEN["PNG"][0], lambda prefix: "the AVIF codec is not installed")
    monkeypatch.setattr(Image, "OPEN", Image.OPEN | {"AVIF": stub})
    assert "AVIF" not in {name for name, _, _ in formats.accepted()}
    assert "is AVIF" in refusal(iso_media(b"avif") + bytes(64))


def png_of(width: int, height: int) -> bytes:
    """A one-colour PNG with one bit a pixel: as small as a bomb gets."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    row = bytes(1 + (width + 7) // 8)
    packer = zlib.compressobj(1)
    body = b"".join([*(packer.compress(row * 1000) for _ in range(height // 1000)), packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_s_img_07_a_decompression_bomb_costs_no_memory(tmp_path):
    """S-IMG-07: 30000 x 30000 is refused from its header, once and 20 at a time, in less memory than one row set."""
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of(30000, 30000))
    assert path.stat().st_size < 2_000_000
    script = f"""
        import resource, sys, threading
        sys.path.insert(0, {str(SOURCE)!r})
        from gapless.config import ImageLimits
        from gapless.errors import InvalidImage
        from gapless.images.decode import load_picture
        from PIL import Image
        data = open({str(path)!r}, "rb").read()
        seen = []
        def refuse(source):
            try:
                load_picture(source, ImageLimits())
            except InvalidImage as error:
                seen.append(str(error))
        refuse(b"warm up the readers")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        threads = [threading.Thread(target=refuse, args=(data,)) for _ in range(20)]
        [t.start() for t in threads], [t.join() for t in threads]
        import io
        Image.MAX_IMAGE_PIXELS = None
        refuse({str(path)!r}), refuse(Image.open(io.BytesIO(data)))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert len(seen) == 23 and all("30000 x 30000 = 900000000 pixels" in s for s in seen[1:]), seen
        print(grown)
    """
    env = os.environ | {"PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    kib = int(done.stdout) // (1024 if sys.platform == "darwin" else 1)
    assert kib < 60_000


def test_s_img_07_the_limit_is_configurable_and_exact(save):
    """S-IMG-07: exactly at the limit works, one pixel over does not; the message says the numbers and the remedy."""
    data = save(Image.new("RGB", (40, 30)), "PNG")
    assert load_picture(data, ImageLimits(max_pixels=1200)).shape == (30, 40, 3)
    text = refusal(data, ImageLimits(max_pixels=1199))
    assert "40 x 30 = 1200" in text
    assert "1199" in text
    assert "scale it down" in text
    for source in (np.zeros((30, 40, 3), np.uint8), Image.new("RGB", (40, 30))):
        refusal(source, ImageLimits(max_pixels=1199))


@pytest.mark.parametrize(
    "data",
    [
        b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0" + b"\xff\x3f\x00" * 2 + bytes(64),
        b"RIFF\x40\0\0\0WEBPVP8L\x20\0\0\0\x2f" + (0x3FFF | 0x3FFF << 14).to_bytes(4, "little") + bytes(64),
        b"RIFF\x40\0\0\0WEBPVP8 \x20\0\0\0\x30\x01\0\x9d\x01\x2a\xff\x3f\xff\x3f" + bytes(64),
    ],
    ids=["extended", "lossless", "lossy"],
)
def test_s_img_07_webp_is_judged_before_its_canvas_is_allocated(data):
    """S-IMG-07: the WebP reader allocates on opening, so its header is read here first."""
    assert "pixels, over the limit" in refusal(data)


def test_sizes_read_from_webp_headers_are_right(save):
    image = noisy(77, 55)
    for options in ({"quality": 80}, {"lossless": True}, {"save_all": True, "append_images": [noisy(77, 55)]}):
        assert formats.size_in_header(save(image, "WEBP", **options)) == (77, 55)
    assert formats.size_in_header(save(image.convert("RGBA"), "WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0")) == (77, 55)
    assert formats.size_in_header(save(image, "PNG")) is None
    assert formats.size_in_header(b"RIFF\0\0\0\0WEBPVP8 ") is None


def test_file_size_limit(save, tmp_path):
    data = save(noisy(), "PNG")
    path = tmp_path / "big.png"
    path.write_bytes(data)
    for source in (data, path):
        assert load_picture(source, ImageLimits(max_bytes=len(data))).shape == (120, 160, 3)
        assert "limit" in refusal(source, ImageLimits(max_bytes=len(data) - 1))


def test_s_sec_04_only_regular_files_are_read(tmp_path):
    """S-SEC-04: a folder, a FIFO and a device are refused at once, not read for ever."""
    os.mkfifo(tmp_path / "pipe.png")
    link = tmp_path / "zero.png"
    link.symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "pipe.png", "/dev/zero", link):
        assert "not a regular file" in refusal(path)


def test_paths_that_are_none(tmp_path):
    assert "No such file" in refusal(tmp_path / "missing.png")
    assert "cannot read" in refusal("a\0b.png")
    assert "cannot read" in refusal("x" * 5000)
    refusal("")
    assert "URL" in refusal("https://example.com/a.png")
    assert "URL" in refusal("data:image/png;base64," + "A" * 100_000)
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0:root:/root:/bin/sh\n")
    assert "root:x" not in refusal(secret)


@pytest.mark.parametrize(
    ("array", "remedy"),
    [
        (np.zeros((4, 5, 3), np.float32), ".astype(numpy.uint8)"),
        (np.zeros((4, 5, 3), np.int64), ".astype(numpy.uint8)"),
        (np.zeros((4, 5), np.bool_), ".astype(numpy.uint8)"),
        (np.zeros((4, 5), np.uint16), ".astype(numpy.uint8)"),
        (np.zeros((3, 40, 50), np.uint8), ".transpose(1, 2, 0)"),
        (np.zeros((1, 40, 50), np.uint8), ".transpose(1, 2, 0)"),
        (np.zeros((4, 5, 2), np.uint8), "[H, W, 3]"),
        (np.zeros((1, 4, 5, 3), np.uint8), "[H, W, 3]"),
        (np.zeros((7,), np.uint8), "[H, W, 3]"),
        (np.uint8(3) * np.ones((), np.uint8), "[H, W, 3]"),
        (np.zeros((0, 5, 3), np.uint8), "no pixels"),
        (np.zeros((5, 0), np.uint8), "no pixels"),
    ],
    ids=lambda v: str(getattr(v, "shape", "")),
)
def test_arrays_of_other_shapes_and_types_are_refused_with_the_remedy(array, remedy):
    assert remedy in refusal(array)


def test_strided_arrays_work():
    rgb = np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    assert np.array_equal(load_picture(rgb[::-1, ::2], LIMITS), rgb[::-1, ::2])
    assert np.array_equal(load_picture(np.asfortranarray(rgb), LIMITS), rgb)


NO_PICTURES = [None, 3, 2.5, [[1, 2]], {"image": 1}, object()]


@pytest.mark.parametrize("source", NO_PICTURES, ids=lambda source: type(source).__name__)
def test_things_that_are_no_pictures(source):
    assert type(source).__name__ in refusal(source)


def test_closed_and_empty_images(save, tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(save(noisy(), "PNG"))
    image = Image.open(path)
    image.close()
    refusal(image)
    refusal(Image.new("RGB", (0, 0)))


def test_after_every_refusal_the_next_picture_works(save):
    good = save(noisy(), "PNG")
    for bad in (
        b"",
        b"x",
        good[:99],
        b"GIF89a" + bytes(40),
        b"BM" + bytes(60),
        b"II*\0" + bytes(30),
        b"P6 9999 9999 255 ",
    ):
        refusal(bad)
        assert load_picture(good, LIMITS).shape == (120, 160, 3)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_random_bytes_behind_every_signature_raise_nothing_else(save):
    """Readers meet hostile bytes with all kinds of exceptions; one kind comes out."""
    rng = np.random.default_rng(5)
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"):
        data = bytearray(save(noisy(32, 24), kind))
        for _ in range(40):
            broken = bytearray(data)
            for at in rng.integers(4, len(data), 12):
                broken[at] = int(rng.integers(0, 256))
            try:
                found = load_picture(broken, ImageLimits(max_pixels=1_000_000))
            except InvalidImage:
                continue
            assert found.dtype == np.uint8


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_deep_grey_costs_little_more_than_its_pixels(mode):
    """A 16-bit picture of the largest size allowed once took gigabytes on its way to 8 bits."""
    side = 3000
    source = Image.new(mode, (side, side), 40000 if mode != "F" else 0.5)
    tracemalloc.start()
    try:
        rgb = load_picture(source, ImageLimits())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (rgb == (156 if mode != "F" else 128)).all()
    assert peak < 12 * side * side
