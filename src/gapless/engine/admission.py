"""Who gets a row, and what it needs to begin: row, pages, a slot for its adapter, a shared or a fresh picture prefix.

First come, first served; a preempted request keeps its old place. While one waits for an adapter's slot, requests
without adapter pass it, and nobody else: they hold no slot, so it gets the next that comes free. Everything a sequence
leases is taken here and given back here, in one place (I5). A request that can never fit is refused at once, alone.
"""

from __future__ import annotations

from bisect import insort

from gapless.engine.adapters import AdapterPool, Resident
from gapless.engine.needs import Pages
from gapless.engine.prefix import PrefixEntry, PrefixTable
from gapless.engine.rows import RowPool
from gapless.engine.sequence import History, Roster, Running, Waiting
from gapless.errors import InvalidRequest, PromptTooLong, RequestTooLarge
from gapless.records import Adapter, DeviceLimits, Picture, Prefill, Prompt, RowRef


class Admission:
    """The queue of waiting requests and the leases of running ones."""

    def __init__(
        self,
        limits: DeviceLimits,
        pages: Pages,
        prefixes: PrefixTable,
        rows: RowPool,
        adapters: AdapterPool,
        roster: Roster,
        lookahead: int,
    ) -> None:
        self._limits = limits
        self._pages = pages
        self._prefixes = prefixes
        self._rows = rows
        self._adapters = adapters
        self._roster = roster
        self._lookahead = lookahead
        self._queue: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def waiting(self) -> list[Waiting]:
        """Requests without a row, in the order they will get one."""
        return list(self._queue)

    def check(self, history: History) -> None:
        """Raise if the request could not run even alone, or its insets do not lie in its prompt; nothing is taken."""
        if history.request.adapter is not None and not self._adapters.slots:
            raise InvalidRequest(
                f"the adapter {history.request.adapter.name} has no slot to go to; load the model with max_adapters",
                param="adapter",
            )
        _check_insets(history.request.prompt, self._limits.prefix - 1)
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
        insort(self._queue, Waiting(history), key=_age)

    def drop(self, request_id: int) -> Waiting | None:
        """Take a waiting request out of the queue, if it is there."""
        for i, waiting in enumerate(self._queue):
            if waiting.history.request.id == request_id:
                return self._queue.pop(i)
        return None

    def admit(self, limit: int, now: float) -> list[tuple[Running, Prefill]]:
        """Lease what the next requests in line need, up to `limit` of them, and say how to prefill each."""
        admitted: list[tuple[Running, Prefill]] = []
        at = 0  # beyond 0: the first in line waits for a slot, see above
        while at < len(self._queue) and len(admitted) < limit and self._rows.free:
            history = self._queue[at].history
            adapter, alone = history.request.adapter, history.alone
            if alone and admitted:
                break
            if adapter is not None and (at or not self._adapters.can_lease(adapter)):
                at += 1
                continue
            pair = self._lease(history)
            if pair is None:
                break
            self._queue.pop(at)
            pair[0].history.times.admitted = pair[0].history.times.admitted or now
            admitted.append(pair)
            if alone:
                break
        return admitted

    def _lease(self, history: History) -> tuple[Running, Prefill] | None:
        picture, limits = history.request.prompt.picture, self._limits
        entry = self._prefixes.find(_key(picture, history.request.adapter)) if picture is not None else None
        block = self._block_pages(picture) if entry is None else 0
        full = limits.prefix // limits.page_size if picture is not None else 0
        base = history.fed(limits.prefix)
        last = base + history.walker.remaining() - 1  # the last token is never fed
        own = self._pages_for(min(base + self._lookahead, last)) - full
        taken = self._pages.take(block + own)
        if taken is None:
            return None
        ref = self._rows.lease()
        if picture is not None:
            key = _key(picture, history.request.adapter)
            entry = entry or self._prefixes.publish(key, taken[:block], ref)
            entry.holders.add(ref)
            history.cached_tokens = 0 if block else limits.prefix
            self._pages.share(entry.pages[:full])
        table = [*(entry.pages[:full] if entry else ()), *taken[block:]]
        seq = Running(history, ref, base, table, entry)
        if history.request.adapter is not None:
            seq.adapter, seq.brings = self._adapters.lease(history.request.adapter)
        self._roster.add(seq)
        return seq, self._prefill(seq, entry, computes=block > 0)

    def _prefill(self, seq: Running, entry: PrefixEntry | None, computes: bool) -> Prefill:
        history, prompt = seq.history, seq.history.request.prompt
        full = self._limits.prefix // self._limits.page_size
        partial = entry is not None and self._limits.prefix % self._limits.page_size != 0
        return Prefill(
            start=seq.start(),
            ids=prompt.ids + tuple(t.id for t in history.tokens),
            values=prompt.values + tuple(t.values for t in history.tokens),
            position=self._limits.prefix if entry is not None else 0,
            pages=tuple(seq.pages),
            picture=prompt.picture if computes else None,
            prefix_pages=entry.pages if entry is not None and computes else (),
            tail=(entry.pages[-1], seq.pages[full]) if entry is not None and partial else None,
            insets=prompt.insets,
            adapter=history.request.adapter if seq.brings else None,
        )

    def release(self, seq: Running) -> RowRef:
        """Give back all a sequence holds. Only at zero refs (the caller sees to it)."""
        self._roster.remove(seq)
        self._pages.give_back(tuple(seq.pages))
        if seq.entry is not None:
            self._prefixes.leave(seq.entry, seq.ref)
        if seq.adapter is not None:
            self._adapters.give_back(seq.adapter)
        self._rows.give_back(seq.ref)
        return seq.ref

    def withdraw(self, entry: PrefixEntry) -> None:
        """Let no later request share this picture block; its computation failed."""
        self._prefixes.withdraw(entry)

    def withdraw_adapter(self, resident: Resident) -> None:
        """Let no later request have this adapter as it is; bringing it failed."""
        self._adapters.withdraw(resident)

    def _pages_for(self, positions: int) -> int:
        return -(-positions // self._limits.page_size)

    def _block_pages(self, picture: Picture | None) -> int:
        return self._pages_for(self._limits.prefix) if picture is not None else 0


def _key(picture: Picture, adapter: Adapter | None) -> str:
    """What a picture's block is shared under: an adapter changes what is computed for the same picture."""
    return picture.digest if adapter is None else f"{picture.digest} {adapter.key}"


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
