"""Pictures that were made ready before: a second question about one neither decodes nor cuts it.

In: picture sources. Out: `records.Picture`s, one and the same for the same pixels. Two levels, so that a file that was
seen is not decoded, and pixels that were seen are not cut: the SHA-256 of a file's bytes leads to that of its upright
pixels (`images.picture.digest`), and that one to the crops. Files that hold equal pixels are one picture; pixels that
differ never are. A cache belongs to one model's crop settings and one set of limits, so both are part of no key.
Invariants: crops that are kept take at most `capacity` bytes, and nobody writes to them; the picture that was asked for
the longest ago goes first, and its files with it; of those who ask for the same at once one decodes or cuts it, unless
nothing is kept. For any thread; nothing is decoded, cut or hashed under the lock.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from functools import partial

from gapless.config import ImageLimits
from gapless.images.crops import CropSpec
from gapless.images.decode import RGB, PictureSource, encoded, load_picture
from gapless.images.once import Once
from gapless.images.picture import digest, from_pixels
from gapless.locks import Lock
from gapless.records import Picture

FILES = 16
"""Files that are known to hold the same picture; of more, the ones seen last."""


@dataclass(frozen=True, slots=True)
class PictureCounts:
    """Pictures that were asked for, and those of them that were `decoded` or `cut`; the rest was there already. What is
    `held`: pictures and `held_bytes` of their crops; `evicted`: pictures that made room."""

    asked: int = 0
    decoded: int = 0
    cut: int = 0
    evicted: int = 0
    held: int = 0
    held_bytes: int = 0


@dataclass(slots=True)
class _Kept:
    picture: Picture
    files: list[bytes] = field(default_factory=list)


class PictureCache:
    """See the module. `capacity` 0 keeps nothing; `device_cuts`: pixels need not be cut here, and are kept as they
    are."""

    def __init__(self, spec: CropSpec, limits: ImageLimits, capacity: int, device_cuts: bool = False) -> None:
        self.spec = spec
        self.limits = limits
        self.capacity = capacity
        self.device_cuts = device_cuts
        self._lock = Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # by digest of pixels, asked for the longest ago first
        self._pixels: dict[bytes, str] = {}  # by digest of a file
        self._counts = PictureCounts()
        self._once: Once[Picture] = Once()  # by digest of a file, or of pixels

    @property
    def counts(self) -> PictureCounts:
        """What was done since the start, and what is held now."""
        return self._counts

    def prepare(self, source: PictureSource) -> Picture:
        """Decode, turn upright, cut, as far as that was not done before. Raises `InvalidImage`."""
        self._note(asked=1)
        data = encoded(source, self.limits)
        file = b"" if data is None or not self.capacity else hashlib.sha256(data).digest()
        if data is None or not file:
            return self._decode(source if data is None else data, file)
        return self._of_file(file) or self._once.get(file, partial(self._known_or_decoded, data, file))

    def _known_or_decoded(self, data: bytes, file: bytes) -> Picture:
        return self._of_file(file) or self._decode(data, file)  # it may have come meanwhile

    def _decode(self, source: PictureSource, file: bytes) -> Picture:
        rgb = load_picture(source, self.limits)
        pixels = digest(rgb, self.spec)
        self._note(decoded=1)
        if not self.capacity:
            return self._cut(rgb, pixels, file)
        return self._find(pixels, file) or self._once.get(pixels, partial(self._known_or_cut, rgb, pixels, file))

    def _known_or_cut(self, rgb: RGB, pixels: str, file: bytes) -> Picture:
        return self._find(pixels, file) or self._cut(rgb, pixels, file)

    def _cut(self, rgb: RGB, pixels: str, file: bytes) -> Picture:
        picture = from_pixels(rgb, self.spec, pixels, self.device_cuts)
        self._note(cut=0 if picture.uncut else 1)
        self._keep(picture, file)
        return picture

    def _of_file(self, file: bytes) -> Picture | None:
        with self._lock:
            pixels = self._pixels.get(file)
        return None if pixels is None else self._find(pixels, file)

    def _find(self, pixels: str, file: bytes) -> Picture | None:
        """The picture with these pixels, which that file (b"": none) holds too."""
        with self._lock:
            kept = self._kept.get(pixels)
            if kept is None:
                return None
            self._kept.move_to_end(pixels)
            self._enter(kept, file)
            return kept.picture

    def _keep(self, picture: Picture, file: bytes) -> None:
        """Enter a picture that is not there: nobody else cuts the same pixels meanwhile."""
        size = picture.crops.nbytes
        if size > self.capacity:
            return
        with self._lock:
            picture.crops.flags.writeable = False
            kept = self._kept[picture.digest] = _Kept(picture)
            self._enter(kept, file)
            held, evicted = self._counts.held_bytes + size, 0
            while held > self.capacity:
                _, old = self._kept.popitem(last=False)
                held, evicted = held - old.picture.crops.nbytes, evicted + 1
                for name in old.files:
                    self._pixels.pop(name, None)
            was = self._counts
            self._counts = replace(was, evicted=was.evicted + evicted, held=len(self._kept), held_bytes=held)

    def _enter(self, kept: _Kept, file: bytes) -> None:
        if not file or file in kept.files:
            return
        kept.files.append(file)
        self._pixels[file] = kept.picture.digest
        if len(kept.files) > FILES:
            self._pixels.pop(kept.files.pop(0), None)

    def _note(self, asked: int = 0, decoded: int = 0, cut: int = 0) -> None:
        with self._lock:
            was = self._counts
            self._counts = replace(was, asked=was.asked + asked, decoded=was.decoded + decoded, cut=was.cut + cut)
