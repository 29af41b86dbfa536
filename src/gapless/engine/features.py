"""The ledger of pictures on the host: whose embeddings lie in which slot, so that vision is skipped when its pages are
gone.

What vision makes of a picture depends on its pixels and the crop settings, which are its digest, and on the model, of
which a ledger has one; adapters do not touch it. A slot is leased by every sequence whose prefill writes or reads it,
until that step is known to have gone well, and is given to another picture only while nobody holds it (I5): so no copy
waits for another, and nobody for a copy. What a step was to keep is found by nobody before that step has gone well.
The picture that was asked for the longest ago goes first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gapless.errors import InvariantBroken
from gapless.observe.counters import Counters


@dataclass(slots=True, eq=False)
class HostPicture:
    """A picture's slot. `there`: its embeddings have arrived; `leases`: sequences that hold it; `withdrawn`: nobody may
    find it."""

    digest: str
    slot: int
    leases: int = 0
    there: bool = False
    withdrawn: bool = False


class FeatureLedger:
    """Slots 0..slots-1 of one device's host memory."""

    def __init__(self, slots: int, counters: Counters) -> None:
        self._counters = counters
        self._free = list(range(slots - 1, -1, -1))
        self._pictures: dict[str, HostPicture] = {}  # by digest, asked for the longest ago first
        self._leaving: set[HostPicture] = set()

    @property
    def held(self) -> int:
        """How many pictures are kept, or about to be."""
        return len(self._pictures)

    def lease(self, digest: str) -> HostPicture | None:
        """Hold a picture's slot for a sequence that wants its embeddings: `there`, or to be kept by its prefill. None:
        no slot is to be had, or another step is just filling its own."""
        known = self._pictures.get(digest)
        if known is None:
            known = self._enter(digest)
        elif known.there:
            self.touch(digest)
            self._counters.host_hits += 1
        else:
            return None
        if known is not None:
            known.leases += 1
        return known

    def _enter(self, digest: str) -> HostPicture | None:
        slot = self._free.pop() if self._free else self._evict()
        if slot is None:
            return None
        picture = self._pictures[digest] = HostPicture(digest, slot)
        return picture

    def _evict(self) -> int | None:
        idle = next((picture for picture in self._pictures.values() if not picture.leases), None)
        if idle is None:
            return None
        del self._pictures[idle.digest]
        self._counters.host_evictions += 1
        return idle.slot

    def touch(self, digest: str) -> None:
        """Somebody asked about a picture, whose pages were there."""
        known = self._pictures.pop(digest, None)
        if known is not None:
            self._pictures[digest] = known

    def leave(self, pictures: Iterable[HostPicture], *, well: bool) -> None:
        """The step of a sequence that held these is over; if it did not go `well`, nobody finds them any more."""
        for picture in pictures:
            if not picture.leases:
                raise InvariantBroken(f"I5: the picture in host slot {picture.slot} is left, but nobody holds it")
            picture.leases -= 1
            if well:
                picture.there = True
            elif not picture.withdrawn:
                picture.withdrawn = True
                del self._pictures[picture.digest]
                self._leaving.add(picture)
            if picture.withdrawn and not picture.leases:
                self._leaving.remove(picture)
                self._free.append(picture.slot)

    def leased(self) -> list[int]:
        """Slots that are held, for the audit."""
        return [picture.slot for picture in (*self._pictures.values(), *self._leaving) if picture.leases]
