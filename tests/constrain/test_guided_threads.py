"""The threads that build masks outlive whatever a grammar's engine raises."""

import queue
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.hash_language import HashSpec
from tests.fakes.scene import ask, table_of

from gapless.constrain.guided import GuidedMasks
from gapless.constrain.table import Walker
from gapless.constrain.vocabulary import Vocabulary
from gapless.errors import RequestFailed
from gapless.records import HostGrammar, RowRef

SPEC = HashSpec()
PATIENCE = 20.0


class Panic(BaseException):
    """As native code's panics are: no `Exception`."""


class Guides:
    """One grammar panics when it is followed, another when it is read."""

    def knows(self, grammar):
        return grammar.text != "unread"

    def guide(self, grammar):
        if grammar.text == "unread":
            raise Panic("while it is read")
        return Guide(grammar.text)


class Guide:
    def __init__(self, text):
        self.text = text

    def consume(self, tokens):
        if self.text == "unfollowed":
            raise Panic("while it is followed")

    def mask(self):
        return np.ones(SPEC.rules.vocab, dtype=np.bool_)


@pytest.mark.parametrize("text", ["unfollowed", "unread"])
def test_a_panic_fails_its_row_alone(text):
    news, words, table = queue.SimpleQueue(), Vocabulary([b"a"] * SPEC.rules.vocab, SPEC.rules.end), table_of(SPEC)
    masks = GuidedMasks(lambda: news.put(None), Guides(), builders=1)
    for row, said in enumerate((text, "fine", text, "fine"), 1):
        ref = RowRef(row, 1)
        allowed = Walker.start(table, "text", 9, 1).mask()
        request = replace(ask(row), guide=HostGrammar(said, words))
        masks.request(ref, request, table, (), allowed)
        news.get(timeout=PATIENCE)
        if said == "fine":
            assert np.array_equal(masks.take(ref), allowed)
        else:
            with pytest.raises(RequestFailed, match="Panic: while it is") as raised:
                masks.take(ref)
            assert isinstance(raised.value.__cause__, Panic)
        masks.forget(ref)
    masks.close()
