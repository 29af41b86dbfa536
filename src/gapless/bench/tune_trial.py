"""What a step takes with one choice of tiles or another, on the GPU, and whether it is right.

In: dimensions and choices. Out: see `Trial`. A step has a few layers of full size, as many as fit, whose weights no
cache holds, and the head. It is timed as one CUDA graph for each choice, replayed in turns; a layer's kernels are timed
in company, with what overlaps. It is checked against float32 on that GPU, into memory that holds NaN beforehand.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gapless.bench.tune_scene import PAGE, Scene, decoder_of
from gapless.kernels.triton.choices import Choice, Dims, Gpu
from gapless.kernels.triton.compiling import Compilers, Job, dense_step
from gapless.kernels.triton.decode import TritonStep

CONTEXT = 800
"""Positions of a row, on average: a picture, a question and part of an answer."""
LAYERS = 6
"""Far more weights of full size than a cache holds; fewer where memory is short."""
MEMORY_SHARE = 0.4
"""What the layers may take of the memory that is free, weights and contexts: there is more beside them."""
ERROR = 1e-2
"""Of bfloat16 operands, against float32."""
AGAIN = 20
"""Launches that must give the same bits."""
_log = logging.getLogger("gapless.tune")
C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)


class Step(Protocol[C_contra]):
    """A fused step, as `TritonStep` and `TritonSparseStep` are."""

    def with_choices(self, choices: Mapping[int, C_contra]) -> Step[C_contra]:
        """The same step with other tiles."""
        ...

    def poison(self) -> None:
        """Put NaN wherever it leaves numbers for its own kernels."""
        ...

    def forward(self, x: Tensor, positions: Tensor, tables: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `FusedStep.forward`."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """See `FusedStep.logits`."""
        ...


class StepTrial(ABC, Generic[C]):
    """See `Trial`. One scene at a time is in memory."""

    def __init__(self, step: Step[C], device: torch.device, compilers: Compilers) -> None:
        self._step, self._device, self._compilers = step, device, compilers
        self._scene: Scene | None = None
        self._capability = torch.cuda.get_device_capability(device)

    @abstractmethod
    def job(self, rows: int, choice: C) -> Job:
        """What compiles the kernels of a choice."""

    @abstractmethod
    def scene(self, rows: int) -> Scene:
        """Rows in the middle of their answers, and what is right for them."""

    def prepare(self, rows: int, choices: Sequence[C]) -> None:
        """See `Trial`."""
        self._compilers.compile([self.job(rows, choice) for choice in choices])

    @torch.inference_mode()
    def right(self, rows: int, choice: C) -> bool:
        """See `Trial`."""
        scene, step = self._scene_of(rows), self._with(rows, choice)
        first: tuple[Tensor, Tensor] | None = None
        for _ in range(AGAIN):
            step.poison()
            hidden = step.forward(scene.x, scene.positions, scene.tables, scene.keys, scene.values)
            found = hidden.clone(), step.logits(hidden)
            if first is None:
                first = found
                if max(map(error_of, found, scene.right)) > ERROR:
                    _log.warning("%s computes steps of %d rows wrongly, and is passed by", choice, rows)
                    return False
            elif not all(map(torch.equal, found, first)):
                _log.warning("%s computes steps of %d rows differently each time, and is passed by", choice, rows)
                return False
        return True

    @torch.inference_mode()
    def times(self, rows: int, choices: Sequence[C], turns: int) -> list[float | None]:
        """See `Trial`."""
        graphs = [self._captured(rows, choice) for choice in choices]
        taken: list[list[tuple[torch.cuda.Event, torch.cuda.Event]]] = [[] for _ in graphs]
        for _ in range(turns):
            for graph, own in zip(graphs, taken, strict=True):
                if graph is not None:
                    own.append(replayed(graph))
        torch.cuda.synchronize(self._device)
        return [1e3 * median(a.elapsed_time(b) for a, b in own) if own else None for own in taken]

    def _captured(self, rows: int, choice: C) -> torch.cuda.CUDAGraph | None:
        """A step as a graph; None for tiles that cannot be compiled or launched."""
        scene, step = self._scene_of(rows), self._with(rows, choice)
        work = partial(step.forward, scene.x, scene.positions, scene.tables, scene.keys, scene.values)
        graph = torch.cuda.CUDAGraph()
        try:
            step.logits(work())
            torch.cuda.synchronize(self._device)
            with torch.cuda.graph(graph):
                step.logits(work())
            graph.replay()
        except Exception as error:  # whatever a compiler says of tiles that nobody tried before
            _log.info("%s cannot be used for %d rows: %s", choice, rows, str(error).strip()[:200])
            return None
        return graph

    def _with(self, rows: int, choice: C) -> Step[C]:
        return self._step.with_choices({rows: choice})

    def _scene_of(self, rows: int) -> Scene:
        if self._scene is None or len(self._scene.x) != rows:
            self._scene = None
            self._scene = self.scene(rows)
        return self._scene


class DenseTrial(StepTrial[Choice]):
    """Of steps without experts. `rows`: those that there will be."""

    def __init__(
        self,
        dims: Dims,
        dtype: torch.dtype,
        device: torch.device,
        gpu: Gpu,
        compilers: Compilers,
        rows: Sequence[int],
    ) -> None:
        free, _ = torch.cuda.mem_get_info(device)
        layers = max(1, min(LAYERS, int(MEMORY_SHARE * free / layer_bytes(dims, max(rows), dtype.itemsize))))
        step = TritonStep(decoder_of(dims, layers, 4 * CONTEXT, dtype, device), gpu)
        super().__init__(step, device, compilers)
        self._make, self._gpu, self._weights = partial(decoder_of, dims, 1, 4 * CONTEXT, dtype), gpu, step.weights

    def job(self, rows: int, choice: Choice) -> Job:
        """See `StepTrial`."""
        return Job(partial(dense_step, self._make, self._gpu, rows, choice), self._capability, rows, PAGE)

    def scene(self, rows: int) -> Scene:
        """See `StepTrial`."""
        return Scene.of(self._weights, rows, CONTEXT)


def layer_bytes(dims: Dims, rows: int, itemsize: int) -> int:
    """What a layer takes: its weights, twice while they are laid out, and the keys and values of so many rows."""
    weights = 4 * dims.dim**2 + 2 * dims.dim * dims.inner
    return itemsize * (2 * weights + 2 * rows * (CONTEXT + CONTEXT // 8 + PAGE) * dims.dim)


def error_of(found: Tensor, right: Tensor) -> float:
    """How far off, of the right one's size; infinite where a number is none."""
    off = float((found.float() - right).norm() / right.norm())
    return off if off == off else float("inf")  # noqa: PLR0124 - so is NaN told


def replayed(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Run it once, between two events."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    before.record()
    graph.replay()
    after.record()
    return before, after
