"""Draw where people look: of each frame the faces, and of each face a line to what it looks at.

    python examples/gaze_on_video.py party.mp4 out/ --model vikhyatk/moondream2 --every 5

All faces of a frame are asked about at once. The bundled model knows neither faces nor gazes: take Moondream 2.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from frames import Frame, frames
from PIL import Image, ImageDraw
from terminal import count, run

import gapless

Box = dict[str, float]
Point = dict[str, float]


def gaze_of(vlm: gapless.VLM, frame: Frame, face: Box) -> Point | None:
    """Where this face looks, 0 to 1 of width and height; None if that is not in the picture."""
    eye = ((face["x_min"] + face["x_max"]) / 2, (face["y_min"] + face["y_max"]) / 2)
    gaze: Point | None = vlm.detect_gaze(frame, eye=eye)["gaze"]
    return gaze


def drawn(frame: Frame, faces: Sequence[Box], gazes: Sequence[Point | None]) -> Image.Image:
    """The frame with a box around each face and a line to where it looks."""
    picture = Image.fromarray(frame)
    width, height = picture.size
    pen = ImageDraw.Draw(picture)
    for face, gaze in zip(faces, gazes, strict=True):
        corners = (face["x_min"] * width, face["y_min"] * height, face["x_max"] * width, face["y_max"] * height)
        pen.rectangle(corners, outline="yellow", width=2)
        if gaze is not None:
            middle = ((corners[0] + corners[2]) / 2, (corners[1] + corners[3]) / 2)
            pen.line((middle, (gaze["x"] * width, gaze["y"] * height)), fill="yellow", width=3)
    return picture


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Draw where the people of a video look.")
    parser.add_argument("source", help="a camera's number, a video or a folder of pictures")
    parser.add_argument("out", type=Path, help="a folder for the frames")
    parser.add_argument("--every", type=count, default=1, help="take every so many-th frame")
    parser.add_argument("--person", default="face", help="what to detect")
    parser.add_argument("--model", default="vikhyatk/moondream2", help="a name, a hub id or a folder")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    with gapless.load(options.model) as vlm, ThreadPoolExecutor(16) as pool:
        for number, frame in enumerate(frames(options.source)):
            if number % options.every == 0:
                faces = vlm.detect(frame, options.person)["objects"]
                gazes = list(pool.map(partial(gaze_of, vlm, frame), faces))
                file = options.out / f"{number:06}.png"
                drawn(frame, faces, gazes).save(file)
                print(f"{file}: {len(faces)} faces, {sum(gaze is not None for gaze in gazes)} gazes", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
