"""Masks of answers that follow a grammar on the host, built by threads of their own.

In: a row, the mask of its program, what its request has said so far. Out: its next mask, once it is ready; `notify`
wakes the loop then. The loop only leaves orders and takes masks: reading a grammar has a thread, and building masks has
some others, so a grammar that is being read holds up no row but its own.

Invariants: at most one mask is wanted for a row, so one thread at a time follows it; a guide consumes each committed
token once, counted from the request's first, and a new life of a row begins with a new guide; what was built for a row
that is forgotten is dropped. While a program reasons its own mask is all there is. A guide that fails is raised where
its row's mask is taken.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gapless.constrain.guides import STUCK, Guide, Guides
from gapless.constrain.table import Table, Walker
from gapless.errors import InvalidRequest, RequestFailed
from gapless.host_grammar import HostGrammar
from gapless.locks import Lock
from gapless.records import Mask, Request, RowRef, Token

BUILDERS = 2
"""Threads that build masks: a mask takes some tens of microseconds, and now and then milliseconds."""


@dataclass(slots=True, eq=False)
class _Order:
    """The mask that a row wants: behind `tokens`, within what its program allows."""

    row: _Row
    tokens: list[int]
    allowed: Mask
    mask: Mask | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Row:
    """A life of a row: how many tokens of its request were `seen`, and where its program stood then."""

    grammar: HostGrammar
    walker: Walker
    seen: int = 0
    guide: Guide | None = None
    order: _Order | None = None


_Line = queue.SimpleQueue[_Order | None]


class GuidedMasks:
    """For the loop's thread, but `notify`, which any of its own threads calls. Threads start with the first grammar."""

    def __init__(self, notify: Callable[[], None], guides: Guides | None = None, builders: int = BUILDERS) -> None:
        self._notify = notify
        self._guides = guides or Guides()
        self._builders = builders
        self._lock = Lock()
        self._rows: dict[RowRef, _Row] = {}
        self._lines: tuple[_Line, ...] = ()
        self._ending: Callable[[], object] | None = None

    def request(self, ref: RowRef, request: Request, table: Table, said: Sequence[Token], allowed: Mask) -> None:
        """Begin to build the mask that follows `said`, all that the request has said, in this life and earlier ones.
        `allowed` bool [vocab]: by its program alone."""
        row = self._rows.get(ref)
        if row is None:
            row = self._rows[ref] = _begun(request, table)
        order = row.order = _Order(row, _ruled(row, said), allowed)
        if not row.walker.answers:
            order.mask = allowed
            return
        self._start()
        self._lines[row.guide is None and not self._guides.knows(row.grammar)].put(order)

    def take(self, ref: RowRef) -> Mask | None:
        """The finished mask, None while it is being built. Raises what went wrong."""
        row = self._rows.get(ref)
        order = None if row is None else row.order
        if row is None or order is None:
            return None
        if order.error is not None:
            raise order.error
        if order.mask is not None:
            row.order = None
        return order.mask

    def follows(self, ref: RowRef) -> bool:
        """Whether a mask is wanted here for the row."""
        return ref in self._rows

    def forget(self, ref: RowRef) -> None:
        """This life of the row is over."""
        self._rows.pop(ref, None)

    def close(self) -> None:
        """Let the threads end."""
        if self._ending is not None:
            self._ending()

    def _start(self) -> None:
        if self._lines:
            return
        masks: _Line = queue.SimpleQueue()
        readings: _Line = queue.SimpleQueue()
        self._lines = masks, readings
        for line, count, name in ((masks, self._builders, "masks"), (readings, 1, "grammars")):
            for _ in range(count):
                work = Work(line, self._guides, self._notify)
                threading.Thread(target=work.run, name=f"gapless-{name}", daemon=True).start()
        self._ending = weakref.finalize(self, _end, masks, readings, self._builders)


def _end(masks: _Line, readings: _Line, builders: int) -> None:
    readings.put(None)
    for _ in range(builders):
        masks.put(None)


@dataclass(frozen=True, slots=True)
class Work:
    """What a thread does: orders of its line, one after the other. Knows no rows, only orders."""

    line: _Line
    guides: Guides
    notify: Callable[[], None]

    def run(self) -> None:
        """Until there is None in the line."""
        while (order := self.line.get()) is not None:
            try:
                self.serve(order)
            except Exception as error:
                order.error = error
            except BaseException as error:  # native code's panics are no `Exception`; this thread has others to serve
                order.error = RequestFailed(f"the grammar's engine failed ({type(error).__name__}: {error})")
                order.error.__cause__ = error
            self.notify()

    def serve(self, order: _Order) -> None:
        """Build one mask. Raises what goes wrong."""
        row = order.row
        if row.guide is None:
            row.guide = self.guides.guide(row.grammar)
        row.guide.consume(order.tokens)
        mask: Mask = row.guide.mask() & order.allowed
        if not mask.any():
            raise InvalidRequest(STUCK, param="grammar")
        order.mask = mask


def _begun(request: Request, table: Table) -> _Row:
    assert request.guide is not None
    s = request.sampling
    return _Row(request.guide, Walker.start(table, request.program, s.max_tokens, s.max_objects))


def _ruled(row: _Row, said: Sequence[Token]) -> list[int]:
    """Of what was said since the last look, the tokens that belong to the answer; the program moves over all."""
    fresh = []
    for token in said[row.seen :]:
        if row.walker.answers:
            fresh.append(token.id)
        row.walker.advance(token.id)
    row.seen = len(said)
    return fresh
