"""Frames from a camera, a video or a folder of pictures, for the examples beside this file.

In: `0` (a camera's number), a video's name, or a folder. Out: RGB arrays uint8 [height, width, 3]. Cameras and videos
are read by OpenCV (`pip install opencv-python-headless`); a folder needs nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from terminal import pictures_in

Frame = np.ndarray[Any, np.dtype[np.uint8]]
PICTURES_A_SECOND = 2.0
"""Of a folder that stands in for a camera."""


def frames(source: str, live: bool = False) -> Iterator[Frame]:
    """Every frame, in order; `live`: as a camera gives them, a video at its own rate and a folder two a second.

    Raises `SystemExit` with a remedy if the source cannot be read.
    """
    folder = Path(source)
    if folder.is_dir():
        yield from paced(pictures(folder), PICTURES_A_SECOND if live else None)
        return
    wrong = f"{source!r} cannot be opened; give a camera's number, a video or a folder of pictures"
    camera = source.isdigit()
    if not camera and "://" not in source and not folder.exists():
        raise SystemExit(wrong)
    try:
        import cv2
    except ImportError:
        raise SystemExit("cameras and videos need OpenCV: pip install opencv-python-headless") from None
    video = cv2.VideoCapture(int(source) if camera else source)
    if not video.isOpened():
        raise SystemExit(wrong)

    def read() -> Iterator[Frame]:
        while True:
            there, frame = video.read()
            if not there:
                return
            yield np.ascontiguousarray(frame[:, :, ::-1])  # OpenCV has blue first

    try:
        yield from paced(read(), video.get(cv2.CAP_PROP_FPS) if live and not camera else None)
    finally:
        video.release()


def pictures(folder: Path) -> Iterator[Frame]:
    """The pictures of a folder, by name. One that cannot be read is told and passed over, as a camera drops a frame."""
    for file in pictures_in(folder):
        try:
            with Image.open(file) as picture:
                frame = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
        except OSError as error:
            print(f"{file} is passed over: {error}", file=sys.stderr)
            continue
        yield frame


def paced(source: Iterator[Frame], rate: float | None) -> Iterator[Frame]:
    """So many frames a second, or as they come."""
    due = time.monotonic()
    for frame in source:
        if rate:
            time.sleep(max(0.0, due - time.monotonic()))
            due += 1 / rate
        yield frame


class Latest:
    """The newest frame of a live source: whoever is slow misses frames and is never late."""

    def __init__(self, source: Iterator[Frame]) -> None:
        self._news = threading.Condition()
        self._frame: Frame | None = None
        self._over = False
        self._failed: BaseException | None = None
        self.seen = 0
        """Frames that the source gave, those that were missed too."""
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    @property
    def over(self) -> bool:
        """No frame is there and none will come. Raises what reading the source raised."""
        with self._news:
            if self._frame is None and self._failed is not None:
                raise self._failed
            return self._frame is None and self._over

    def take(self) -> Frame | None:
        """The newest frame that was not given out yet, or None; does not wait."""
        with self._news:
            frame, self._frame = self._frame, None
            return frame

    def next(self) -> Frame | None:
        """Wait for a frame that was not given out yet; None once the source is over."""
        with self._news:
            self._news.wait_for(lambda: self._frame is not None or self._over)
        return None if self.over else self.take()

    def _read(self, source: Iterator[Frame]) -> None:
        try:
            for frame in source:
                with self._news:
                    self._frame, self.seen = frame, self.seen + 1
                    self._news.notify()
        except BaseException as error:  # told to whoever asks for the next frame
            self._failed = error
        with self._news:
            self._over = True
            self._news.notify()
