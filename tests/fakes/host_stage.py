"""A stage whose device is the real CPU device, rehearsing: jitter, late copies, poisoned buffers and freed pages.

What flows in: a hash model and sizes. What flows out: a `Stage` as for the simulated device, its refereed device, and
what must be closed. Ticks are the same as on the simulated device, time is real, masks are built on a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.fakes.hash_model import HashModel
from tests.fakes.masks import ThreadMasks
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Stage, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_guided import GUIDES

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.guided import GuidedMasks
from gapless.costs import Costs
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox


@contextmanager
def host_stage(
    model: HashModel,
    depth: int,
    *,
    rows: int = 9,
    pages: int = 400,
    page_size: int = 4,
    seed: int = 0,
    jitter_ms: float = 0.3,
    copy_ms: float = 0.2,
    delays: tuple[float, float] = (0.0, 0.003),
    deny: tuple[int, ...] = (),
    adapters: int = 0,
    grammars: int = 0,
    numbers: int = 0,
    host: int = 0,
    max_step_ms: float | None = None,
    costs: Costs | None = None,
) -> Iterator[tuple[Stage, Refereed]]:
    """An engine on the rehearsing CPU device; `rows` and `pages` count the reserved ones, `delays` are seconds,
    `host` pictures in host memory."""
    config = EngineConfig(
        depth=depth,
        max_rows=rows - 1,
        page_size=page_size,
        pages=pages,
        lookahead=8,
        adapters=adapters,
        grammars=grammars,
        grammar_memory=2 * numbers,
        picture_cache_host=host * model.picture_bytes,
    )
    cutting = replace(config, max_step_ms=max_step_ms)
    rehearsal = HostDeviceConfig(threads=1, poison=True, jitter_seed=seed, jitter_ms=jitter_ms, copy_delay_ms=copy_ms)
    table, clock, mailbox = table_of(model.spec), SimClock(), ThreadMailbox()
    masks = ThreadMasks(mailbox.notify, delays, seed, deny)
    device = Refereed(HostDevice(model, table, config, rehearsal), table)
    device.referee.narrower = bool(deny)
    device.told = costs
    guided = GuidedMasks(mailbox.notify, GUIDES)
    try:
        yield Stage(Engine(device, table, cutting, masks, mailbox, clock, guided), mailbox, clock), device
    finally:
        device.close()
        masks.close()
        guided.close()
