"""Token tables on their way to an engine's process: once each, before they are named, and no more than is kept."""

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
from tests.api.engine_room import submit
from tests.api.test_remote import TABLE, begin, folder  # noqa: F401 - fixtures
from tests.api.test_remote_arena import arena, view  # noqa: F401 - fixtures
from tests.api.test_remote_sides import HandLine
from tests.fakes.guided import guides_of
from tests.fakes.oracle import answer
from tests.fakes.ruled import tables
from tests.fakes.scene import ask
from tests.fakes.sim_child import SPEC
from tests.fakes.verdict import judge

from gapless.api import child, lessons, wire
from gapless.api.remote_tables import RemoteTables
from gapless.constrain.guides import installed
from gapless.constrain.tokens import TokenWalker

SOME = tables()


def ruled(number, table, **sampling):
    return replace(ask(number, **{"max_tokens": 20, **sampling}), grammar=SOME[table])


def sent(remote, number, table):
    request = ruled(number, table)
    return remote.around(request.grammar, wire.Submit.of(request, ()))


def named(messages):
    return [(type(message).__name__, getattr(message, "digest", None)) for message in messages]


def test_a_table_comes_as_it_was():
    for table in SOME:
        again = wire.decode_downward(wire.encode(lessons.Learn.of(table))).table()
        assert again == table and hash(again) == hash(table) and again.seconds == table.seconds
        for name in ("classes", "following", "distance", "forced"):
            one, other = getattr(again, name), getattr(table, name)
            assert one.dtype == other.dtype and np.array_equal(one, other)
        assert np.array_equal(TokenWalker(again).mask(20), TokenWalker(table).mask(20))


def test_each_table_goes_once_and_the_one_named_longest_ago_is_dropped():
    room = SOME[0].nbytes + SOME[1].nbytes
    remote = RemoteTables(room)
    assert [kind for kind, _ in named(sent(remote, 1, 0))] == ["Learn", "Submit"]
    assert [kind for kind, _ in named(sent(remote, 2, 1))] == ["Learn", "Submit"]
    assert named(sent(remote, 3, 0)) == [("Submit", None)]
    third = named(sent(remote, 4, 2))
    assert third[0] == ("Learn", SOME[2].digest) and ("Unlearn", SOME[1].digest) in third[2:]
    assert named(sent(remote, 5, 1))[0] == ("Learn", SOME[1].digest)
    assert named(remote.around(None, wire.Submit.of(ask(6), ()))) == [("Submit", None)]


def test_one_that_is_larger_than_all_room_serves_whoever_brought_it():
    remote = RemoteTables(8)
    assert [kind for kind, _ in named(sent(remote, 1, 3))] == ["Learn", "Submit", "Unlearn"]
    assert [kind for kind, _ in named(sent(remote, 2, 3))] == ["Learn", "Submit", "Unlearn"]


def test_requests_keep_what_they_named(view):  # noqa: F811
    remote = RemoteTables(8)
    line = HandLine(*sent(remote, 1, 0), *sent(remote, 2, 0), wire.Submit.of(ask(3), ()))
    mailbox = child.SocketMailbox(line, view, child.ChildShelf(None))
    first, second, third = mailbox.take(8).requests
    assert first.grammar == second.grammar == SOME[0] and third.grammar is None
    assert not mailbox._rules._rules, "it was to forget them"


def test_answers_by_rules_from_another_process(begin):  # noqa: F811
    runner = begin("plain")
    asked = [ruled(n, n % 3, temperature=0.7, seed=n) for n in range(6)] + [ask(6, max_tokens=9)]
    heard = [submit(runner, request) for request in asked]
    for request, one in zip(asked, heard, strict=True):
        judge(one.hear(), answer(SPEC, TABLE, request))


def led(number, guide, **sampling):
    asked = ask(number, **{"max_tokens": 24, **sampling})
    return replace(asked, host_masked=True, guide=guides_of()[guide], program="reason" if number % 3 else "text")


def test_words_go_once_and_a_guide_comes_as_it_was(view):  # noqa: F811
    remote, requests = RemoteTables(), [led(1, 5), led(2, 6), led(3, 5)]
    messages = [remote.around(request.guide, wire.Submit.of(request, ())) for request in requests]
    kinds = [[kind for kind, _ in named(some)] for some in messages]
    assert kinds == [["LearnWords", "LearnGuide", "Submit"], ["LearnGuide", "Submit"], ["Submit"]]
    mailbox = child.SocketMailbox(HearingLine(*itertools.chain(*messages)), view, child.ChildShelf(None))
    taken = mailbox.take(8).requests
    assert [request.guide for request in taken] == [request.guide for request in requests]
    assert all(request.host_masked and request.grammar is None for request in taken)
    assert taken[0].guide.text == requests[0].guide.text and taken[0].guide.words.digest == guides_of()[0].words.digest
    mailbox.notify()
    assert os.read(mailbox._line.bell, 8) == b"!"


class HearingLine(HandLine):
    """Knows the pipe that ends its waits."""

    def hear(self, bell):
        self.bell = bell


@pytest.mark.skipif(not installed(), reason="needs llguidance")
def test_answers_that_guides_lead_from_another_process(begin):  # noqa: F811
    """The process sleeps when nothing but masks is to come: its threads must wake it."""
    runner = begin("plain")
    asked = [led(n, n, temperature=0.7, seed=n) for n in range(7)] + [ask(7, max_tokens=9)]
    heard = [submit(runner, request) for request in asked]
    for request, one in zip(asked, heard, strict=True):
        judge(one.hear(), answer(SPEC, TABLE, request))
