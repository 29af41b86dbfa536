"""The adapters of an engine process: read while the loop runs, handed to requests by key.

In: orders of `wire`. Out: an answer to each order, when its file was read, in a thread of its own. A key is valid from
its answer until it is discarded, so what requests are under way to this process with does not change under them.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue

from gapless.api import wire
from gapless.api.shelf import Shelf
from gapless.records import Adapter


class ChildShelf:
    """`shelf` None: a model without slots, whose parent orders nothing. `waiting`: orders not answered yet."""

    def __init__(self, shelf: Shelf | None) -> None:
        self.waiting = 0
        self.keys = None if shelf is None else shelf.keys()
        self._shelf = shelf
        self._adapters = {} if shelf is None else shelf.by_key()
        self._read: SimpleQueue[tuple[int, Adapter | Exception]] = SimpleQueue()

    def get(self, key: str) -> Adapter:
        """Raises `KeyError` for a key that is not valid."""
        return self._adapters[key]

    def discard(self, key: str) -> None:
        """No request that follows has it."""
        self._adapters.pop(key, None)
        if self._shelf is not None:
            self._shelf.forget(key)

    def begin(self, order: wire.Shelve) -> None:
        """Read a file beside the loop."""
        self.waiting += 1
        threading.Thread(target=self._work, args=(order,), name="gapless-adapter", daemon=True).start()

    def _work(self, order: wire.Shelve) -> None:
        try:
            if self._shelf is None:
                raise ValueError("a model without slots is given an adapter")
            self._read.put((order.order, self._shelf.load(order.name, order.path)))
        except Exception as error:
            self._read.put((order.order, error))

    def take_answers(self) -> list[wire.Shelved]:
        """Answers that are ready; from now on their keys are valid."""
        answers = []
        with suppress(Empty):
            while True:
                order, found = self._read.get_nowait()
                self.waiting -= 1
                if isinstance(found, Adapter):
                    self._adapters[found.key] = found
                    answers.append(wire.Shelved(order, found.key))
                else:
                    answers.append(wire.Shelved(order, error=wire.ErrorNote.of(found)))
        return answers
