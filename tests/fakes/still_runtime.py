"""A GPU that computes nothing: the CUDA device's own code on it takes what the host's part of a step takes.

What flows in: the CUDA device's calls. What flows out: for each step a line a row, always the same word, which lands at
once. Replays of a captured forward and tail do no more than that; everything else is `InlineRuntime`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel
from tests.fakes.inline_runtime import InlineEvent, InlineRuntime
from tests.fakes.scene import table_of
from torch import Tensor

from gapless.bench.timed import Session
from gapless.config import CudaDeviceConfig, EngineConfig
from gapless.device.cuda import CudaDevice
from gapless.device.packet import Asked, Count
from gapless.device.record import Field
from gapless.records import POISON

WORD = 40


class StillRuntime(InlineRuntime):
    """Copies home land at once."""

    inference = torch.inference_mode()

    def copy_out(
        self, source: Tensor, target: Tensor, after: InlineEvent, landed: InlineEvent, began: InlineEvent | None = None
    ) -> None:
        self._time(began, landed)
        with self.inference:
            target.copy_(source)


def still_session(rows: int, depth: int = 2) -> Session:
    """An engine on a CUDA device whose decode steps of up to `rows` rows compute nothing."""
    model = HashModel(HashSpec(max_context=1024))
    table = table_of(model.spec)
    config = EngineConfig(depth, max_rows=rows, page_size=16, pages=64 * rows + 8, prefills_per_step=rows)
    buckets = tuple(sorted({1, rows}))
    device = CudaDevice(model, table, config, CudaDeviceConfig(buckets=buckets, arena_bytes=300), StillRuntime())
    for _ in device.prepare():
        pass
    for key in device.graphs._captured:
        if key[0] == "forward":
            device.graphs._captured[key] = _next_step(device)
        elif key[0] == "tail":
            device.graphs._captured[key] = _say(device, device._slots[int(str(key[1]))].lines.numpy())
    return Session(device, table, config)


def _next_step(device: CudaDevice) -> Callable[[], None]:
    step = device.program.inbox.step.numpy()

    def forward() -> None:
        step[0] += 1

    return forward


def _say(device: CudaDevice, lines: np.ndarray) -> Callable[[], None]:
    inbox, epochs = device.program.inbox, device.program.rows.counts.numpy()[:, Count.EPOCH]
    step, rows, asked = inbox.step.numpy(), inbox.rows.numpy(), inbox.asked.numpy()

    def tail() -> None:
        count = np.count_nonzero(asked == Asked.SAMPLE)
        mine = lines[:count]
        mine[:] = POISON
        mine[:, Field.STEP], mine[:, Field.ROW], mine[:, Field.EPOCH] = step[0], rows[:count], epochs[rows[:count]]
        mine[:, Field.FLAGS], mine[:, Field.TOKEN], mine[:, Field.LOGPROB] = 0, WORD, 0

    return tail
