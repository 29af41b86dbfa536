"""The adapter ledger: which adapter is in which slot of the device, and how many sequences hold it.

A slot is leased by every sequence that runs with its adapter, from its admission until no step in flight contains it,
and is written only while nobody holds it (I5). Adapters that nobody holds stay where they are until their slot is
wanted: the one that was left the longest ago goes first. Slot 0 is no adapter: nobody leases it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.errors import InvariantBroken
from gapless.records import Adapter


@dataclass(slots=True, eq=False)
class Resident:
    """An adapter in a slot. `withdrawn`: it may not have arrived there, so nobody new may have it."""

    adapter: Adapter
    slot: int
    holders: int = 0
    withdrawn: bool = False


class AdapterPool:
    """Slots 1..slots of one device."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._free = list(range(slots, 0, -1))
        self._residents: dict[str, Resident] = {}  # by key; those that nobody holds in the order they were left
        self._leaving: list[Resident] = []

    @property
    def resident(self) -> int:
        """How many adapters are in slots."""
        return len(self._residents)

    def can_lease(self, adapter: Adapter) -> bool:
        """Whether it is there, or has a slot to go to."""
        return adapter.key in self._residents or bool(self._free) or self._idle() is not None

    def lease(self, adapter: Adapter) -> tuple[Resident, bool]:
        """Hold an adapter for a sequence, and whether it must be brought to its slot first. It must have one."""
        resident = self._residents.get(adapter.key)
        fresh = resident is None
        if resident is None:
            resident = self._residents[adapter.key] = Resident(adapter, self._slot())
        resident.holders += 1
        return resident, fresh

    def _slot(self) -> int:
        if self._free:
            return self._free.pop()
        idle = self._idle()
        if idle is None:
            raise InvariantBroken("I5: an adapter is leased a slot, but all are held")
        del self._residents[idle.adapter.key]
        return idle.slot

    def _idle(self) -> Resident | None:
        return next((r for r in self._residents.values() if not r.holders), None)

    def give_back(self, resident: Resident) -> None:
        """A sequence that held it is over."""
        if not resident.holders:
            raise InvariantBroken(f"I5: the adapter {resident.adapter.key} is given back, but nobody holds it")
        resident.holders -= 1
        if resident.holders:
            return
        if resident.withdrawn:
            self._leaving.remove(resident)
            self._free.append(resident.slot)
        else:  # last in line to be overwritten
            self._residents[resident.adapter.key] = self._residents.pop(resident.adapter.key)

    def withdraw(self, resident: Resident) -> None:
        """The step that should have brought it failed: whoever wants it next brings it again, to another slot."""
        if not resident.withdrawn:
            resident.withdrawn = True
            del self._residents[resident.adapter.key]
            self._leaving.append(resident)

    def held(self) -> list[str]:
        """Adapters that are leased, for the audit."""
        return [r.adapter.key for r in (*self._residents.values(), *self._leaving) if r.holders]
