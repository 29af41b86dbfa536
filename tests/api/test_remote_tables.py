"""Token tables on their way to an engine's process: once each, before they are named, and no more than is kept."""

from dataclasses import replace

import numpy as np
from tests.api.engine_room import submit
from tests.api.test_remote import TABLE, begin, folder  # noqa: F401 - fixtures
from tests.api.test_remote_arena import arena, view  # noqa: F401 - fixtures
from tests.api.test_remote_sides import HandLine
from tests.fakes.oracle import answer
from tests.fakes.ruled import tables
from tests.fakes.scene import ask
from tests.fakes.sim_child import SPEC
from tests.fakes.verdict import judge

from gapless.api import child, wire
from gapless.api.remote_tables import RemoteTables
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
    assert not mailbox._tables, "it was to forget them"


def test_answers_by_rules_from_another_process(begin):  # noqa: F811
    runner = begin("plain")
    asked = [ruled(n, n % 3, temperature=0.7, seed=n) for n in range(6)] + [ask(6, max_tokens=9)]
    heard = [submit(runner, request) for request in asked]
    for request, one in zip(asked, heard, strict=True):
        judge(one.hear(), answer(SPEC, TABLE, request))
