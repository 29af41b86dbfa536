"""Tables of grammars, compiled in a process of their own and kept by content.

In: grammars, from any thread. Out: futures of their tables, or of host grammars where there is no table. Nothing here
makes the caller wait: compiling is seconds of pure Python at worst and would hold the interpreter's lock against an
engine's loop or a server's event loop, so it runs in one other process, which is started when it is first needed, gives
way to everything else on the machine, and is killed when a grammar takes too long.

Invariants: a grammar is compiled once, however many ask for it, and an error goes to all who asked; what is kept is
bounded in bytes, what waits and what is known to be refused in number; a caller who cancels is taken off, and a grammar
that nobody waits for any more is not begun and takes nobody's place; after `close` every future is done.
"""

from __future__ import annotations

import queue
import subprocess
import threading
from collections import OrderedDict
from concurrent.futures import Future
from multiprocessing import Pipe
from typing import ClassVar

from gapless.constrain.grammar import Grammar
from gapless.constrain.guides import INSTALL, installed
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.constrain.vocabulary import Vocabulary
from gapless.errors import EngineClosed, GaplessError, InvalidRequest, RequestFailed
from gapless.host_grammar import HostGrammar
from gapless.locks import Lock
from gapless.own_process import main_of
from gapless.token_table import TokenTable

MOST_REFUSALS = 256
"""So many grammars that were refused are remembered with the reason."""
LONGEST_REASON = 4096
"""Characters of a reason that is remembered; most have some hundred, but names of a schema may be in it."""
START_SECONDS = 60.0
"""How long the process may take to start; a loaded machine needs seconds."""

Rule = TokenTable | HostGrammar
"""What a grammar becomes: a table, or what masks on the host are built by."""
Key = tuple[str, str]
"""Digests of a grammar and of a vocabulary."""


class TooManyGrammars(RequestFailed):
    """As many grammars wait to be compiled as may; later there may be room."""

    status: ClassVar[int] = 429


class TooSlow(NotATable):
    """A grammar whose table, or whose masks, took too long; on a machine that has more time it may do."""


class CompilerGone(RequestFailed):
    """The process that compiles grammars ended, or did not start; the next grammar starts another."""

    status: ClassVar[int] = 503


class TableCache:
    """Tables by content, the ones used last kept, up to a number of bytes. Not safe between threads by itself."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._tables: OrderedDict[Key, Rule] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._tables)

    def get(self, key: Key) -> Rule | None:
        """The table, if it is there; it counts as used."""
        table = self._tables.get(key)
        if table is not None:
            self._tables.move_to_end(key)
        return table

    def put(self, key: Key, table: Rule) -> None:
        """Keep a table; the ones left the longest ago make room. One larger than all room is not kept."""
        if key in self._tables or table.nbytes > self._most:
            return
        self._tables[key] = table
        self.nbytes += table.nbytes
        while self.nbytes > self._most:
            _, gone = self._tables.popitem(last=False)
            self.nbytes -= gone.nbytes


class Refusals:
    """Why grammars are refused, those asked for last. Not safe between threads by itself."""

    def __init__(self, most: int = MOST_REFUSALS) -> None:
        self._most = most
        self._known: OrderedDict[Key, InvalidRequest] = OrderedDict()

    def get(self, key: Key) -> InvalidRequest | None:
        """An error of the caller's own, if the grammar is known to be refused; it counts as used."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return type(found)(str(found), param=found.param)

    def put(self, key: Key, error: GaplessError) -> None:
        """Remember what would be no other the next time: what is wrong with a grammar, and that it is too large."""
        if not isinstance(error, InvalidRequest) or isinstance(error, TooSlow) or len(str(error)) > LONGEST_REASON:
            return
        self._known[key] = type(error)(str(error), param=error.param)
        if len(self._known) > self._most:
            self._known.popitem(last=False)


def needing_more(error: NotATable) -> NotATable:
    """Why a rule has no table, with what leads those without one."""
    return type(error)(f"{error}; or {INSTALL}, which leads rules without a table on the host", param=error.param)


