"""Grammars compiled in another process: once, whoever asks; errors to all; bounded; never in anybody's way."""

import asyncio
import itertools
import os
import signal
import threading
import time
from concurrent.futures import CancelledError
from contextlib import contextmanager

import pytest
from tests.constrain.walks import glint

from gapless.constrain.child import answer
from gapless.constrain.compiler import Compiler, Refusals, TableCache, TooManyGrammars, TooSlow
from gapless.constrain.grammar import Grammar, compile_grammar
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.errors import EngineClosed, InvalidRequest, RequestFailed
from gapless.host_grammar import HostGrammar
from gapless.token_table import TokenTable

WAIT = 60
NUMBERS = itertools.count()
NO_LIMITS = Limits(work=10**12, states=10**9, fragments=10**9)


@pytest.fixture(scope="module")
def compiler():
    made = Compiler(glint(), timeout=WAIT)
    yield made
    made.close()


@contextmanager
def held(compiler):
    """The compiler's thread waits, in a callback of a grammar that takes its time, so nothing else is begun."""
    gate = threading.Event()
    first = compiler.submit(Grammar.regex(f".*a.{{7}}{next(NUMBERS)}"))
    first.add_done_callback(lambda _: gate.wait(WAIT))
    yield
    gate.set()


def equal(one, other):
    arrays = ("classes", "following", "distance", "forced")
    return all((getattr(one, name) == getattr(other, name)).all() for name in arrays)


def test_a_table_from_the_other_process_is_the_same_and_is_kept(compiler):
    grammar = Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    first = compiler.submit(grammar).result(WAIT)
    assert equal(first, compile_grammar(grammar, glint()))
    assert first.seconds > 0
    count = compiler.compiled
    again = compiler.submit(Grammar.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}))
    assert again.done()
    assert again.result() is first
    assert compiler.compiled == count
    assert compiler.nbytes >= first.nbytes


def test_who_asks_for_the_same_at_once_shares_one_compilation_and_one_error(compiler):
    count = compiler.compiled
    with held(compiler):
        futures = [compiler.submit(Grammar.regex("(a|b){3}")) for _ in range(4)]
        wrong = [compiler.submit(Grammar.json_schema({"not": {}})) for _ in range(3)]
    tables = {id(future.result(WAIT)) for future in futures}
    assert len(tables) == 1
    for future in wrong:
        with pytest.raises(InvalidRequest, match=r'"not" at #/not') as refusal:
            future.result(WAIT)
        assert refusal.value.param == "json_schema"
    assert compiler.compiled == count + 3
    again = compiler.submit(Grammar.json_schema({"not": {}}))
    assert again.done() and str(again.exception()) == str(refusal.value) and again.exception() is not refusal.value
    assert again.exception().param == "json_schema" and compiler.compiled == count + 3
    guide = compiler.submit(Grammar.json_schema({"properties": {"a": {"$ref": "#"}}})).result(WAIT)
    assert isinstance(guide, HostGrammar) and guide.words.digest == glint().digest
    assert compiler.submit(Grammar.json_schema({"properties": {"a": {"$ref": "#"}}})).result() is guide


def test_an_event_loop_goes_on_meanwhile(compiler):
    async def ticks():
        ticked, future = 0, asyncio.wrap_future(compiler.submit(Grammar.regex("[a-f]{0,300}x")))
        while not future.done():
            ticked += 1
            await asyncio.sleep(0)
        return ticked, future.result()

    ticked, table = asyncio.run(ticks())
    assert ticked >= 1
    assert table.states > 300


def test_one_that_is_cancelled_is_not_compiled_and_the_others_are(compiler):
    count = compiler.compiled
    with held(compiler):
        gone, kept, also = (compiler.submit(Grammar.regex(word)) for word in ("gone", "kept", "kept"))
        assert gone.cancel()
        assert also.cancel()
    assert isinstance(kept.result(WAIT), TokenTable)
    with pytest.raises(CancelledError):
        gone.result()
    assert compiler.compiled == count + 2


def test_those_that_are_cancelled_take_nobodys_place(compiler, monkeypatch):
    monkeypatch.setattr(compiler, "_most_waiting", 3)
    with held(compiler):
        while compiler._jobs:
            time.sleep(0.001)
        waiting = [compiler.submit(Grammar.regex(f"w{i}")) for i in range(3)]
        same = compiler.submit(Grammar.regex("w1"))
        with pytest.raises(TooManyGrammars, match="3 grammars wait"):
            compiler.submit(Grammar.regex("w3")).result(0)
        assert all(waiting[i].cancel() for i in (0, 1))
        after = [compiler.submit(Grammar.regex(word)) for word in ("w4", "w2")]
        with pytest.raises(TooManyGrammars):
            compiler.submit(Grammar.regex("w0")).result(0)
        for _ in range(500):  # as often as anybody likes
            assert after[0].cancel()
            after[0] = compiler.submit(Grammar.regex(f"x{next(NUMBERS)}"))
        assert len(compiler._jobs) == 3
    for future in (waiting[2], same, *after):
        assert isinstance(future.result(WAIT), TokenTable)
    assert not compiler._jobs


def test_one_that_is_begun_keeps_its_place_though_nobody_waits_for_it(compiler, monkeypatch):
    compiler.submit(Grammar.regex(f"a{next(NUMBERS)}")).result(WAIT)
    gate, begun, ask = threading.Event(), threading.Event(), type(compiler._child).ask

    def slow(child, *arguments, **options):
        begun.set()
        gate.wait(WAIT)
        return ask(child, *arguments, **options)

    monkeypatch.setattr(type(compiler._child), "ask", slow)
    monkeypatch.setattr(compiler, "_most_waiting", 2)
    grammar = Grammar.regex(f"a{next(NUMBERS)}")
    first = compiler.submit(grammar)
    assert begun.wait(WAIT) and first.cancel()
    gone = compiler.submit(Grammar.regex(f"a{next(NUMBERS)}"))
    assert gone.cancel()
    last, again = compiler.submit(Grammar.regex(f"a{next(NUMBERS)}")), compiler.submit(grammar)
    gate.set()
    assert isinstance(last.result(WAIT), TokenTable) and isinstance(again.result(WAIT), TokenTable)


