"""The book of requests: who waits, who runs, what each has said, and how each ended.

Takes mail and records in, gives emissions out. It finalizes at once and never releases early: what a finished sequence
holds is given back by `release`, which the loop calls when no step in flight contains it (I5). A finalized sequence
gets no token and says nothing more (I6).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np

from gapless.constrain.table import Table, Walker
from gapless.engine.admission import Admission
from gapless.engine.mailbox import Mail
from gapless.engine.needs import InFlight
from gapless.engine.places import Places
from gapless.engine.sequence import History, Roster, Running, Times
from gapless.errors import GaplessError, InvariantBroken, NonFiniteLogits, RequestCancelled, RequestTimeout, overdue
from gapless.observe.meter import Meter
from gapless.records import Emission, Finish, FinishReason, Flags, Records, Request, RowRecord, RowRef, Talk, Token

NOTHING = Records.of(())


class Book:
    """All requests between submission and their last emission."""

    def __init__(
        self, table: Table, admission: Admission, roster: Roster, places: Places, prefix: int, meter: Meter
    ) -> None:
        self._table = table
        self._admission = admission
        self._roster = roster
        self._places = places
        self._prefix = prefix
        self._counters, self._bubble = meter.counters, meter.bubble
        self._news: list[Emission | Talk] = []
        self._order = 0
        self._deadlines: dict[int, float] = {}  # of requests that have one and have not ended, by id

    @property
    def idle(self) -> bool:
        """Nobody waits and nobody holds a row."""
        return not len(self._admission) and not len(self._roster)

    def take_news(self) -> list[Emission | Talk]:
        """Return the news since the last call, in order."""
        news, self._news = self._news, []
        return news

    def take_emissions(self) -> list[Emission]:
        """The same, request by request."""
        return [one for some in self.take_news() for one in (some.emissions() if isinstance(some, Talk) else (some,))]

    # -- arrivals ---------------------------------------------------------------------------------------------------

    def take_mail(self, mail: Mail, now: float) -> bool:
        """Queue new requests, end cancelled and overdue ones. Returns whether there was one."""
        said = len(self._news)
        for request in mail.requests:
            self._enter(request, now)
        for request in mail.withdrawn:
            self._end(self._history(request, now), now, error=_cancelled(request.id))
        for request_id in mail.cancels:
            self._cancel(request_id, now)
        if self._deadlines and min(self._deadlines.values()) <= now:
            self._expire(now)
        return bool(mail.requests) or len(self._news) > said

    def _enter(self, request: Request, now: float) -> None:
        history = self._history(request, now)
        try:
            self._admission.check(history)
        except GaplessError as error:
            self._end(history, now, error=error)
        else:
            self._admission.enqueue(history)
            if request.deadline is not None:
                self._deadlines[request.id] = request.deadline

    def _history(self, request: Request, now: float) -> History:
        self._order += 1
        s = request.sampling
        walker = Walker.start(self._table, request.program, s.max_tokens, s.max_objects)
        submitted = now if request.submitted is None else request.submitted
        return History(request, self._order, walker, Times(submitted))

    def _cancel(self, request_id: int, now: float) -> None:
        waiting = self._admission.drop(request_id)
        if waiting is not None:
            self._end(waiting.history, now, error=_cancelled(request_id))
        for seq in self._roster.by_age():
            if seq.history.request.id == request_id:
                self._finalize(seq, now, error=_cancelled(request_id))

    def _expire(self, now: float) -> None:
        for waiting in self._admission.waiting:
            if _overdue(waiting.history.request, now):
                self._admission.drop(waiting.history.request.id)
                self._end(waiting.history, now, error=_timed_out(waiting.history, now))
        for seq in self._roster.by_age():
            if _overdue(seq.history.request, now):
                self._finalize(seq, now, error=_timed_out(seq.history, now))

    def until_deadline(self, now: float) -> float | None:
        """Seconds to the next deadline, None if there is none."""
        return max(0.0, min(self._deadlines.values()) - now) if self._deadlines else None

    # -- results ----------------------------------------------------------------------------------------------------

    def take_talk(self, records: Records) -> Records:
        """Take the tokens with which nothing begins or ends, all at once. The rest is returned: see `commit`."""
        said, rest = records, NOTHING
        if not (records.quiet and self._places.all_talk(records.rows)):
            talk = self._places.talking(records.rows) & (records.flags == 0)
            said, rest = records.only(talk), records.only(~talk)
        if said:
            self._places.advance(said.rows.numbers, said.ids)
            voices = self._roster.voices(said.rows)
            tokens = cast("tuple[Token, ...]", tuple(said.tokens))  # where no flag is set there is one
            for so_far, token in zip(voices.tokens, tokens, strict=True):
                so_far.append(token)
            self._news.append(Talk(voices.requests, tokens))
            self._counters.tokens += len(tokens)
        return rest

    def commit(self, record: RowRecord, now: float) -> None:
        """Take one row's record, whatever it says."""
        seq = self._roster.get(record.ref)
        if seq is None:
            raise InvariantBroken(f"I9: a record arrived for {record.ref}, a life of the row that is over")
        if seq.finalized:
            rode_on = Flags.MUTED in record.flags and not seq.history.request.host_masked  # those are closed instead
            self._counters.zombies += rode_on
            return
        closed = seq.preempting and record.flags & Flags.MUTED  # its forward was closed without a mask
        if seq.void or closed:  # and will be redone
            return
        if record.flags & Flags.MUTED:
            raise InvariantBroken(f"I6: {record.ref} is done on the device but not on the host")
        if record.flags & Flags.NONFINITE:
            seq.void = True
            self._admission.distrust(seq)
            self._finalize(seq, now, error=_non_finite(seq))
            return
        if seq.pictures:
            self._admission.prefilled(seq)
        first = seq.history.times.first_token is None
        reason = seq.commit(record, now, self._bubble.idle)
        self._counters.tokens += 1
        if first:
            self._began(seq.history)
        if record.token is not None:
            self._places.advance(np.array([record.ref.row]), np.array([record.token.id]))
            self._news.append(Emission(seq.history.request.id, (record.token,)))
        if reason is not None:
            self._finalize(seq, now, reason=reason)
        elif not seq.history.request.host_masked:
            self._places.talk(seq.ref)

    def _began(self, history: History) -> None:
        picture = history.request.prompt.picture is not None
        self._counters.began(history.fed(self._prefix) - len(history.tokens), picture, history.cached_tokens)

    def fail(self, rows: Iterable[RowRef], error: BaseException, now: float) -> None:
        """End the requests on `rows` (I11)."""
        for ref in rows:
            seq = self._roster.get(ref)
            if seq is not None:
                seq.void = True
                self._finalize(seq, now, error=error)

    def fail_prefill(self, rows: tuple[RowRef, ...], error: BaseException, now: float) -> None:
        """A prefill step of `rows` failed: one row alone is to blame; of several, each is prefilled again by itself.

        Whoever shares what this step was to compute, or an adapter or table that it should have brought, begins again
        too: it was launched behind it and is committed behind it, so it has said nothing wrong yet.
        """
        culprit = rows[0] if len(rows) == 1 else None
        for seq in self._touched(rows):
            seq.void = True
            if seq.ref == culprit:
                self._finalize(seq, now, error=error)
            elif not seq.finalized:
                seq.preempting = seq.history.alone = True
                self._places.leave(seq.ref.row)

    def _touched(self, rows: tuple[RowRef, ...]) -> list[Running]:
        """The sequences on `rows`, those with an adapter or a token table which one of them was to bring, and those
        that share what one of all these was to compute; it is withdrawn, and so are adapters and tables."""
        refs = set(rows)
        for seq in self._roster.by_age():
            if seq.ref in rows and seq.adapter is not None and seq.brings:
                self._admission.withdraw_adapter(seq.adapter)
                refs |= {other.ref for other in self._roster.by_age() if other.adapter is seq.adapter}
            if seq.ref in rows and seq.grammar is not None and seq.brings_grammar:
                self._admission.withdraw_grammar(seq.grammar)
                refs |= {other.ref for other in self._roster.by_age() if other.grammar is seq.grammar}
        touched = [s for s in self._roster.by_age() if s.ref in refs or any(e.maker in refs for e in s.path)]
        for seq in touched:
            self._admission.withdraw(seq)
        return touched

    def leaving(self, ref: RowRef) -> bool:
        """Whether the sequence on the row has ended or is to be preempted: it wants no further token in this life."""
        seq = self._roster.get(ref)
        return seq is None or seq.finalized or seq.preempting

    def host_walker(self, ref: RowRef) -> Walker | None:
        """The place of a row whose next mask is to be built on the host; None for all others."""
        seq = self._roster.get(ref)
        if seq is None or self.leaving(ref) or not seq.history.request.host_masked:
            return None
        return self._places.walker(ref.row)

    def guided(self, ref: RowRef) -> tuple[Request, list[Token]] | None:
        """The request on a row that a guide leads, and all that it has said; None for all others."""
        seq = self._roster.get(ref)
        if seq is None or seq.history.request.guide is None:
            return None
        return seq.history.request, seq.history.tokens

    def end_all(self, error: BaseException, now: float) -> None:
        """The engine is over: everybody who still waits for an answer gets `error`."""
        for waiting in self._admission.waiting:
            self._admission.drop(waiting.history.request.id)
            self._end(waiting.history, now, error=error)
        for seq in self._roster.by_age():
            self._finalize(seq, now, error=error)

    def _finalize(
        self, seq: Running, now: float, *, reason: FinishReason | None = None, error: BaseException | None = None
    ) -> None:
        if not seq.finalized:
            seq.finalized = True
            self._places.leave(seq.ref.row)
            self._end(seq.history, now, reason=reason, error=error)

    def _end(
        self, history: History, now: float, *, reason: FinishReason | None = None, error: BaseException | None = None
    ) -> None:
        self._deadlines.pop(history.request.id, None)
        finish = Finish(history.metrics(self._prefix, now, self._bubble.idle), reason, error)
        self._counters.finished += error is None
        self._counters.failed += error is not None
        self._news.append(Emission(history.request.id, finish=finish))

    # -- leases -----------------------------------------------------------------------------------------------------

    def releasable(self, pipeline: InFlight) -> list[Running]:
        """Sequences that ended, or are to be preempted, and ride on no step."""
        if not self._places.leaving:
            return []
        leaving = [seq for seq in self._roster.by_age() if seq.finalized or seq.preempting]
        riding = pipeline.refs_of(np.array([seq.ref.row for seq in leaving], dtype=np.int64)).tolist()
        return [seq for seq, steps in zip(leaving, riding, strict=True) if not steps]

    def release(self, seq: Running) -> RowRef:
        """Give back all a sequence holds; a preempted one waits again, with everything it has said so far."""
        ref = self._admission.release(seq)
        seq.history.walker = self._places.walker(ref.row)
        self._places.end(ref.row)
        if not seq.finalized:
            seq.history.preemptions += not seq.void
            self._counters.preemptions += not seq.void
            self._counters.retried += seq.void
            self._admission.enqueue(seq.history)
        return ref


def _overdue(request: Request, now: float) -> bool:
    return request.deadline is not None and now >= request.deadline


def _cancelled(request_id: int) -> RequestCancelled:
    return RequestCancelled(f"request {request_id} was cancelled by its caller")


def _timed_out(history: History, now: float) -> RequestTimeout:
    return overdue(now - history.times.submitted, len(history.tokens))


def _non_finite(seq: Running) -> NonFiniteLogits:
    after = f"computed NaN or infinity after {len(seq.history.tokens)} tokens"
    cure = "do not suit this dtype (try float32 or bfloat16) or are damaged"
    if seq.adapter is None:
        return NonFiniteLogits(f"the model {after}; the weights {cure}")
    name = seq.adapter.adapter.name
    return NonFiniteLogits(
        f"the model with the adapter {name!r} {after}; the adapter's values are too large, or {cure} (ask without the "
        "adapter to see whether it is the model's weights)"
    )
