"""The adapters of an engine process, as its parent knows them: a key for each name.

In: what callers want loaded and unloaded, answers of the process. Out: orders for it. An order's caller waits for its
answer. A key that no name stands for any more is discarded when no request on this side has it; whoever takes it from
its name puts that behind all requests that were given it before, in the line of orders.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from queue import SimpleQueue

from gapless.api import wire
from gapless.api.shelf import no_slots, unknown_adapter
from gapless.locks import Lock
from gapless.records import Adapter

Answer = SimpleQueue[Exception | None]
"""None: loaded."""


class RemoteShelf:
    """`keys` None: a model without slots. `get`, `drop` and `answered` are called under the runner's lock; `unused`
    and `discards` belong to the thread that speaks to the process."""

    def __init__(self, keys: dict[str, str] | None) -> None:
        self.unused: list[str] = []
        self._keys = keys
        self._orders = itertools.count(1)
        self._waiting: dict[int, tuple[str, Answer]] = {}
        self._lock = Lock()
        self._end: Exception | None = None

    def names(self) -> tuple[str, ...]:
        """All, in order."""
        return tuple(sorted(self._keys or ()))

    def get(self, name: str) -> Adapter:
        """The adapter as requests carry it on this side: without weights. Raises `InvalidRequest`."""
        if self._keys is None:
            raise no_slots(name)
        key = self._keys.get(name)
        if key is None:
            raise unknown_adapter(name, self.names())
        return Adapter(name, int(key.rpartition("@")[2]), None)

    def order(self, name: str, path: str) -> tuple[wire.Shelve, Answer]:
        """What to send for an adapter to be loaded, and where its answer comes."""
        if self._keys is None:
            raise no_slots(name)
        order, answer = wire.Shelve(next(self._orders), name, path), Answer()
        with self._lock:
            if self._end is not None:
                answer.put(self._end)
            self._waiting[order.order] = name, answer
        return order, answer

    def drop(self, name: str) -> wire.Discard:
        """Give it out no longer. Raises `InvalidRequest` for a name that is not there."""
        gone = wire.Discard(self.get(name).key)
        if self._keys is not None:
            del self._keys[name]
        return gone

    def answered(self, said: wire.Shelved) -> wire.Discard | None:
        """The process has read a file, or not. What had the name before goes."""
        name, answer = self._waiting.pop(said.order)
        old = None
        if said.error is None and self._keys is not None:
            old = self._keys.get(name)
            self._keys[name] = said.key
        answer.put(None if said.error is None else said.error.error())
        return None if old is None else wire.Discard(old)

    def discards(self, wanted: Iterable[Adapter | None]) -> list[wire.Discard]:
        """What to discard now: not what requests that were not sent yet have."""
        if not self.unused:
            return []
        still = {adapter.key for adapter in wanted if adapter is not None}
        gone = [key for key in self.unused if key not in still]
        self.unused = [key for key in self.unused if key in still]
        return [wire.Discard(key) for key in gone]

    def end(self, error: Exception) -> None:
        """Nobody answers any more."""
        with self._lock:
            self._end = error
            waiting = list(self._waiting.values())
        for _, answer in waiting:
            answer.put(error)
