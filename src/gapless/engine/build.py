"""Puts a loop together around a device."""

from __future__ import annotations

import time

from gapless.config import EngineConfig
from gapless.constrain.guided import GuidedMasks
from gapless.constrain.masks import MaskSource
from gapless.constrain.table import Table
from gapless.device.base import Device
from gapless.engine.adapters import AdapterPool
from gapless.engine.admission import Admission
from gapless.engine.blame import Blame
from gapless.engine.book import Book
from gapless.engine.features import FeatureLedger
from gapless.engine.feeding import Cutting, Feeder
from gapless.engine.grammars import GrammarPool
from gapless.engine.loop import Loop
from gapless.engine.mailbox import Mailbox
from gapless.engine.masking import Masking
from gapless.engine.pages import PagePool
from gapless.engine.pipeline import Pipeline
from gapless.engine.places import Places
from gapless.engine.planner import Planner
from gapless.engine.prefix import PrefixCache
from gapless.engine.rows import RowPool
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
        self.pages = PagePool(limits.pages, limits.page_size)
        self.prefixes = PrefixCache(self.pages, self.counters, keep=config.prefix_cache)
        self.rows = RowPool(limits.rows)
        self.adapters = AdapterPool(limits.adapters)
        self.grammars = GrammarPool(limits.grammars, limits.grammar_numbers)
        self.features = FeatureLedger(limits.host_pictures, self.counters)
        self.roster = Roster()
        self.pipeline = Pipeline(limits.depth, lanes=limits.rows * limits.depth)
        self.admission = Admission(
            limits,
            self.pages,
            self.prefixes,
            self.rows,
            self.adapters,
            self.grammars,
            self.features,
            self.roster,
            config.lookahead,
            self.counters,
        )
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
        planner = Planner(limits, self.prefixes, self.roster, places, self.feeder, config.lookahead)
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
        self.prefixes.pin(picture, more)

    def watch(self, steps: int) -> tuple[StepTimes, ...]:
        """The steps that were watched since the last call; so many more are. For any thread: nothing waits."""
        self.meter.watched.left = steps
        self.loop.device.watch(steps)
        return self.meter.watched.take()

    def standing(self) -> Standing:
        """What is held now. For any thread: counts alone are read, each as it is at its moment."""
        running = sum(not seq.finalized for seq in self.roster.by_age())
        cached = self.prefixes.cached
        used = max(0, self.pages.total - self.pages.free - cached)  # pages may change hands in between
        return Standing(
            running,
            self.pages.total,
            used,
            self.pipeline.slots_held,
            self.adapters.resident,
            cached,
            self.features.held,
            self.features.held * self.picture_bytes,
        )

    def audit(self) -> None:
        """Raise `InvariantBroken` if anything is leased while nothing runs (I5). Call when the loop is idle.

        Pages of the prefix cache have one reference each, its own.
        """
        kept = self.prefixes.kept()
        if len(kept) != self.prefixes.cached or any(self.pages.refs(page) != 1 for page in kept):
            raise InvariantBroken(f"I5: the prefix cache counts {self.prefixes.cached} pages, it has {kept}")
        held = {
            "pages": sorted(set(self.pages.held()) - set(kept)),
            "rows": self.rows.held(),
            "prefixes": self.prefixes.held(),
            "adapters": self.adapters.held(),
            "token tables": self.grammars.held(),
            "host pictures": self.features.leased(),
            **self.pipeline.held(),
        }
        left = {name: what for name, what in held.items() if what}
        if left:
            raise InvariantBroken(f"I5: the engine is idle but still holds {left}")


def _cutting(device: Device, config: EngineConfig) -> Cutting | None:
    """None: no limit is wanted, or the device does not say what its steps cost."""
    costs = device.costs if config.max_step_ms is not None else None
    return None if costs is None or config.max_step_ms is None else Cutting(costs, config.max_step_ms / 1e3)
