"""One request under way, as its caller holds it: tokens from the channel become an answer by way of its reader.

In: emissions. Out: pieces of a stream, and the answer as a dict. Reading and detokenizing happen here, in the caller's
thread, never in the engine's. Whatever ends a wait early (an exception, Ctrl-C, a cancelled task) cancels the request.
So does a stop string, which only the reader sees: the answer is complete then, and the engine's word is waited for.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gapless.api.channel import AsyncChannel, Channel
from gapless.api.desk import Desk
from gapless.api.ruling import Rule
from gapless.errors import EngineClosed, EngineDead, GaplessError
from gapless.records import Emission, Finish, FinishReason, HostGrammar, Metrics, Token
from gapless.skills.answer import AnswerText
from gapless.skills.base import Ask, Piece
from gapless.skills.gaze import GazeReader
from gapless.skills.query import QueryReader


class Call:
    """A submitted request; one that nobody holds any more is cancelled. `reasons`: a reasoning precedes the answer.

    `table`: of the ask's rule. `started`: when its caller began to ask, on the loop's clock; its timeout counts from
    then. A call keeps the desk alive: a stream that is being read goes on when the VLM's last name is dropped.
    """

    def __init__(self, desk: Desk, ask: Ask, channel: Channel, started: float, table: Rule | None) -> None:
        self.finish: Finish | None = None
        self.reasons = ask.program == "reason"
        self._desk = desk
        self.text = ask.text
        """What the reader makes of an answer in words; None for other answers."""
        self._reader = ask.reader
        self._rule, self._shape, self._table = ask.rule, ask.shape, table
        self._stoppable: AnswerText | None = ask.text if _stoppable(ask) else None
        self._read = 0
        self._channel = channel
        self._id = 0  # nobody's, until there is a request
        deadline = None if ask.timeout is None else started + ask.timeout
        self._id = desk.runner.submit(ask.prompt, ask.program, ask.sampling, deadline, channel, ask.adapter, table)

    def cancel(self) -> None:
        """Ask for the end of the request; nothing happens if it has ended."""
        if self.finish is None:
            self._desk.runner.cancel(self._id)

    def __del__(self) -> None:
        self.cancel()

    def take(self, emission: Emission) -> tuple[Piece, ...]:
        """Read news. Raises the request's error if it ended with one."""
        if self._stoppable is None:
            pieces = self._reader.feed(emission.tokens)
        else:
            pieces = self._read_until_over(emission.tokens, self._stoppable)
        self.finish = emission.finish
        if self.finish is None:
            return pieces
        if self._stoppable is not None and self._stoppable.over:
            self.finish = self._stopped(self.finish)
        self.check()
        pieces += self._reader.finish()
        if self._stoppable is not None and self._stoppable.over:  # seen now that no text follows, perhaps
            self.finish = self._stopped(self.finish)
        return pieces

    def _told(self, error: BaseException) -> BaseException:
        """The request's error as its caller is told: the engine knows a table, the caller the rule that it is of."""
        own = _own(error)
        if self._rule is not None and isinstance(own, GaplessError) and own.param == "grammar":
            own.param = self._rule.kind
        return own

    def _read_until_over(self, tokens: Iterable[Token], text: AnswerText) -> tuple[Piece, ...]:
        """One by one, so that those behind a stop string are not counted: how many there are depends on the moment."""
        pieces: list[Piece] = []
        for token in tokens:
            if text.over:
                break
            self._read += 1
            pieces += self._reader.feed((token,))
            if text.over:
                self._channel.answered = True
                self._desk.runner.cancel(self._id)
        return tuple(pieces)

    def _stopped(self, finish: Finish) -> Finish:
        """The end of an answer that is complete, whatever became of the request since; an engine that is gone has no
        account of it."""
        if isinstance(finish.error, EngineClosed | EngineDead):
            return finish
        return Finish(replace(finish.metrics, output_tokens=self._read), FinishReason.STOP)

    @property
    def reasoning(self) -> dict[str, Any] | None:
        """The reasoning once it has ended; None before, and for requests without one."""
        return self._reader.reasoning if isinstance(self._reader, QueryReader) else None

    def check(self) -> None:
        """Raises the request's error if it has ended with one."""
        if self.finish is not None and self.finish.error is not None:
            raise self._told(self.finish.error)

    def answer(self) -> dict[str, Any]:
        """The answer, why it ended and what it cost; raises the request's error. Only after the finish."""
        assert self.finish is not None
        self.check()
        found = isinstance(self._reader, GazeReader) and self._reader.found
        ended = FinishReason.STOP if found else self.finish.reason  # one place is all that is asked for: nothing is cut
        reason = ended.value if ended is not None else None
        answer = self._reader.result() | {"finish_reason": reason, "metrics": self.metrics() or {}}
        if self._shape is not None:
            whole = self.finish.reason is FinishReason.STOP
            answer["object"] = self._shape.read(self.text.text if self.text is not None else "", whole=whole)
        return answer

    def metrics(self) -> dict[str, Any] | None:
        """What the request cost, once it has ended; of a rule's table also its sizes."""
        if self.finish is None:
            return None
        return metrics_of(self.finish) | ({} if self._table is None else {"rule": sizes_of(self._table)})


