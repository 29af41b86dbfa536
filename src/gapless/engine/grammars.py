"""The ledger of token tables: which is in which slot of the device, where its numbers lie, and how many hold it.

A slot is leased by every sequence whose answer its table rules, from its admission until no step in flight contains it,
and is written only while nobody holds it (I5). Equal tables share a slot. Tables that nobody holds stay where they are
until their room is wanted: the one that was left the longest ago goes first. Slot 0 is no table: nobody leases it.

Numbers of all tables lie in one pool, each table's in one piece, in the first gap that is large enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gapless.errors import InvalidRequest, InvariantBroken, RequestTooLarge
from gapless.records import DeviceLimits, GrammarLoad, HostGrammar, Request, TokenTable

PROGRAMS = ("text", "reason")
"""Those that answer in text, which alone a table can rule."""


@dataclass(slots=True, eq=False)
class Seated:
    """A table in a slot, its numbers from `first` on. `withdrawn`: it may not have arrived there, so nobody new may
    have it."""

    table: TokenTable
    slot: int
    first: int
    holders: int = 0
    withdrawn: bool = False

    @property
    def end(self) -> int:
        """Behind its numbers."""
        return self.first + self.table.numbers

    def load(self) -> GrammarLoad:
        """How it is brought there."""
        return GrammarLoad(self.table, self.first)


class GrammarPool:
    """Slots 1..slots of one device, and `numbers` int16 for them all."""

    def __init__(self, slots: int, numbers: int) -> None:
        self.slots, self.numbers = slots, numbers
        self._free = list(range(slots, 0, -1))
        self._seated: dict[str, Seated] = {}  # by digest; those that nobody holds in the order they were left
        self._leaving: list[Seated] = []

    @property
    def resident(self) -> int:
        """How many tables are in slots."""
        return len(self._seated)

    def can_lease(self, table: TokenTable) -> bool:
        """Whether it is there, or can go somewhere."""
        return table.digest in self._seated or self._plan(table.numbers) is not None

    def lease(self, table: TokenTable) -> tuple[Seated, bool]:
        """Hold a table for a sequence, and whether it must be brought first. It must be one that can be leased."""
        seated = self._seated.get(table.digest)
        fresh = seated is None
        if seated is None:
            seated = self._seated[table.digest] = self._seat(table)
        seated.holders += 1
        return seated, fresh

    def _seat(self, table: TokenTable) -> Seated:
        plan = self._plan(table.numbers)
        if plan is None:
            raise InvariantBroken("I5: a token table is leased a slot, but there is no room")
        first, gone = plan
        for seated in gone:
            del self._seated[seated.table.digest]
            self._free.append(seated.slot)
        return Seated(table, self._free.pop(), first)

    def _plan(self, numbers: int) -> tuple[int, list[Seated]] | None:
        """Where so many numbers can go, and who makes room for them; None: there is none."""
        gone: list[Seated] = []
        idle = (seated for seated in self._seated.values() if not seated.holders)
        while True:
            first = self._gap(numbers, gone) if self._free or gone else None
            if first is not None:
                return first, gone
            leaves = next(idle, None)
            if leaves is None:
                return None
            gone.append(leaves)

    def _gap(self, numbers: int, gone: Iterable[Seated]) -> int | None:
        """The first place for so many numbers beside all but those that are gone."""
        stay = [*(seated for seated in self._seated.values() if seated not in gone), *self._leaving]
        first = 0
        for seated in sorted(stay, key=_first):
            if first + numbers <= seated.first:
                return first
            first = seated.end
        return first if first + numbers <= self.numbers else None

    def give_back(self, seated: Seated) -> None:
        """A sequence that held it is over."""
        if not seated.holders:
            raise InvariantBroken(f"I5: the token table in slot {seated.slot} is given back, but nobody holds it")
        seated.holders -= 1
        if seated.holders:
            return
        if seated.withdrawn:
            self._leaving.remove(seated)
            self._free.append(seated.slot)
        else:  # last in line to be overwritten
            self._seated[seated.table.digest] = self._seated.pop(seated.table.digest)

    def withdraw(self, seated: Seated) -> None:
        """The step that should have brought it failed: whoever wants it next brings it again, to another slot."""
        if not seated.withdrawn:
            seated.withdrawn = True
            del self._seated[seated.table.digest]
            self._leaving.append(seated)

    def held(self) -> list[int]:
        """Slots that are leased, for the audit."""
        return [seated.slot for seated in (*self._seated.values(), *self._leaving) if seated.holders]


def check_grammar(request: Request, limits: DeviceLimits) -> None:
    """Raise `InvalidRequest` or `RequestTooLarge` if the request's table, if it has one, can never rule its answer."""
    table, most = request.grammar, request.sampling.max_tokens
    if request.guide is not None:
        _check_guide(request, request.guide, limits)
    if table is None:
        return
    if request.program not in PROGRAMS or request.host_masked:
        why = (
            "its masks are built on the host; load the model with constraints 'device'"
            if request.host_masked
            else f"{request.program} answers in values; ask for it without a rule"
        )
        raise InvalidRequest(f"a token table rules answers in text on the device, but {why}", param="grammar")
    if len(table.classes) != limits.vocab:
        raise InvalidRequest(
            f"the token table was made for {len(table.classes)} ids, but the model has {limits.vocab}; compile the "
            "rule for this model",
            param="grammar",
        )
    if not limits.grammars:
        raise RequestTooLarge(
            "the engine was started without room for tables of rules (grammars is 0); start it with grammars of 1 or "
            "more",
            param="grammar",
        )
    if table.numbers > limits.grammar_numbers:
        raise RequestTooLarge(
            f"the rule's table takes {2 * table.numbers} bytes ({table.states} states, {table.following.shape[1]} "
            f"kinds of token), and grammar_memory is {2 * limits.grammar_numbers}; raise grammar_memory, or make the "
            "rule smaller (lower maxLength, maxItems, repetitions)",
            param="grammar",
        )
    if table.fewest > most:
        raise InvalidRequest(
            f"the shortest answer that the rule allows takes {table.fewest} tokens, but max_tokens is {most}; raise it",
            param="max_tokens",
        )


def _check_guide(request: Request, guide: HostGrammar, limits: DeviceLimits) -> None:
    if request.program not in PROGRAMS or not request.host_masked or request.grammar is not None:
        raise InvalidRequest(
            f"a guide leads answers in text whose masks are built on the host, and no table beside it, but {request.id}"
            f" is of {request.program}, host_masked {request.host_masked}",
            param="grammar",
        )
    if len(guide.words.pieces) != limits.vocab:
        raise InvalidRequest(
            f"the rule was written for {len(guide.words.pieces)} ids, but the model has {limits.vocab}; compile it for "
            "this model",
            param="grammar",
        )


def _first(seated: Seated) -> int:
    return seated.first
