"""Puts a loop together around a device."""

from __future__ import annotations

import time

from gapless.config import EngineConfig
from gapless.constrain.guided import GuidedMasks
from gapless.constrain.masks import MaskSource
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.engine.admission import Admission
from gapless.engine.blame import Blame
from gapless.engine.book import Book
from gapless.engine.feeding import Cutting, Feeder
from gapless.engine.ledgers import Ledgers
from gapless.engine.loop import Loop
from gapless.engine.mailbox import Mailbox
from gapless.engine.masking import Masking
from gapless.engine.pipeline import Pipeline
from gapless.engine.places import Places
from gapless.engine.planner import Planner
from gapless.engine.sequence import Roster
from gapless.errors import InvariantBroken
from gapless.observe.accounting import Standing
from gapless.observe.recording import meter_for
from gapless.observe.steps import StepTimes
from gapless.records import Clock


class MonotonicClock:
    """The machine's clock of the finest grain, the one that the CPU device stamps its work with."""

    now = staticmethod(time.perf_counter)


class Engine:
    """A loop with its ledgers, and the audit over them."""

    def __init__(
        self,
        device: Device,
        table: Table,
        config: EngineConfig,
        masks: MaskSource,
        mailbox: Mailbox,
        clock: Clock | None = None,
        guided: GuidedMasks | None = None,
    ) -> None:
        limits = device.limits
        self.picture_bytes = limits.picture_bytes
        self.clock: Clock = clock or MonotonicClock()
        self.meter = meter_for(self.clock, limits.depth)
        self.counters, self.bubble = self.meter.counters, self.meter.bubble
        self.ledgers = Ledgers.of(limits, self.counters, keep=config.prefix_cache)
        self.roster = Roster()
        self.pipeline = Pipeline(limits.depth, limits.rows)
        self.admission = Admission(limits, self.ledgers, self.roster, config.lookahead, self.counters)
        places = Places(table, limits.rows)
        self.feeder = Feeder(
            limits,
            self.admission,
            self.roster,
            places,
            config.prefills_per_step,
            _cutting(device, config),
            self.counters,
        )
        planner = Planner(limits, self.ledgers.prefixes, self.roster, places, self.feeder, config.lookahead)
        self.book = Book(table, self.admission, self.roster, places, limits.prefix, self.meter)
        blame = Blame(self.book, self.clock)
        self.loop = Loop(
            device=device,
            pipeline=self.pipeline,
            planner=planner,
            book=self.book,
            masking=Masking(masks, guided, self.book, blame),
            blame=blame,
            mailbox=mailbox,
            meter=self.meter,
        )

    def pin(self, picture: str, more: int) -> None:
        """So many more handles of a picture, by its digest, exist (or fewer). For the loop's thread, between ticks."""
        self.ledgers.prefixes.pin(picture, more)

    def watch(self, steps: int) -> tuple[StepTimes, ...]:
        """The steps that were watched since the last call; so many more are. For any thread: nothing waits."""
        self.meter.watched.left = steps
        self.loop.device.watch(steps)
        return self.meter.watched.take()

    def standing(self) -> Standing:
        """What is held now. For any thread: counts alone are read, each as it is at its moment."""
        ledgers = self.ledgers
        pictures = ledgers.features.held
        return Standing(
            running=sum(not seq.finalized for seq in self.roster.by_age()),
            pages=ledgers.pages.total,
            pages_used=ledgers.pages_used,
            steps_in_flight=self.pipeline.slots_held,
            adapters=ledgers.adapters.resident,
            pages_cached=ledgers.prefixes.cached,
            host_pictures=pictures,
            host_bytes=pictures * self.picture_bytes,
        )

    def audit(self) -> None:
        """Raise `InvariantBroken` if anything is leased while nothing runs (I5). Call when the loop is idle."""
        held = {**self.ledgers.held(), **self.pipeline.held()}
        left = {name: what for name, what in held.items() if what}
        if left:
            raise InvariantBroken(f"I5: the engine is idle but still holds {left}")


def _cutting(device: Device, config: EngineConfig) -> Cutting | None:
    """None: no limit is wanted, or the device does not say what its steps cost."""
    costs = device.costs if config.max_step_ms is not None else None
    return None if costs is None or config.max_step_ms is None else Cutting(costs, config.max_step_ms / 1e3)