class BlockingCall(Call):
    """A request whose caller is a thread."""

    def __init__(self, desk: Desk, ask: Ask, started: float, table: Rule | None = None, *, stream: bool) -> None:
        super().__init__(desk, ask, Channel(whole=not stream and not _stoppable(ask)), started, table)

    def pull(self) -> tuple[Piece, ...]:
        """Block for news and read it."""
        try:
            return self.take(self._channel.get())
        except BaseException:
            self.cancel()
            raise

    def wait(self) -> dict[str, Any]:
        """Block for the answer."""
        while self.finish is None:
            self.pull()
        return self.answer()


class AsyncCall(Call):
    """A request whose caller is a task."""

    def __init__(self, desk: Desk, ask: Ask, started: float, table: Rule | None = None, *, stream: bool) -> None:
        self._news = AsyncChannel(whole=not stream and not _stoppable(ask))
        super().__init__(desk, ask, self._news, started, table)

    async def pull(self) -> tuple[Piece, ...]:
        """Wait for news and read it."""
        try:
            return self.take(await self._news.receive())
        except BaseException:
            self.cancel()
            raise

    async def wait(self) -> dict[str, Any]:
        """Wait for the answer."""
        while self.finish is None:
            await self.pull()
        return self.answer()


def _stoppable(ask: Ask) -> bool:
    """Whether tokens must be read as they come."""
    return ask.text is not None and ask.text.stoppable


def metrics_of(finish: Finish) -> dict[str, Any]:
    """Counts and times in milliseconds, under the names of the Moondream service where it has one."""
    m: Metrics = finish.metrics
    return {
        "input_tokens": m.input_tokens,
        "output_tokens": m.output_tokens,
        "queue_ms": m.queue_ms,
        "prefill_time_ms": m.prefill_ms,
        "decode_time_ms": m.decode_ms,
        "ttft_ms": m.ttft_ms,
        "cached_tokens": m.cached_tokens,
        "preemptions": m.preemptions,
        "idle_ms": m.idle_ms,
    }


def sizes_of(table: Rule) -> dict[str, Any]:
    """A rule's table in numbers, or "host" with the size of its grammar; `compile_ms` is what compiling it took,
    whenever that was."""
    sizes: dict[str, Any] = {"bytes": table.nbytes, "compile_ms": 1e3 * table.seconds}
    if isinstance(table, HostGrammar):
        return {"host": True, **sizes}
    return {"states": table.states, "classes": table.following.shape[1], **sizes}


def _own(error: BaseException) -> BaseException:
    """A copy with the same cause: one error may end many requests, and each raise writes into its traceback."""
    own = copy.copy(error)
    own.__cause__ = error.__cause__
    return own
