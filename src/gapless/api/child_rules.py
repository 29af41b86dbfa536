"""Rules that requests may name, as the engine's process was told of them.

In: messages, in their order; see `remote_tables` for what is sent and when. Out: the rule of a digest.
"""

from __future__ import annotations

from gapless.api import lessons
from gapless.api.ruling import Rule
from gapless.constrain.vocabulary import Vocabulary
from gapless.records import HostGrammar


class ChildRules:
    """For the loop's thread."""

    def __init__(self) -> None:
        self._rules: dict[str, Rule] = {}
        self._words: dict[str, Vocabulary] = {}

    def learn(self, lesson: lessons.Lesson) -> None:
        """Take a message."""
        match lesson:
            case lessons.Learn():
                self._rules[lesson.digest] = lesson.table()
            case lessons.LearnWords():
                self._words[lesson.digest] = lesson.vocabulary()
            case lessons.LearnGuide():
                self._rules[lesson.digest] = HostGrammar(lesson.text, self._words[lesson.words], digest=lesson.digest)
            case lessons.Unlearn():
                self._rules.pop(lesson.digest, None)

    def get(self, digest: str) -> Rule:
        """A rule that was told of."""
        return self._rules[digest]
