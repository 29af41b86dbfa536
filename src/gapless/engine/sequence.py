"""One request inside the engine: `Waiting` until it has a row, `Running` while it has one.

The phase is the type: only a `Running` has a row, pages and tokens in flight; preemption turns it back into a
`Waiting` that remembers what was committed. Pure values and arithmetic; who may run when is decided elsewhere.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field

from gapless.constrain.ruled import state_after
from gapless.constrain.table import Walker
from gapless.engine.adapters import Resident
from gapless.engine.features import HostPicture
from gapless.engine.grammars import Seated
from gapless.engine.prefix import Item, PrefixEntry, items_said
from gapless.records import (
    Adjustment,
    FinishReason,
    Flags,
    Metrics,
    Request,
    RowRecord,
    RowRef,
    Rows,
    RowStart,
    Token,
)


@dataclass(slots=True)
class Times:
    """Moments of one request on the loop's clock, in seconds; None until they happen.

    `idle`: how long the device had stood idle until the step of the first token, in seconds.
    """

    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    idle: float | None = None


@dataclass(slots=True)
class History:
    """What a request keeps across preemptions: its committed tokens, its times, and its place in the table while it
    has no row; while it has one, `Places` knows."""

    request: Request
    order: int
    walker: Walker
    times: Times
    tokens: list[Token] = field(default_factory=list)
    preemptions: int = 0
    cached_tokens: int = 0
    alone: bool = False
    """A prefill step with it and others failed: it is prefilled by itself, so that only the culprit fails."""

    def fed(self, prefix: int) -> int:
        """Positions a prefill fills: picture block, prompt, and every token committed so far."""
        block = prefix if self.request.prompt.picture is not None else 0
        return block + len(self.request.prompt.ids) + len(self.tokens)

    def grammar_state(self) -> int:
        """Where the tokens committed so far lead in the request's token table; 0, its begin, if it has none."""
        if self.request.grammar is None:
            return 0
        return state_after(self.request, self.walker.table, self.tokens)

    def metrics(self, prefix: int, now: float, idle: float) -> Metrics:
        """Sum up at time `now`, when the device has stood idle for `idle` seconds."""
        t = self.times
        admitted = t.admitted if t.admitted is not None else now
        first = t.first_token if t.first_token is not None else now
        return Metrics(
            input_tokens=self.fed(prefix) - len(self.tokens),
            output_tokens=len(self.tokens),
            queue_ms=1e3 * (admitted - t.submitted),
            prefill_ms=1e3 * (first - admitted),
            ttft_ms=1e3 * (first - t.submitted),
            decode_ms=1e3 * (now - first),
            cached_tokens=self.cached_tokens,
            preemptions=self.preemptions,
            idle_ms=0.0 if t.idle is None else 1e3 * max(0.0, idle - t.idle),
        )


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request without a row, new or preempted. `items`: what its prefill stands for, behind its picture."""

    history: History
    items: tuple[Item, ...]


@dataclass(slots=True, eq=False)
class Running:
    """A request with a row. `base` is the position of the first token sampled in this life; `pages` its whole page
    table, shared pages first; `items` what its prefill stands for, as far as it was launched; `path` the entries of the
    prefix cache it holds. `brings`: its prefill puts its adapter into the slot, `brings_grammar` its token table;
    `begun`: some of it was launched, or it never will be. `pictures`: slots on the host that its prefill writes or
    reads, until its first token; `shown`: how many of them were launched. `void`: a step of it failed, so nobody else
    may use what it computes; unless it ended by that, it begins again."""

    history: History
    ref: RowRef
    base: int
    pages: list[int]
    items: tuple[Item, ...] = ()
    path: list[PrefixEntry] = field(default_factory=list)
    adapter: Resident | None = None
    brings: bool = False
    grammar: Seated | None = None
    brings_grammar: bool = False
    begun: bool = False
    pictures: list[HostPicture] = field(default_factory=list)
    shown: int = 0
    finalized: bool = False
    preempting: bool = False
    void: bool = False
    earlier: int = field(init=False)
    """Tokens that were committed in earlier lives."""

    def __post_init__(self) -> None:
        self.earlier = len(self.history.tokens)

    @property
    def fresh(self) -> int:
        """Tokens that were committed in this life."""
        return len(self.history.tokens) - self.earlier

    def made(self) -> list[PrefixEntry]:
        """The entries it holds that this life of its row computes."""
        return [entry for entry in self.path if entry.maker == self.ref]

    def written(self) -> list[Item]:
        """What stands at the positions it is known to have computed: the token said last may not have been fed."""
        said = self.history.tokens[len(self.history.tokens) - self.fresh : -1] if self.fresh else []
        return [*self.items, *items_said(said)]

    def start(self, adjustment: Adjustment | None) -> RowStart:
        """What the row begins with on the device, at exactly the place the committed tokens lead to (I5)."""
        walker, request = self.history.walker, self.history.request
        return RowStart(
            ref=self.ref,
            state=walker.state,
            left=walker.left,
            left_next=walker.left_next,
            objects_left=walker.objects_left,
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            seed=request.sampling.seed,
            top_logprobs=request.sampling.top_logprobs,
            host_masked=request.host_masked,
            adapter=0 if self.adapter is None else self.adapter.slot,
            grammar=0 if self.grammar is None else self.grammar.slot,
            grammar_state=self.history.grammar_state(),
            adjustment=adjustment,
        )

    def commit(self, record: RowRecord, now: float, idle: float) -> FinishReason | None:
        """Take one sampled token, at time `now` and after `idle` seconds of the device's. The end was judged on the
        device; its flags are followed, not recomputed (I6)."""
        if record.token is not None:
            self.history.tokens.append(record.token)
            if self.history.times.first_token is None:
                self.history.times.first_token, self.history.times.idle = now, idle
        if record.flags & Flags.STOP:
            return FinishReason.STOP
        if record.flags & Flags.LENGTH:
            return FinishReason.LENGTH
        return None


@dataclass(frozen=True, slots=True)
class Voices:
    """Whose tokens come from some rows, in their order: the requests, and what each has said so far."""

    requests: tuple[int, ...]
    tokens: tuple[list[Token], ...]


class Roster:
    """All running sequences, oldest request first. `rows`: theirs, in that order; `masked`: how many have their masks
    built on the host."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.masked = 0
        self._by_row: dict[int, Running] = {}
        self._by_age: list[Running] = []
        self._heard: tuple[Rows, Voices] = (Rows(), Voices((), ()))

    def __len__(self) -> int:
        return len(self._by_age)

    def add(self, seq: Running) -> None:
        """Enter a sequence that was given a row."""
        self._by_row[seq.ref.row] = seq
        insort(self._by_age, seq, key=_order)
        self._name_rows()

    def remove(self, seq: Running) -> None:
        """Strike one whose row is given back."""
        del self._by_row[seq.ref.row]
        self._by_age.remove(seq)
        self._name_rows()

    def _name_rows(self) -> None:
        self.rows = Rows(seq.ref for seq in self._by_age)
        self.masked = sum(seq.history.request.host_masked for seq in self._by_age)

    def get(self, ref: RowRef) -> Running | None:
        """Return the sequence that holds exactly this life of the row."""
        seq = self._by_row.get(ref.row)
        return seq if seq is not None and seq.ref == ref else None

    def on(self, rows: Rows) -> list[Running]:
        """Return the sequences on rows that are leased, in that order."""
        return [self._by_row[ref.row] for ref in rows]

    def voices(self, rows: Rows) -> Voices:
        """Whose rows these are, which are leased; of the same ones it is known from the last time."""
        if rows is not self._heard[0]:
            histories = [seq.history for seq in self.on(rows)]
            requests = tuple([history.request.id for history in histories])
            self._heard = rows, Voices(requests, tuple([history.tokens for history in histories]))
        return self._heard[1]

    def by_age(self) -> list[Running]:
        """Return them in the order their requests were submitted; a list of the caller's own."""
        return self._by_age.copy()


def _order(seq: Running) -> int:
    return seq.history.order