def neither(error: NotATable, other: NotATable) -> NotATable:
    """Why a rule has no table, and why it cannot be led on the host."""
    if str(other) == str(error):
        return error
    return type(error)(f"{error}; nor can it be led on the host: {other}", param=error.param)


class _Job:
    """A grammar that is waited for, and by whom."""

    def __init__(self, key: Key, grammar: Grammar) -> None:
        self.key, self.grammar = key, grammar
        self.waiting: list[Future[Rule]] = []
        self.begun = False

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return any(not future.cancelled() for future in self.waiting)


class Compiler:
    """Tables for one vocabulary. `submit` from any thread; `close` when done."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: Limits = DEFAULT,
        *,
        cache_bytes: int = 256 * 2**20,
        most_waiting: int = 64,
        timeout: float = 30.0,
        on_host: bool | None = None,
    ) -> None:
        """`timeout`: seconds a grammar may take; `most_waiting`: grammars that may wait to be compiled; `on_host`:
        whether those without a table are led on the host, None: if what that needs is installed."""
        self._vocabulary, self._limits = vocabulary, limits
        self._digest = vocabulary.digest  # milliseconds, once
        self._most_waiting, self._timeout = most_waiting, timeout
        self._on_host = installed() if on_host is None else on_host
        self._lock = Lock()
        self._cache, self._refusals = TableCache(cache_bytes), Refusals()
        self._jobs: dict[Key, _Job] = {}  # in their order, the one that is begun among them
        self._goes: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each job that was entered, False to end
        self._thread: threading.Thread | None = None
        self._closed = False
        self._child: _Child | None = None
        self.compiled = 0
        """Grammars that were compiled, also those that turned out wrong."""
        self.seconds = 0.0
        """What their tables took."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tables that are kept."""
        return self._cache.nbytes

    @property
    def kept(self) -> int:
        """How many these are."""
        return len(self._cache)

    def submit(self, grammar: Grammar) -> Future[Rule]:
        """The table of a grammar, or what leads on the host if it has none; at once if it is known.

        The future fails with `InvalidRequest` for what is wrong with the grammar, `NotATable` for what needs another
        way (too slow counts as that), `TooManyGrammars`, `CompilerGone` if the compiler itself is not to be had,
        `EngineClosed` after `close`.
        """
        future: Future[Rule] = Future()
        key = grammar.digest, self._digest
        with self._lock:
            known = self._cache.get(key)
            error = None if known is not None else self._refusals.get(key) or self._enter(key, grammar, future)
        if known is not None:
            future.set_result(known)
        elif error is not None:
            future.set_exception(error)
        return future

    def _enter(self, key: Key, grammar: Grammar, future: Future[Rule]) -> GaplessError | None:
        """Join the job that compiles it, or begin one; the error if that cannot be."""
        if self._closed:
            return EngineClosed("the compiler of grammars was closed")
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) >= self._most_waiting:
                self._jobs = {key: job for key, job in self._jobs.items() if job.begun or job.wanted}
            if len(self._jobs) >= self._most_waiting:
                return TooManyGrammars(f"{len(self._jobs)} grammars wait to be compiled; ask again later")
            job = self._jobs[key] = _Job(key, grammar)
            self._goes.put(True)
        job.waiting.append(future)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gapless-grammars", daemon=True)
            self._thread.start()
        return None

    def close(self) -> None:
        """End the process; whoever still waits gets `EngineClosed`."""
        with self._lock:
            self._closed = True
            child, thread = self._child, self._thread
        if child is not None:
            child.kill()
        self._goes.put(False)
        if thread is not None:
            thread.join()

    def abandon(self) -> None:
        """The same soon, without waiting for it or for a lock: for destructors, which run anywhere."""
        self._closed = True
        self._goes.put(False)

    def _run(self) -> None:
        while self._goes.get():
            if (job := self._next()) is not None:
                self._finish(job, self._compiled(job.grammar))
        if self._child is not None:
            self._child.kill()

    def _next(self) -> _Job | None:
        """Begin the first job that somebody still waits for; those before it are over. None if there is none."""
        with self._lock:
            while self._jobs:
                job = next(iter(self._jobs.values()))
                if job.wanted:
                    job.begun = True
                    return job
                del self._jobs[job.key]
        return None

    def _finish(self, job: _Job, result: Rule | GaplessError) -> None:
        with self._lock:
            del self._jobs[job.key]
            if isinstance(result, GaplessError):
                self._refusals.put(job.key, result)
            else:
                self._cache.put(job.key, result)
                self.seconds += result.seconds
        for future in job.waiting:  # complete: nobody joins a job that is not in `_jobs`
            if future.set_running_or_notify_cancel():
                if not isinstance(result, GaplessError):
                    future.set_result(result)
                else:
                    future.set_exception(result)

    def _compiled(self, grammar: Grammar) -> Rule | GaplessError:
        """Its table; if it has none, the grammar of its masks; if that cannot be either, why it has no table."""
        result = self._asked(grammar, on_host=False)
        self.compiled += 1
        if not isinstance(result, NotATable):
            return result
        if not self._on_host:
            return needing_more(result)
        other = self._asked(grammar, on_host=True)
        if isinstance(other, NotATable) and not isinstance(other, TooSlow):
            return neither(result, other)
        return other

    def _asked(self, grammar: Grammar, *, on_host: bool) -> Rule | GaplessError:
        closed = EngineClosed("the compiler of grammars was closed")
        with self._lock:
            if self._closed:
                return closed
        try:
            child = self._process()
            result = child.ask(grammar, self._timeout, on_host=on_host)
        except Exception as error:  # most likely the line's end; whatever it is, those who come after are served
            self._drop()
            with self._lock:
                gone = CompilerGone(f"the process that compiles rules ended ({error!r}); ask again")
                return closed if self._closed else gone
        if result is None:
            self._drop()
            result = TooSlow(f"the {grammar.kind} takes more than {self._timeout:g} s to compile", param=grammar.kind)
        return result

    def _process(self) -> _Child:
        if self._child is not None and self._child.over:  # killed while it had nothing to do: no grammar's fault
            self._drop()
        if self._child is None:
            child = _Child()
            with self._lock:
                self._child = child
                closed = self._closed
            if closed:
                raise EOFError
            child.begin(self._vocabulary, self._limits)
        return self._child

    def _drop(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.kill()


class _Child:
    """The other process and the line to it."""

    def __init__(self) -> None:
        self._line, theirs = Pipe()
        with theirs:
            own = theirs.fileno()
            words = main_of("gapless.constrain.child", str(own))
            self._process = subprocess.Popen(words, pass_fds=(own,), stdin=subprocess.DEVNULL)

    def begin(self, vocabulary: Vocabulary, limits: Limits) -> None:
        """Tell it the vocabulary. Raises `OSError` or `EOFError` if it does not start."""
        if not self._line.poll(START_SECONDS):
            raise TimeoutError(f"it did not start within {START_SECONDS:g} s")
        self._line.recv()
        self._line.send((list(vocabulary.pieces), vocabulary.end, limits))
        self._vocabulary = vocabulary

    def ask(self, grammar: Grammar, timeout: float, *, on_host: bool) -> Rule | GaplessError | None:
        """Its answer, None if there is none in time. Raises `OSError` or `EOFError` if it ended."""
        self._line.send((grammar, on_host))
        if not self._line.poll(timeout):
            return None
        answer = self._line.recv()
        if isinstance(answer, TokenTable):
            return answer
        if len(answer) == 2:
            text, seconds = answer
            return HostGrammar(text, self._vocabulary, seconds)
        kind, message, param = answer
        return _ERRORS.get(kind, RequestFailed)(message, param=param)

    @property
    def over(self) -> bool:
        """It has ended, by itself or by another's hand."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it, whatever it does. May be called again."""
        self._process.kill()
        self._process.wait()


_ERRORS: dict[str, type[GaplessError]] = {"NotATable": NotATable, "InvalidRequest": InvalidRequest}
