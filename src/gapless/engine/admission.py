"""Who gets a row, and what it needs to begin: row, pages, slots for its adapter and its token table, and the longest
prefix that is there.

First come, first served; a preempted request keeps its old place. While one waits for a slot, its adapter's or its
token table's, requests with neither pass it, and nobody else: they hold no slot, so it gets what comes free next.
Everything a sequence leases is taken here and given back here, in one place (I5). A request that can never fit is
refused at once, alone.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from gapless.engine.adapters import Resident
from gapless.engine.adjusting import adjustment_of, check_adjusted
from gapless.engine.grammars import Seated, check_grammar
from gapless.engine.ledgers import Ledgers
from gapless.engine.prefix import Item, PrefixEntry, items_of, items_said, space_of
from gapless.engine.sequence import History, Roster, Running, Waiting
from gapless.errors import InvalidRequest, PromptTooLong, RequestTooLarge
from gapless.observe.counters import Counters
from gapless.records import (
    DeviceLimits,
    HostPlace,
    Inset,
    Picture,
    Prefill,
    Prompt,
    Request,
    RowRef,
    RowStart,
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that was given all it needs, its whole prefill, and what stands there, behind its picture."""

    seq: Running
    prefill: Prefill
    items: tuple[Item, ...]


class Admission:
    """The queue of waiting requests and the leases of running ones."""

    def __init__(
        self,
        limits: DeviceLimits,
        ledgers: Ledgers,
        roster: Roster,
        lookahead: int,
        counters: Counters,
    ) -> None:
        self._limits = limits
        self._pages = ledgers.pages
        self._prefixes = ledgers.prefixes
        self._rows = ledgers.rows
        self._adapters = ledgers.adapters
        self._grammars = ledgers.grammars
        self._features = ledgers.features
        self._roster = roster
        self._lookahead = lookahead
        self._counters = counters
        self._queue: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def waiting(self) -> list[Waiting]:
        """Requests without a row, in the order they will get one."""
        return list(self._queue)

    def check(self, history: History) -> None:
        """Raise if the request could not run even alone, or its prompt is none; nothing is taken."""
        if history.request.adapter is not None and not self._adapters.slots:
            raise InvalidRequest(
                f"the adapter {history.request.adapter.name} has no slot to go to; load the model with max_adapters",
                param="adapter",
            )
        if not history.request.prompt.ids:
            raise InvalidRequest("the prompt has no ids, so nothing follows from it; give at least one", param="prompt")
        _check_insets(history.request.prompt, self._limits.prefix - 1)
        check_grammar(history.request, self._limits)
        check_adjusted(history.request.sampling, self._limits.vocab)
        first, most = history.fed(self._limits.prefix), history.walker.remaining()
        if first + most > self._limits.max_context:
            raise PromptTooLong(
                f"picture and prompt take {first} tokens and the answer may take {most}: {first + most} in all, but "
                f"the context is {self._limits.max_context}; shorten the prompt or lower max_tokens"
            )
        tail = self._limits.prefix % self._limits.page_size != 0 and history.request.prompt.picture is not None
        need = self._pages_for(first + most - 1) + tail  # a shared block's last page is copied, never written
        if need > self._limits.pages - 1:
            raise RequestTooLarge(
                f"the request may need {need} KV pages of {self._limits.page_size} tokens, the engine has "
                f"{self._limits.pages - 1} in all; lower max_tokens, or raise pages"
            )

    def enqueue(self, history: History) -> None:
        """Queue a new or preempted request at the place its age gives it."""
        prompt = items_of(history.request.prompt, self._limits.prefix - 1)
        insort(self._queue, Waiting(history, (*prompt, *items_said(history.tokens))), key=_age)

    def drop(self, request_id: int) -> Waiting | None:
        """Take a waiting request out of the queue, if it is there."""
        for i, waiting in enumerate(self._queue):
            if waiting.history.request.id == request_id:
                return self._queue.pop(i)
        return None

    def admit(self, now: float, *, first: bool) -> Admitted | None:
        """Lease what the next request in line needs, and say how to prefill it; `first`: nothing is in its step yet."""
        at = 0  # beyond 0: the first in line waits for a slot, see above
        while at < len(self._queue) and self._rows.free:
            history = self._queue[at].history
            if history.alone and not first:
                return None
            if self._waits(history.request, behind=at > 0):
                at += 1
                continue
            admitted = self._lease(self._queue[at])
            if admitted is None:
                return None
            self._queue.pop(at)
            if history.times.admitted is None:
                history.times.admitted = now
            return admitted
        return None

    def _waits(self, request: Request, *, behind: bool) -> bool:
        """Whether it has to wait for a slot; it does `behind` another that waits for one, if it needs any itself."""
        adapter, grammar = request.adapter, request.grammar
        if behind:
            return adapter is not None or grammar is not None
        there = adapter is None or self._adapters.can_lease(adapter)
        return not there or not (grammar is None or self._grammars.can_lease(grammar))

    def launches(self, seq: Running, items: tuple[Item, ...], kept: int) -> None:
        """What its prompt stands for, as far as it is launched by now: from now on others may share it. `kept`: how
        many of its slots on the host this part uses."""
        seq.begun, seq.items, seq.shown = True, items, seq.shown + kept
        self._prefixes.extend(seq.path, items, seq.pages, seq.ref, through=False)

    def abandon(self, seq: Running) -> None:
        """The rest of its prompt is never launched. Nobody may find what was to come with the first part of it, nor
        pictures that were to come."""
        for picture in seq.pictures[seq.shown :]:
            self._features.leave((picture,), well=picture.there)
        del seq.pictures[seq.shown :]
        if not seq.begun:
            seq.begun = True
            self._prefixes.withdraw(seq.made())
            if seq.adapter is not None and seq.brings:
                self._adapters.withdraw(seq.adapter)
            if seq.grammar is not None and seq.brings_grammar:
                self._grammars.withdraw(seq.grammar)

    def _lease(self, waiting: Waiting) -> Admitted | None:
        history, limits = waiting.history, self._limits
        request, picture = history.request, history.request.prompt.picture
        base = history.fed(limits.prefix)
        last = base + history.walker.remaining() - 1  # the last token is never fed
        whole = self._pages_for(min(base + self._lookahead, last))
        if whole - (base - 1) // limits.page_size > self._prefixes.free:  # whatever is there: spares looking each tick
            return None
        path = self._prefixes.find(space := space_of(request.prompt, request.adapter), waiting.items)
        block = self._block_pages(picture) if not path else 0
        behind = path[-1].end if path else self._first(picture)
        own = whole - behind // limits.page_size
        self._prefixes.hold(path)  # before anything is evicted
        taken = self._prefixes.take(block + own)
        if taken is None:
            self._prefixes.leave(path)
            return None
        ref = self._rows.lease()
        self._count(history, path, base, behind)
        path = path or [self._prefixes.publish(space, behind, taken[:block], ref)]
        shared = self._table(path)
        self._pages.share(shared)
        seq = Running(history, ref, base, [*shared, *taken[block:]], path=path)
        if request.adapter is not None:
            seq.adapter, seq.brings = self._adapters.lease(request.adapter)
        if request.grammar is not None:
            seq.grammar, seq.brings_grammar = self._grammars.lease(request.grammar)
        self._roster.add(seq)
        start = seq.start(adjustment_of(history, waiting.items))
        return Admitted(seq, self._prefill(seq, start, behind, computes=block > 0), waiting.items)

    def _count(self, history: History, path: list[PrefixEntry], base: int, behind: int) -> None:
        found = path[-1].end if path else 0
        said = len(history.tokens)
        self._counters.prefix_hits += found > 0
        self._counters.prefix_misses += found == 0
        self._counters.prefix_copies += behind % self._limits.page_size != 0
        self._counters.recomputed_tokens += min(said, base - found)
        if not history.preemptions:  # what it finds of itself is no hit of its prompt
            history.cached_tokens = found

    def _prefill(self, seq: Running, start: RowStart, behind: int, computes: bool) -> Prefill:
        """`behind`: how many positions its ids stand behind, there already or computed by it as its picture's block."""
        history, prompt, block = seq.history, seq.history.request.prompt, seq.path[0].pages
        fed = behind - self._first(prompt.picture)
        full, partial = divmod(behind, self._limits.page_size)
        picture = prompt.picture if computes else None
        insets = tuple(Inset(inset.at - fed, inset.picture) for inset in prompt.insets if inset.at >= fed)
        if prompt.picture is not None and not computes:
            self._features.touch(prompt.picture.digest)
        return Prefill(
            start=start,
            ids=(*prompt.ids, *(t.id for t in history.tokens))[fed:],
            values=(*prompt.values, *(t.values for t in history.tokens))[fed:],
            position=behind,
            pages=tuple(seq.pages),
            picture=picture,
            prefix_pages=block if computes else (),
            tail=(block[-1], seq.pages[full]) if partial else None,
            insets=insets,
            adapter=history.request.adapter if seq.brings else None,
            places=self._places(seq, [*([picture] if picture else []), *(inset.picture for inset in insets)]),
            grammar=seq.grammar.load() if seq.grammar is not None and seq.brings_grammar else None,
        )

    def _places(self, seq: Running, pictures: list[Picture]) -> tuple[HostPlace | None, ...]:
        """Where embeddings of the pictures that a prefill shows are on the host, or go; nothing is leased without."""
        if not self._limits.host_pictures:
            return ()
        leased = [self._features.lease(picture.digest) for picture in pictures]
        seq.pictures.extend(kept for kept in leased if kept is not None)
        return tuple(None if kept is None else HostPlace(kept.slot, kept.there) for kept in leased)

    def _table(self, path: list[PrefixEntry]) -> tuple[int, ...]:
        """The pages of a path that are full: a block's last one may not be."""
        full = path[0].end // self._limits.page_size
        return (*path[0].pages[:full], *(page for entry in path[1:] for page in entry.pages))

    def release(self, seq: Running) -> RowRef:
        """Give back all a sequence holds. Only at zero refs (the caller sees to it)."""
        self._roster.remove(seq)
        self.abandon(seq)
        if not seq.void:
            self._prefixes.extend(seq.path, seq.written(), seq.pages, seq.ref, through=True)
        self._prefixes.leave(seq.path)
        self._pages.give_back(tuple(seq.pages))
        self.prefilled(seq)
        if seq.adapter is not None:
            self._adapters.give_back(seq.adapter)
        if seq.grammar is not None:
            self._grammars.give_back(seq.grammar)
        self._rows.give_back(seq.ref)
        return seq.ref

    def prefilled(self, seq: Running) -> None:
        """Its prefill went well, unless it is void: give back what that alone needed."""
        self._features.leave(seq.pictures, well=not seq.void)
        seq.pictures.clear()

    def withdraw(self, seq: Running) -> None:
        """Let no later request share what a sequence computes; it failed."""
        self._prefixes.withdraw(seq.made())

    def distrust(self, seq: Running) -> None:
        """Let no later request share what a sequence computes or stands behind: one of these pages may be damaged, and
        would be for everybody."""
        self._prefixes.withdraw(entry for entry in seq.path if entry.pages)

    def withdraw_adapter(self, resident: Resident) -> None:
        """Let no later request have this adapter as it is; bringing it failed."""
        self._adapters.withdraw(resident)

    def withdraw_grammar(self, seated: Seated) -> None:
        """The same of a token table."""
        self._grammars.withdraw(seated)

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self._limits.page_size)

    def _first(self, picture: Picture | None) -> int:
        """Where a prompt's ids begin."""
        return self._limits.prefix if picture is not None else 0

    def _block_pages(self, picture: Picture | None) -> int:
        return self._pages_for(self._first(picture))


def _check_insets(prompt: Prompt, length: int) -> None:
    """Raise `InvalidRequest` unless each inset's `length` ids lie free of the others, behind BOS, before the last."""
    free = 0 if prompt.picture is not None else 1
    for i, inset in enumerate(prompt.insets):
        end = inset.at + length
        if inset.at < free or end >= len(prompt.ids) or any(prompt.values[inset.at : end]):
            raise InvalidRequest(
                f"inset {i} at id {inset.at} takes {length} of the prompt's {len(prompt.ids)} ids, of which {free} are "
                "taken before it; fill the prompt with that many ids without values, and at least one behind them",
                param="insets",
            )
        free = end


def _age(waiting: Waiting) -> int:
    return waiting.history.order
