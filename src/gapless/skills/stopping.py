"""Stop strings: an answer ends before the first of them.

In: an answer's characters as they come. Out: the same, up to the earliest place where a stop string stands. Invariants:
what comes out does not depend on how the text was cut into pieces, and nothing comes out that may belong to a match.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """One stream. `found` once a stop string was seen; nothing comes out after that."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        """Text that is not out yet: it begins where a match may begin."""
        self.found = False

    def feed(self, text: str) -> str:
        """Take text; return what certainly stands before every match."""
        if self.found:
            return ""
        if not self._stops:
            return text
        self._held += text
        return self._release(self._undecided())

    def finish(self) -> str:
        """Say that no text follows; return what is left before the earliest match."""
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        self.found = self.found or bool(places)
        return self._release(min(places, default=len(self._held)))

    def _undecided(self) -> int:
        """The first place at which a stop string stands, or may come to stand with the text that follows."""
        for place in range(len(self._held)):
            if self._held.startswith(self._stops, place):
                self.found = True
                return place
            if len(self._held) - place < self._longest and self._may_match(self._held[place:]):
                return place
        return len(self._held)

    def _may_match(self, rest: str) -> bool:
        return any(stop.startswith(rest) for stop in self._stops)

    def _release(self, place: int) -> str:
        ready, self._held = self._held[:place], "" if self.found else self._held[place:]
        return ready
