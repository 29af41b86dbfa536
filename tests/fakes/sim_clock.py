"""Simulated time: a clock that moves only when it is told to, and a mailbox that sleeps on it.

What flows in: durations, scheduled mail. What flows out: `now`. Invariants: time never goes back; a sleep that nothing
would ever end is an error, not a hang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gapless.engine.mailbox import Mail
from gapless.records import Request


class SimClock:
    """Seconds since the simulation began."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the simulated time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, f"time cannot go back by {-seconds} s"
        self._now += seconds

    def advance_to(self, moment: float) -> None:
        """Let time pass until `moment`; nothing if it is past."""
        self._now = max(self._now, moment)


@dataclass
class SimMailbox:
    """Mail that arrives at simulated times. `next_mask` says when the next mask will be ready, None for never."""

    clock: SimClock
    next_mask: Callable[[], float | None]
    due: list[tuple[float, Request | int]] = field(default_factory=list)
    slept: int = 0

    def submit(self, request: Request, at: float = 0.0) -> None:
        """Let a request arrive at a moment."""
        self._add(at, request)

    def cancel(self, request_id: int, at: float = 0.0) -> None:
        """Let a cancellation arrive at a moment."""
        self._add(at, request_id)

    def _add(self, at: float, what: Request | int) -> None:
        self.due.append((max(at, self.clock.now()), what))
        self.due.sort(key=_moment)

    @property
    def empty(self) -> bool:
        """Nothing has arrived that was not taken. Mail still on its way does not count."""
        return not self.due or self.due[0][0] > self.clock.now()

    def take(self, limit: int) -> Mail:
        """Hand over what has arrived: at most `limit` requests, all cancellations."""
        requests: list[Request] = []
        cancels: list[int] = []
        later = []
        for at, what in self.due:
            if at > self.clock.now() or (isinstance(what, Request) and len(requests) == limit):
                later.append((at, what))
            elif isinstance(what, Request):
                requests.append(what)
            else:
                cancels.append(what)
        self.due = later
        kept = {w.id for _, w in later if isinstance(w, Request)} & set(cancels)
        withdrawn = tuple(w for _, w in later if isinstance(w, Request) and w.id in kept)
        self.due = [(at, w) for at, w in later if not (isinstance(w, Request) and w.id in kept)]
        return Mail(tuple(requests), tuple(c for c in cancels if c not in kept), withdrawn)

    def sleep(self, seconds: float | None) -> None:
        """Pass the time until a mask is ready, mail arrives, or `seconds` are over."""
        self.slept += 1
        now = self.clock.now()
        moments = [self.next_mask(), self.due[0][0] if self.due else None, None if seconds is None else now + seconds]
        ends = [moment for moment in moments if moment is not None]
        if not ends:
            raise AssertionError("the loop went to sleep and nothing will ever wake it")
        self.clock.advance_to(min(ends))

    def skip_to_mail(self) -> bool:
        """Let an idle engine's time pass until the next mail; False when none is to come."""
        if not self.due:
            return False
        self.clock.advance_to(self.due[0][0])
        return True


def _moment(item: tuple[float, Request | int]) -> float:
    return item[0]
