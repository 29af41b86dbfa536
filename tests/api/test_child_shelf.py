"""The adapters of an engine process: read beside the loop, valid by key, and let go of when they are discarded."""

from __future__ import annotations

import time
import weakref

from gapless.api import wire
from gapless.api.child_shelf import ChildShelf
from gapless.api.shelf import Shelf
from gapless.errors import InvalidAdapter


class Weights:
    """Large in life, here only watched."""


class Reader:
    """Stands for a `Maker`: its paths are "bad" or anything."""

    def read(self, name: str, path: str) -> Weights:
        if path == "bad":
            raise InvalidAdapter("the adapter bad is bad", param="adapter")
        return Weights()


def answered(shelf: ChildShelf, order: wire.Shelve) -> wire.Shelved:
    shelf.begin(order)
    for _ in range(2000):
        if answers := shelf.take_answers():
            assert len(answers) == 1 and not shelf.waiting
            return answers[0]
        assert shelf.waiting == 1
        time.sleep(0.005)
    raise AssertionError("no answer")


def watched(shelf: ChildShelf, key: str) -> weakref.ref[Weights]:
    weights = shelf.get(key).weights
    assert isinstance(weights, Weights)
    return weakref.ref(weights)


def gone(weights: weakref.ref[Weights]) -> bool:
    return weights() is None


def test_what_is_unloaded_leaves_the_process_and_what_replaced_it_stays() -> None:
    kept = Shelf(Reader())  # type: ignore[arg-type]
    kept.put("first", Weights())
    shelf = ChildShelf(kept)
    assert shelf.keys is not None and set(shelf.keys) == {"first"}
    first = watched(shelf, shelf.keys["first"])
    one, two = (answered(shelf, wire.Shelve(i, "a", "any")).key for i in (1, 2))
    assert one != two
    old, new = watched(shelf, one), watched(shelf, two)
    shelf.discard(one)
    assert gone(old) and not gone(new)
    shelf.discard(two)
    shelf.discard(two)
    assert gone(new) and not gone(first)
    shelf.discard(shelf.keys["first"])
    assert gone(first)


def test_a_shelf_forgets_a_key_and_no_later_one_of_its_name() -> None:
    shelf = Shelf(Reader())  # type: ignore[arg-type]
    old, new = shelf.put("a@1", Weights()), shelf.put("a@1", Weights())
    shelf.forget(old.key)
    assert shelf.get("a@1") is new
    shelf.forget(new.key)
    shelf.forget("b@7")
    assert shelf.names() == ()


def test_a_file_that_cannot_be_read_changes_nothing() -> None:
    shelf = ChildShelf(Shelf(Reader()))  # type: ignore[arg-type]
    said = answered(shelf, wire.Shelve(1, "a", "any"))
    bad = answered(shelf, wire.Shelve(2, "a", "bad"))
    assert bad.error is not None and bad.order == 2 and "the adapter bad is bad" in str(bad.error.error())
    assert not gone(watched(shelf, said.key))
