"""A GPU's streams, events, pinned memory and graphs, and nothing that knows what they are used for.

One compute stream runs everything that computes, in the order it was enqueued (I1). The copy stream brings results
back, each copy behind an event of the compute stream. The upload stream takes pictures in; the compute stream waits
for each. The protocol is what `CudaDevice` needs; tests put a runtime without a GPU in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from gapless.device.stream_pool import streams
from gapless.errors import NotEnoughMemory


class Event(Protocol):
    """A mark on a stream."""

    def synchronize(self) -> None:
        """Block until the stream has reached it."""
        ...


class Runtime(Protocol):
    """What a device does with its streams. All calls after `setting_up` come from the loop's thread."""

    device: torch.device
    name: str
    """The GPU's, for people."""

    def setting_up(self) -> AbstractContextManager[None]:
        """A context in which this thread's work goes to the compute stream, behind all that was enqueued before."""
        ...

    def bind(self) -> None:
        """From now on this thread's work goes to the compute stream."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Page-locked host memory, zeroed, which copies read and write without the host's help. Raises
        `NotEnoughMemory`."""
        ...

    def event(self, timed: bool = False) -> Event:
        """A new event; `timed` ones can be measured between."""
        ...

    def mark(self, event: Event) -> None:
        """Let the compute stream reach `event` after what it has been given."""
        ...

    def copy_out(self, source: Tensor, target: Tensor, after: Event, landed: Event, began: Event | None = None) -> None:
        """On the copy stream: after `after`, copy to pinned `target`; then `landed`. `began` is reached before it."""
        ...

    def upload(self, source: Tensor, target: Tensor, arrived: Event, began: Event | None = None) -> None:
        """On the upload stream: copy pinned `source`; the compute stream goes on after `arrived`. `began` is reached
        before it."""
        ...

    def seconds(self, earlier: Event, later: Event) -> float:
        """Device time between two timed events that were reached."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` enqueues; the return value enqueues it again."""
        ...

    def settle(self) -> None:
        """Wait for everything, and let go of memory that is cached but not used. Never while serving."""
        ...

    def healthy(self) -> bool:
        """Whether the device still computes, asked after an error. Waits for what is in flight."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes nobody has taken, and all bytes there are."""
        ...

    def peak_of(self, work: Callable[[], None]) -> int:
        """Run `work` and return how many bytes it held at most, beyond what was held before."""
        ...

    def give_back(self) -> None:
        """Leave the streams to the next engine: the last call of all, once, after `settle` and on a healthy GPU."""
        ...


Own = Any
"""A `torch.cuda.Event`, made by `CudaRuntime.event`. Each is used several times a step, so that is not looked at."""


class CudaRuntime:
    """One engine's streams of one GPU. See `Runtime`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = torch.cuda.get_device_name(device)
        self._triple = streams.take(device)
        self.compute, self._copy, self._upload = self._triple.compute, self._triple.copy, self._triple.upload
        self._pool: Any = None
        self._inference = torch.inference_mode()  # entered each step, never within itself

    @contextmanager
    def setting_up(self) -> Iterator[None]:
        """See `Runtime`."""
        self.compute.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.device(self.device), torch.cuda.stream(self.compute):
            yield

    def bind(self) -> None:
        """See `Runtime`."""
        torch.cuda.set_stream(self.compute)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See `Runtime`. Raises `NotEnoughMemory` where the system locks no more pages."""
        try:
            return torch.zeros(shape, dtype=dtype, pin_memory=True)
        except RuntimeError as error:
            size = math.prod(shape) * dtype.itemsize / 1e6
            raise NotEnoughMemory(
                f"no {size:.1f} MB of page-locked host memory could be had ({str(error).splitlines()[0]}); lower "
                "max_rows, send smaller pictures, or raise the limit of locked memory (ulimit -l)"
            ) from error

    def event(self, timed: bool = False) -> torch.cuda.Event:
        """See `Runtime`."""
        return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]

    def mark(self, event: Own) -> None:
        """See `Runtime`."""
        event.record(self.compute)

    def copy_out(self, source: Tensor, target: Tensor, after: Own, landed: Own, began: Own = None) -> None:
        """See `Runtime`."""
        self._copy.wait_event(after)
        torch.cuda.set_stream(self._copy)
        try:
            if began is not None:
                began.record(self._copy)
            with self._inference:
                target.copy_(source, non_blocking=True)
            landed.record(self._copy)
        finally:
            torch.cuda.set_stream(self.compute)

    def upload(self, source: Tensor, target: Tensor, arrived: Own, began: Own = None) -> None:
        """See `Runtime`."""
        torch.cuda.set_stream(self._upload)
        try:
            if began is not None:
                began.record(self._upload)
            target.copy_(source, non_blocking=True)
            arrived.record(self._upload)
        finally:
            torch.cuda.set_stream(self.compute)
        self.compute.wait_event(arrived)

    def seconds(self, earlier: Own, later: Own) -> float:
        """See `Runtime`."""
        return float(earlier.elapsed_time(later)) / 1000.0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See `Runtime`. All graphs share one memory pool: they run one after the other.

        Thread-local: other threads may allocate and copy meanwhile. torch's own random numbers are the exception: its
        generator belongs to the GPU, not to a thread, and refuses everyone while any capture runs.
        """
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            with suppress(RuntimeError):  # it complains of a capture that was cut short; why, says the first error
                graph.capture_end()
            raise
        graph.capture_end()
        return graph.replay

    def settle(self) -> None:
        """See `Runtime`."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()

    def healthy(self) -> bool:
        """See `Runtime`. An error that the context cannot leave is raised by every later call."""
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return False
        return True

    def memory(self) -> tuple[int, int]:
        """See `Runtime`."""
        return torch.cuda.mem_get_info(self.device)

    def peak_of(self, work: Callable[[], None]) -> int:
        """See `Runtime`."""
        self.settle()
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        peak = torch.cuda.max_memory_allocated(self.device) - before
        self.settle()
        return peak

    def give_back(self) -> None:
        """See `Runtime`. Page-locked memory that nobody has any more is the system's again, where torch can do that."""
        streams.give_back(self._triple)
        for name in ("_host_emptyCache", "_accelerator_emptyHostCache"):  # of older and of newer releases
            if torch.cuda.is_initialized() and hasattr(torch._C, name):  # type: ignore[no-untyped-call]
                getattr(torch._C, name)()
