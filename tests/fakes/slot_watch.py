"""Who may read and write which slot of a device's host memory for pictures, judged from the steps it is handed (I5).

Invariants: a slot is read for the picture that was written there last, by a step that was waited for and went well; it
is written while no step in flight reads or writes it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from tests.fakes.page_watch import broken

from gapless.records import DeviceLimits, HostPlace, Prefill, Step


@dataclass
class SlotWatch:
    """`there`: digests by slot; `kept` and `brought` count what steps wrote and read."""

    limits: DeviceLimits
    there: dict[int, str] = field(default_factory=dict)
    kept: int = 0
    brought: int = 0

    def __post_init__(self) -> None:
        self._uses: dict[int, set[int]] = defaultdict(set)  # slots by step in flight
        self._writes: dict[int, dict[int, str]] = defaultdict(dict)

    def launch(self, step: Step) -> None:
        """A step uses slots from now on."""
        for prefill in step.prefills:
            digests = [inset.picture.digest for inset in prefill.insets]
            digests[:0] = [] if prefill.picture is None else [prefill.picture.digest]
            if prefill.places and len(prefill.places) != len(digests):
                raise broken("I5", f"{len(prefill.places)} places for {len(digests)} pictures")
            for digest, place in zip(digests, prefill.places, strict=False):
                if place is not None:
                    self._use(step, digest, place, prefill)

    def _use(self, step: Step, digest: str, place: HostPlace, prefill: Prefill) -> None:
        if not 0 <= place.slot < self.limits.host_pictures:
            raise broken("I5", f"host slot {place.slot} is not one of {self.limits.host_pictures}")
        if place.there and self.there.get(place.slot) != digest:
            raise broken("I5", f"{prefill.start.ref} reads host slot {place.slot}, which holds another picture or none")
        if not place.there:
            users = [number for number, slots in self._uses.items() if place.slot in slots]
            if users:
                raise broken("I5", f"step {step.id} writes host slot {place.slot}, which steps {users} use")
            self.there.pop(place.slot, None)
            self._writes[step.id][place.slot] = digest
        self._uses[step.id].add(place.slot)
        self.kept += not place.there
        self.brought += place.there

    def retire(self, step: Step, well: bool) -> None:
        """A step is over: what it wrote is there, if it went well."""
        self._uses.pop(step.id, None)
        self.there |= self._writes.pop(step.id, {}) if well else {}
        self._writes.pop(step.id, None)
