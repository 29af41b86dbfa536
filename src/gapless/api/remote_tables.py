"""Token tables and guides that an engine's process was told of, as its parent knows them.

A table goes to the process once, ahead of the first request that has it, and every request names it by its digest: so
the engine's loop copies it once however many ask for the same shape, and both sides know without asking what is there.
Up to `most_bytes` of them are kept there for later requests; the one that was named the longest ago is dropped first.
Requests that run keep theirs whatever is dropped.
"""

from __future__ import annotations

from collections import OrderedDict

from gapless.api import lessons, wire
from gapless.api.ruling import Rule
from gapless.records import TokenTable

MOST_BYTES = 128 * 2**20
"""Of the tables that the engine's process keeps beside those of running requests."""


class RemoteTables:
    """For the thread that speaks to the process."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._known: OrderedDict[str, int] = OrderedDict()
        self._words: set[str] = set()  # few: a model has one vocabulary

    def around(self, table: Rule | None, submit: wire.Submit) -> list[wire.Downward]:
        """What to send for a request that has this table or guide, in order."""
        messages: list[wire.Downward] = [submit]
        if table is None:
            return messages
        if table.digest not in self._known:
            self._known[table.digest] = table.nbytes
            self._bytes += table.nbytes
            messages[:0] = self._taught(table)
        self._known.move_to_end(table.digest)
        while self._bytes > self._most:
            digest, size = self._known.popitem(last=False)
            self._bytes -= size
            messages.append(lessons.Unlearn(digest))
        return messages

    def _taught(self, rule: Rule) -> list[wire.Downward]:
        if isinstance(rule, TokenTable):
            return [lessons.Learn.of(rule)]
        words = rule.words
        guide = lessons.LearnGuide(rule.digest, words.digest, rule.text)
        if words.digest in self._words:
            return [guide]
        self._words.add(words.digest)
        return [lessons.LearnWords.of(words), guide]
