"""Token tables that an engine's process was told of, as its parent knows them.

A table goes to the process once, ahead of the first request that has it, and every request names it by its digest: so
the engine's loop copies it once however many ask for the same shape, and both sides know without asking what is there.
Up to `most_bytes` of them are kept there for later requests; the one that was named the longest ago is dropped first.
Requests that run keep theirs whatever is dropped.
"""

from __future__ import annotations

from collections import OrderedDict

from gapless.api import wire
from gapless.records import TokenTable

MOST_BYTES = 128 * 2**20
"""Of the tables that the engine's process keeps beside those of running requests."""


class RemoteTables:
    """For the thread that speaks to the process."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._known: OrderedDict[str, int] = OrderedDict()

    def around(self, table: TokenTable | None, submit: wire.Submit) -> list[wire.Downward]:
        """What to send for a request that has this table, in order."""
        messages: list[wire.Downward] = [submit]
        if table is None:
            return messages
        if table.digest not in self._known:
            self._known[table.digest] = table.nbytes
            self._bytes += table.nbytes
            messages.insert(0, wire.Learn.of(table))
        self._known.move_to_end(table.digest)
        while self._bytes > self._most:
            digest, size = self._known.popitem(last=False)
            self._bytes -= size
            messages.append(wire.Unlearn(digest))
        return messages
