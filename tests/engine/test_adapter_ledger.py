"""The adapter ledger against a naive model of it: random leases, returns and steps that fail."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gapless.engine.adapters import AdapterPool
from gapless.errors import InvariantBroken
from gapless.records import Adapter

KNOWN = [Adapter(name, version, None) for version, name in enumerate("aabcd", 1)]


class AdapterMachine(RuleBasedStateMachine):
    """Who holds what is a list of leases; who may be overwritten is the idle one that was left first."""

    @initialize(slots=st.integers(1, 3))
    def start(self, slots):
        self.pool, self.total = AdapterPool(slots), slots
        self.leases = []  # (resident, adapter) of every sequence that runs
        self.left = []  # idle adapters and their slots, the one that was left first in front

    def mine(self, adapter):
        """A live resident that a sequence holds."""
        return next((r for r, a in self.leases if a is adapter and not r.withdrawn), None)

    def taken(self):
        """Slots that somebody holds; those of failed steps too."""
        return {r.slot for r, _ in self.leases}

    @rule(adapter=st.sampled_from(KNOWN))
    def lease(self, adapter):
        held = self.mine(adapter)
        idle = next((slot for a, slot in self.left if a is adapter), None)
        possible = held is not None or idle is not None or len(self.taken()) < self.total
        assert self.pool.can_lease(adapter) is possible
        if not possible:
            with pytest.raises(InvariantBroken, match="all are held"):
                self.pool.lease(adapter)
            return
        resident, brings = self.pool.lease(adapter)
        assert resident.adapter is adapter and 1 <= resident.slot <= self.total and not resident.withdrawn
        assert brings is (held is None and idle is None)
        if held is not None:
            assert resident is held
        elif idle is not None:
            assert resident.slot == idle
            self.left = [(a, slot) for a, slot in self.left if a is not adapter]
        else:
            assert resident.slot not in self.taken()
            if len(self.taken()) + len(self.left) == self.total:
                assert resident.slot == self.left[0][1]
                self.left.pop(0)
            assert resident.slot not in {slot for _, slot in self.left}
        self.leases.append((resident, adapter))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def give_back(self, data):
        resident, adapter = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        self.pool.give_back(resident)
        if not resident.withdrawn and all(r is not resident for r, _ in self.leases):
            self.left.append((adapter, resident.slot))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def withdraw(self, data):
        resident, _ = data.draw(st.sampled_from(self.leases))
        self.pool.withdraw(resident)
        assert resident.withdrawn

    @invariant()
    def counted(self):
        live = {id(r) for r, _ in self.leases if not r.withdrawn}
        assert self.pool.resident == len(live) + len(self.left)
        assert sorted(self.pool.held()) == sorted({id(r): a.key for r, a in self.leases}.values())
        assert len({r.slot for r, _ in self.leases}) == len({id(r) for r, _ in self.leases}), "two share a slot"


AdapterMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, derandomize=True, deadline=None)
TestAdapterMachine = AdapterMachine.TestCase


def test_what_nobody_holds_is_not_given_back():
    pool = AdapterPool(1)
    resident, _ = pool.lease(KNOWN[0])
    pool.give_back(resident)
    with pytest.raises(InvariantBroken, match="I5: the adapter a@1 is given back, but nobody holds it"):
        pool.give_back(resident)


def test_without_slots_nothing_can_be_leased():
    assert not AdapterPool(0).can_lease(KNOWN[0])
