"""A stage whose device is the CUDA device's own code on a runtime without a GPU, refereed.

What flows in: a hash model and sizes. What flows out: a `Stage` as for the simulated device and its refereed device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.fakes.hash_model import HashModel
from tests.fakes.inline_runtime import InlineRuntime
from tests.fakes.masks import ThreadMasks
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Stage, table_of
from tests.fakes.sim_clock import SimClock
from tests.fakes.sim_guided import GUIDES

from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.constrain.guided import GuidedMasks
from gapless.costs import Costs
from gapless.device.cuda import CudaDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox


@contextmanager
def inline_stage(
    model: HashModel,
    depth: int,
    *,
    graphs: bool = True,
    buckets: tuple[int, ...] | None = None,
    rows: int = 9,
    pages: int = 400,
    page_size: int = 4,
    seed: int = 0,
    delays: tuple[float, float] = (0.0, 0.003),
    adapters: int = 0,
    grammars: int = 0,
    numbers: int = 0,
    host: int = 0,
    max_step_ms: float | None = None,
    costs: Costs | None = None,
) -> Iterator[tuple[Stage, Refereed]]:
    """An engine on the CUDA device without a GPU; `rows` and `pages` count the reserved ones, `host`
    pictures in host memory; `costs` None: the device measures its own, if there is a limit."""
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
    table, clock, mailbox = table_of(model.spec), SimClock(), ThreadMailbox()
    masks = ThreadMasks(mailbox.notify, delays, seed)
    cuda = CudaDeviceConfig(graphs=graphs, buckets=buckets, arena_bytes=300, poison=True)
    inner = CudaDevice(model, table, cutting if costs is None else config, cuda, InlineRuntime())
    for _ in inner.prepare():
        pass
    device = Refereed(inner, table)
    device.told = costs
    guided = GuidedMasks(mailbox.notify, GUIDES)
    try:
        yield Stage(Engine(device, table, cutting, masks, mailbox, clock, guided), mailbox, clock), device
    finally:
        device.close()
        masks.close()
        guided.close()