def test_a_process_that_ended_while_it_had_nothing_to_do_is_replaced_in_silence(compiler):
    compiler.submit(Grammar.regex(f"a{next(NUMBERS)}")).result(WAIT)
    before = compiler._child
    os.kill(before._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, before._process.pid, os.WEXITED | os.WNOWAIT)
    assert isinstance(compiler.submit(Grammar.regex(f"a{next(NUMBERS)}")).result(WAIT), TokenTable)
    assert compiler._child is not before and before.over


def test_a_defect_of_the_line_ends_one_grammar_and_not_the_compiler(compiler, monkeypatch):
    def broken(child, *arguments, **options):
        raise ValueError("no such message")

    with monkeypatch.context() as patched:
        patched.setattr(type(compiler._child), "ask", broken)
        with pytest.raises(RequestFailed, match="no such message"):
            compiler.submit(Grammar.regex(f"a{next(NUMBERS)}")).result(WAIT)
    assert isinstance(compiler.submit(Grammar.regex(f"a{next(NUMBERS)}")).result(WAIT), TokenTable)


@pytest.mark.slow
def test_a_slow_one_is_given_up_and_the_next_one_is_compiled():
    compiler = Compiler(glint(), NO_LIMITS, timeout=1.0, on_host=False)
    try:
        slow, next_one = compiler.submit(Grammar.regex(".*a.{20}")), compiler.submit(Grammar.regex("a|b"))
        with pytest.raises(NotATable, match="more than 1 s"):
            slow.result(WAIT)
        assert next_one.result(WAIT).states == 2
        with pytest.raises(NotATable, match="more than 1 s"):  # not remembered: it may have time another day
            compiler.submit(Grammar.regex(".*a.{20}")).result(WAIT)
        assert compiler.compiled == 3
    finally:
        compiler.close()


@pytest.mark.slow
def test_too_many_that_wait_are_refused_and_closing_answers_everyone():
    compiler = Compiler(glint(), NO_LIMITS, most_waiting=2, timeout=WAIT)
    running = compiler.submit(Grammar.regex(".*a.{20}"))
    waiting = compiler.submit(Grammar.regex("b"))
    with pytest.raises(TooManyGrammars, match="2 grammars wait"):
        compiler.submit(Grammar.regex("c")).result(0)
    same = compiler.submit(Grammar.regex("b"))
    time.sleep(0.5)
    closing = threading.Thread(target=compiler.close)
    closing.start()
    for future in (running, waiting, same, compiler.submit(Grammar.regex("d"))):
        with pytest.raises(EngineClosed):
            future.result(WAIT)
    closing.join(WAIT)
    assert not closing.is_alive()
    compiler.close()


@pytest.mark.slow
def test_a_process_that_dies_fails_its_grammar_and_another_one_takes_its_place():
    compiler = Compiler(glint(), NO_LIMITS, timeout=WAIT)
    try:
        compiler.submit(Grammar.regex("a")).result(WAIT)
        dying = compiler.submit(Grammar.regex(".*a.{20}"))
        time.sleep(0.3)
        compiler._child.kill()
        with pytest.raises(RequestFailed, match="ended"):
            dying.result(WAIT)
        assert compiler.submit(Grammar.regex("b")).result(WAIT).states == 2
    finally:
        compiler.close()


def test_a_compiler_that_nobody_used_closes_and_refuses():
    compiler = Compiler(glint())
    compiler.close()
    with pytest.raises(EngineClosed):
        compiler.submit(Grammar.regex("a")).result(0)


def test_a_defect_is_told_to_who_asked_and_ends_nothing():
    kind, message, param = answer(Grammar("regex", "no JSON"), glint(), DEFAULT)
    assert (kind, param) == ("JSONDecodeError", "regex")
    assert message.startswith("compiling failed")


def test_tables_left_the_longest_make_room():
    tables = [compile_grammar(Grammar.regex(letter), glint()) for letter in "abcd"]
    size = tables[0].nbytes
    cache = TableCache(3 * size)
    for letter, table in zip("abc", tables, strict=False):
        cache.put((letter, ""), table)
    assert cache.get(("a", "")) is tables[0]
    cache.put(("d", ""), tables[3])
    assert [cache.get((letter, "")) is not None for letter in "abcd"] == [True, False, True, True]
    assert (len(cache), cache.nbytes) == (3, 3 * size)
    small = TableCache(size - 1)
    small.put(("a", ""), tables[0])
    assert (len(small), small.nbytes) == (0, 0)


def test_refusals_that_would_be_no_other_the_next_time_are_remembered_up_to_a_number():
    known = Refusals(most=2)
    known.put(("slow", ""), TooSlow("so many seconds"))
    known.put(("gone", ""), RequestFailed("the process ended"))
    known.put(("long", ""), InvalidRequest("x" * 10_000))
    assert not any(known.get((name, "")) for name in ("slow", "gone", "long"))
    for name in ("a", "b"):
        known.put((name, ""), NotATable(name, param="regex"))
    assert str(known.get(("a", ""))) == "a"
    known.put(("c", ""), InvalidRequest("c"))
    assert known.get(("b", "")) is None
    assert type(known.get(("a", ""))) is NotATable and known.get(("a", "")).param == "regex"
    assert type(known.get(("c", ""))) is InvalidRequest
