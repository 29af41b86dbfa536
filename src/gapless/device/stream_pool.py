"""Streams outlive the engine that used them: the next engine on the same GPU takes them over.

In: a device whose engine starts, and the streams of one that has closed. Out: three streams that nobody else uses. A
new triple is made only when none is spare, so there are never more of them than engines were open at once.

Why: torch keeps a cuBLAS workspace (tens of MB) for every pair of handle and stream that it has met, until the process
ends. With streams of its own, each engine that is loaded and closed would leave such workspaces behind. Freeing them
instead would pull memory from under the captured graphs of engines that still run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch

from gapless.errors import InvariantBroken
from gapless.locks import Lock


@dataclass(frozen=True, slots=True, eq=False)
class Triple:
    """The streams of one engine on the GPU of this `index`; see `runtime`."""

    index: int
    compute: torch.cuda.Stream
    copy: torch.cuda.Stream
    upload: torch.cuda.Stream


class StreamPool:
    """Spare triples by GPU. Any thread may call."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._spare: defaultdict[int, list[Triple]] = defaultdict(list)

    def take(self, device: torch.device) -> Triple:
        """Streams for an engine's life."""
        index = torch.cuda.current_device() if device.index is None else device.index
        with self._lock:
            if self._spare[index]:
                return self._spare[index].pop()
        return Triple(index, _new(index), _new(index), _new(index))

    def give_back(self, triple: Triple) -> None:
        """Only when all that was enqueued on them is over, and the GPU is well. Raises `InvariantBroken` for streams
        that are here already: two engines would get them."""
        with self._lock:
            if triple in self._spare[triple.index]:
                raise InvariantBroken("the streams of an engine were given back twice")
            self._spare[triple.index].append(triple)


def _new(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)  # type: ignore[no-untyped-call]


streams = StreamPool()
"""The process's: what cuBLAS keeps is kept for the process."""
