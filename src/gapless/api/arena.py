"""The picture arena: memory that the caller's process and the engine's share, so that no picture goes through a socket.

In: crops, copied once by the caller's process into a free region. Out: in the engine's process a read-only picture over
the same bytes; when nothing refers to it any more, its region is named as freed and goes back to the caller's side,
which alone says what is free. The memory has no name: it ends with the last process that holds it, however that ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gapless.records import Picture

ALIGN = 4096
"""Regions begin at multiples of this."""


@dataclass(frozen=True, slots=True)
class Region:
    """A picture in the arena: where its crops uint8 `shape` (or its pixels) begin, and the rest of `Picture`."""

    offset: int
    shape: tuple[int, ...]
    digest: str
    tiling: tuple[int, int]
    width: int
    height: int


_Key = tuple[str, tuple[int, ...]]
"""What tells pictures apart: one may come cut and uncut."""


@dataclass(slots=True)
class _Lease:
    key: _Key
    size: int
    holders: int


class Arena:
    """The caller's side, for one thread. A picture that lies there already is not copied again."""

    def __init__(self, capacity: int) -> None:
        self.capacity = -(-capacity // ALIGN) * ALIGN
        self.fd = _nameless_memory(self.capacity)
        self._bytes = mmap.mmap(self.fd, self.capacity)
        self._leases: dict[int, _Lease] = {}
        self._places: dict[_Key, int] = {}

    @property
    def held(self) -> int:
        """Regions that are not free."""
        return len(self._leases)

    def place(self, picture: Picture) -> Region | None:
        """Put a picture in, with one holder more; None if there is no room now. Raises `ValueError` if there never is
        any."""
        placed = self.place_all((picture,))
        return None if placed is None else placed[0]

    def place_all(self, pictures: Sequence[Picture]) -> tuple[Region, ...] | None:
        """Put pictures in, each with one holder more; None, and nothing is held nor copied (it is tried again at every
        report of the engine), if there is no room for all now."""
        offsets: list[int] = []
        fresh: dict[int, Picture] = {}
        for picture in pictures:
            offset = self._places.get(_key(picture))
            if offset is None:
                offset = self._reserve(picture)
                if offset is None:
                    for placed in offsets:
                        self.free(placed)
                    return None
                fresh[offset] = picture
            self._leases[offset].holders += 1
            offsets.append(offset)
        for offset, picture in fresh.items():
            self._copy(picture, offset)
        return tuple(_region(picture, offset) for picture, offset in zip(pictures, offsets, strict=True))

    def free(self, offset: int) -> None:
        """One holder of the region there is gone."""
        lease = self._leases[offset]
        lease.holders -= 1
        if not lease.holders:
            del self._leases[offset], self._places[lease.key]

    def close(self) -> None:
        """Let go of the memory; the other process still has its own hold."""
        self._bytes.close()
        os.close(self.fd)

    def _reserve(self, picture: Picture) -> int | None:
        size = _room(picture)
        if size > self.capacity:
            raise ValueError(f"a picture of {size} bytes in an arena of {self.capacity}")
        offset = self._gap(size)
        if offset is not None:
            self._leases[offset] = _Lease(_key(picture), size, 0)
            self._places[_key(picture)] = offset
        return offset

    def _gap(self, size: int) -> int | None:
        """The lowest place with so much room: memory that was used before is used again first."""
        end = 0
        for offset in sorted(self._leases):
            if offset - end >= size:
                return end
            end = offset + self._leases[offset].size
        return end if self.capacity - end >= size else None

    def _copy(self, picture: Picture, offset: int) -> None:
        there = np.frombuffer(self._bytes, np.uint8, picture.crops.nbytes, offset)
        np.copyto(there.reshape(picture.crops.shape), picture.crops)


class ArenaView:
    """The engine's side. `freed` may grow on any thread."""

    def __init__(self, fd: int, capacity: int) -> None:
        self._bytes = mmap.mmap(fd, capacity, access=mmap.ACCESS_READ)
        self._capacity = capacity
        self._lent: dict[int, weakref.ref[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = {}
        self._freed: list[int] = []

    @property
    def lent(self) -> int:
        """Pictures that something refers to."""
        return len(self._lent)

    def picture(self, region: Region) -> Picture:
        """The picture there. Raises `ValueError` for a region that is not in the arena."""
        size = prod(region.shape)
        if region.offset < 0 or min(region.shape) < 1 or region.offset + size > self._capacity:
            raise ValueError(f"{region} does not lie in an arena of {self._capacity} bytes")
        flat = np.frombuffer(self._bytes, np.uint8, size, region.offset)
        key = id(flat)
        freed, lent, offset = self._freed, self._lent, region.offset

        def gone(_: object) -> None:
            freed.append(offset)
            lent.pop(key, None)

        self._lent[key] = weakref.ref(flat, gone)  # every view of `flat` keeps `flat`, so this is the last of them
        crops = flat.reshape(region.shape)
        return Picture(region.digest, crops, region.tiling, region.width, region.height)

    def take_freed(self) -> tuple[int, ...]:
        """Offsets of pictures that nothing refers to any more, each once for each time it was asked for."""
        count = len(self._freed)
        taken = tuple(self._freed[:count])
        del self._freed[:count]
        return taken


def room_for(pictures: Sequence[Picture]) -> int:
    """Bytes that pictures take in an arena which holds no other; equal ones lie there once."""
    return sum({_key(picture): _room(picture) for picture in pictures}.values())


def _key(picture: Picture) -> _Key:
    return picture.digest, picture.crops.shape


def _region(picture: Picture, offset: int) -> Region:
    return Region(offset, picture.crops.shape, picture.digest, picture.tiling, picture.width, picture.height)


def _room(picture: Picture) -> int:
    return -(-picture.crops.nbytes // ALIGN) * ALIGN


def _nameless_memory(size: int) -> int:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("gapless-pictures")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, size)
    return fd
