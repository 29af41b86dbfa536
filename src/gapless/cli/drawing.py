"""Where `--draw` writes, and what: points, boxes, outlines and gazes on the picture, answers and captions under it.

In: the option's text and the pictures' names. Out: one path a picture, no two the same; written files. Checked before
anything is asked: a picture format Pillow can write, and for several pictures a folder or a pattern.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import typer
from PIL import Image

from gapless.bench.asks import Ask, Result
from gapless.errors import GaplessError
from gapless.images.decode import RGB
from gapless.images.draw import draw_boxes, draw_gaze, draw_outline, draw_points, draw_text

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
NAME = "{name}"


def plan_files(wanted: str, pictures: Sequence[str]) -> list[Path]:
    """A file for each picture. `wanted` is a file, a folder (it exists or ends with a slash), or a pattern with {name}.

    In a folder, and for {name}, a file takes its picture's name without its ending; where two pictures share one, the
    later ones get -2, -3 and so on. Raises a usage error for a format that cannot be written, for one plain file and
    several pictures, where there is no picture to draw on, and where a file would replace one of the pictures.
    """
    if not pictures:
        raise typer.BadParameter("--draw draws on a picture, and none was given")
    is_folder = wanted.endswith(("/", os.sep)) or _is_folder(Path(wanted))
    pattern = str(Path(wanted) / f"{NAME}.png") if is_folder else wanted
    if len(pictures) > 1 and NAME not in pattern:
        raise typer.BadParameter(
            f"--draw {wanted!r} is one file for {len(pictures)} pictures; name a folder with a slash at its end, "
            f"or a pattern such as 'drawn-{NAME}.png'"
        )
    if Path(pattern).suffix.lower() not in FORMATS:
        raise typer.BadParameter(f"--draw {wanted!r} must end with one of {', '.join(FORMATS)}, or be a folder")
    files = [Path(pattern.replace(NAME, name)) for name in _distinct(pictures)]
    lost = next((picture for picture in pictures if any(_same(file, Path(picture)) for file in files)), None)
    if lost is not None:
        raise typer.BadParameter(f"--draw {wanted!r} would write over the picture {lost!r}; name another place")
    return files


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # longer than any path: writing will say so
        return False


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:  # one of them is not there
        return False


def _distinct(pictures: Sequence[str]) -> list[str]:
    """Each picture's bare name, numbered from the second of a kind on."""
    names: dict[str, None] = {}
    for picture in pictures:
        bare = "stdin" if picture == "-" else Path(picture).stem
        name, count = bare, 1
        while name in names:
            count += 1
            name = f"{bare}-{count}"
        names[name] = None
    return list(names)


def draw_answer(ask: Ask, result: Result, image: RGB, path: Path) -> Path:
    """Draw a result on its upright picture and write it, making the folder. Returns the path."""
    return write_picture(_drawn(ask, result, Image.fromarray(image)), path)


def make_folder(folder: Path) -> None:
    """Make a folder that can be written to. Raises `GaplessError` where that fails."""
    with _told(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):  # permissions alone do not say whether a disk is read-only
            pass


def make_place(path: Path) -> None:
    """Make the folder of a file that will be written. Raises `GaplessError` where that fails, or if `path` is a folder
    itself."""
    if _is_folder(path):
        raise GaplessError(f"cannot write {str(path)!r}: it is a folder; name a file in it")
    make_folder(path.parent)


def write_picture(picture: Image.Image, path: Path) -> Path:
    """Write a picture in the format of its name, making the folder. Raises `GaplessError` where that fails."""
    with _told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, FORMATS[path.suffix.lower()])
    return path


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GaplessError(f"cannot write {str(path)!r}: {error.strerror or error}; name another place") from error


def _drawn(ask: Ask, result: Result, picture: Image.Image) -> Image.Image:
    match ask.skill:
        case "point":
            return draw_points(picture, result["points"], ask.text)
        case "detect":
            return draw_boxes(picture, result["objects"], ask.text)
        case "segment":
            bbox: Mapping[str, float] | None = result["bbox"]
            return draw_outline(picture, result["path"], bbox, ask.text)
        case "gaze":
            return draw_gaze(picture, (ask.spatial_refs or [[]])[0], result["gaze"])
        case "query":
            return draw_text(picture, f"{ask.text}\n{result['answer'].strip()}")
        case "caption":
            return draw_text(picture, result["caption"].strip())
