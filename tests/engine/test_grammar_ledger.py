"""The ledger of token tables against a naive model of it: random leases, returns and failed steps, in little room."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.drawn_tables import drawn_table
from tests.fakes.ruled import tables
from tests.fakes.scene import ask

from gapless.engine.grammars import GrammarPool, check_grammar
from gapless.errors import InvalidRequest, InvariantBroken, RequestTooLarge
from gapless.records import DeviceLimits

KNOWN = [drawn_table(i, 16, states, 4) for i, states in enumerate((2, 3, 4, 6, 8))]
SIZES = [table.numbers for table in KNOWN]
ALIKE = drawn_table(0, 16, 2, 4)
"""The same as the first, made anew."""


class GrammarMachine(RuleBasedStateMachine):
    """Who holds what is a list of leases; who may be overwritten are the idle ones, by when they were left."""

    @initialize(slots=st.integers(1, 4), numbers=st.integers(SIZES[-1], 2 * SIZES[-1] + 9))
    def start(self, slots, numbers):
        self.pool, self.slots, self.numbers = GrammarPool(slots, numbers), slots, numbers
        self.leases = []  # what was leased, by every sequence that runs
        self.idle = []  # tables that nobody holds, the one that was left first in front

    def held(self):
        """What is held, once each."""
        return list({id(seated): seated for seated in self.leases}.values())

    def fits(self, table, beside):
        """Whether a slot and a gap are there beside some."""
        edges = sorted((seated.first, seated.end) for seated in beside)
        begins, ends = [0, *(end for _, end in edges)], [*(first for first, _ in edges), self.numbers]
        room = max(end - begin for begin, end in zip(begins, ends, strict=True))
        return len(beside) < self.slots and room >= table.numbers

    @rule(table=st.sampled_from([*KNOWN, ALIKE]))
    def lease(self, table):
        mine = [s for s in (*self.held(), *self.idle) if s.table == table and not s.withdrawn]
        possible = bool(mine) or self.fits(table, self.held())
        assert self.pool.can_lease(table) is possible
        if not possible:
            with pytest.raises(InvariantBroken, match="no room"):
                self.pool.lease(table)
            return
        stays = next((n for n in range(len(self.idle) + 1) if self.fits(table, [*self.held(), *self.idle[n:]])), None)
        seated, brings = self.pool.lease(table)
        assert seated.table == table and brings is (not mine) and not seated.withdrawn
        if mine:
            assert seated is mine[0]
            self.idle = [s for s in self.idle if s is not seated]
        else:
            self.idle = self.idle[stays:]  # no more had to go than those left first
            assert seated.slot not in {s.slot for s in (*self.held(), *self.idle)} and 1 <= seated.slot <= self.slots
        self.leases.append(seated)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data):
        seated = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.pool.give_back(seated)
        if not seated.withdrawn and all(s is not seated for s in self.leases):
            self.idle.append(seated)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def withdraw(self, data):
        seated = data.draw(st.sampled_from(self.leases))
        self.pool.withdraw(seated)
        assert seated.withdrawn

    @invariant()
    def apart(self):
        there = [*self.held(), *self.idle]
        taken = np.zeros(self.numbers, dtype=int)
        for seated in there:
            assert seated.first >= 0 and seated.end <= self.numbers
            taken[seated.first : seated.end] += 1
        assert taken.max(initial=0) <= 1, "two tables share numbers"
        assert len({seated.slot for seated in there}) == len(there), "two share a slot"
        assert sorted(self.pool.held()) == sorted(seated.slot for seated in self.held())
        assert self.pool.resident == sum(not seated.withdrawn for seated in there)


TestGrammarMachine = GrammarMachine.TestCase
TestGrammarMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, derandomize=True)


def test_what_nobody_holds_is_not_given_back():
    pool = GrammarPool(1, 99)
    seated, _ = pool.lease(KNOWN[0])
    pool.give_back(seated)
    with pytest.raises(InvariantBroken, match="nobody holds it"):
        pool.give_back(seated)


def test_a_gap_that_is_just_large_enough_is_used():
    pool = GrammarPool(3, SIZES[2] + SIZES[1] + SIZES[2])
    first, _ = pool.lease(KNOWN[1])
    between, _ = pool.lease(KNOWN[2])
    last, _ = pool.lease(drawn_table(9, 16, 4, 4))
    assert (between.first, last.first, last.end) == (SIZES[1], SIZES[1] + SIZES[2], pool.numbers)
    pool.give_back(between)
    again, brings = pool.lease(drawn_table(8, 16, 4, 4))
    assert brings and (again.first, again.end) == (first.end, last.first)


LIMITS = DeviceLimits(9, 99, 4, 160, 13, 2, 64, grammars=2, grammar_numbers=600)
TABLE = tables()[3]


@pytest.mark.parametrize(
    ("changed", "limits", "error", "words"),
    [
        ({"program": "point"}, LIMITS, InvalidRequest, "point answers in values"),
        ({"host_masked": True}, LIMITS, InvalidRequest, "its masks are built on the host"),
        ({}, replace(LIMITS, vocab=65), InvalidRequest, "made for 64 ids, but the model has 65"),
        ({}, replace(LIMITS, grammars=0), RequestTooLarge, "(grammars is 0); start it with grammars of 1"),
        ({}, replace(LIMITS, grammar_numbers=500), RequestTooLarge, "takes 1064 bytes (28 states, 18 kinds of token)"),
        ({}, replace(LIMITS, grammar_numbers=500), RequestTooLarge, "grammar_memory is 1000; raise grammar_memory"),
        ({"max_tokens": 11}, LIMITS, InvalidRequest, "takes 12 tokens, but max_tokens is 11"),
    ],
)
def test_what_can_never_be_ruled_is_refused_with_numbers(changed, limits, error, words):
    check_grammar(replace(ask(1, max_tokens=12), grammar=TABLE), replace(LIMITS, grammar_numbers=TABLE.numbers))
    most = {key: value for key, value in changed.items() if key == "max_tokens"}
    request = replace(ask(1, **{"max_tokens": 12, **most}), grammar=TABLE)
    request = replace(request, **{key: value for key, value in changed.items() if key not in most})
    with pytest.raises(error) as raised:
        check_grammar(request, limits)
    assert words in str(raised.value) and raised.value.param in ("grammar", "max_tokens")
