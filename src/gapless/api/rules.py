"""The tables of one model's rules: compiled when they are asked for, in a process that this starts and ends.

In: grammars. Out: their tables, waited for by the caller alone, a thread or a task; nobody else's request waits, nor an
engine's loop or an event loop. Invariants: nothing is started before the first rule; whoever gives up takes its wish
back; a rule whose shortest answer does not fit into the request's tokens is refused, so an answer can end whole.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from dataclasses import dataclass

from gapless.api.ruling import Rule
from gapless.constrain.compiler import Compiler
from gapless.constrain.grammar import Grammar
from gapless.constrain.vocabulary import Vocabulary, token_bytes
from gapless.errors import InvalidRequest, RequestTimeout
from gapless.locks import Lock
from gapless.skills.base import Ask, SkillContext

COMPILE_SECONDS = 20.0
"""A rule that takes longer has no table: others wait behind it."""


@dataclass(frozen=True, slots=True)
class RuleCounts:
    """What was compiled since the model was loaded. `kept`: tables in the cache, of `kept_bytes`."""

    asked: int = 0
    compiled: int = 0
    refused: int = 0
    """Of those asked for: rules that were wrong, too large, or came when too many waited."""
    compile_ms: float = 0.0
    kept: int = 0
    kept_bytes: int = 0


class Rules:
    """For any thread."""

    def __init__(self, context: SkillContext, timeout: float = COMPILE_SECONDS) -> None:
        """`timeout`: seconds that a rule may take to compile."""
        self._context, self._timeout = context, timeout
        self._lock = Lock()
        self._compiler: Compiler | None = None
        self._asked = self._refused = 0
        self._owner = os.getpid()

    def table(self, grammar: Grammar) -> Future[Rule]:
        """See `Compiler.submit`. May take some milliseconds: not for an event loop's thread."""
        with self._lock:
            self._asked += 1
            self._compiler = self._compiler or Compiler(vocabulary_of(self._context), timeout=self._timeout)
            compiler = self._compiler
        future = compiler.submit(grammar)
        future.add_done_callback(self._note)
        return future

    def _note(self, future: Future[Rule]) -> None:
        if not future.cancelled() and future.exception() is not None:
            with self._lock:
                self._refused += 1

    def counts(self) -> RuleCounts:
        """Until now."""
        with self._lock:
            compiler = self._compiler
            asked, refused = self._asked, self._refused
        if compiler is None:
            return RuleCounts()
        return RuleCounts(asked, compiler.compiled, refused, 1e3 * compiler.seconds, compiler.kept, compiler.nbytes)

    def close(self) -> None:
        """End the process. Whoever still waits for a table gets `EngineClosed`, and so does who asks from now on."""
        with self._lock:
            compiler = self._compiler
        if compiler is not None and os.getpid() == self._owner:  # a fork's parent still needs it
            compiler.close()

    def abandon(self) -> None:
        """The same, without waiting for it or for a lock: for destructors."""
        if self._compiler is not None:
            self._compiler.abandon()


def vocabulary_of(context: SkillContext) -> Vocabulary:
    """The bytes behind the model's ids."""
    rules = context.templates.rules()
    return Vocabulary(token_bytes(context.tokenizer, rules.vocab), rules.end)


def wait(future: Future[Rule] | None, ask: Ask, left: float | None) -> Rule | None:
    """The table of an ask's rule, None for none; `left`: seconds of its timeout. Blocks; raises as the compiler does,
    and `RequestTimeout`."""
    if future is None:
        return None
    try:
        return fitting(future.result(left), ask)
    except Late as error:
        raise _late(ask) from error
    finally:
        future.cancel()  # of no effect if it is done


async def awaited(future: Future[Rule] | None, ask: Ask, left: float | None) -> Rule | None:
    """The same for a task."""
    if future is None:
        return None
    try:
        return fitting(await asyncio.wait_for(asyncio.wrap_future(future), left), ask)
    except TimeoutError as error:
        raise _late(ask) from error
    finally:
        future.cancel()


def fitting(table: Rule, ask: Ask) -> Rule:
    """Raises `InvalidRequest` if no answer that the rule allows can be whole within the request's tokens."""
    most = ask.sampling.max_tokens
    if table.fewest > most:
        raise InvalidRequest(
            f"the shortest answer that the rule allows takes {table.fewest} tokens with its end, and max_tokens is "
            f"{most}; allow more, or lower what the rule demands",
            param="max_tokens",
        )
    return table


def _late(ask: Ask) -> RequestTimeout:
    return RequestTimeout(
        f"the request's timeout of {ask.timeout:g} s ran out while its rule was compiled; allow more time or make the "
        "rule smaller"
    )
