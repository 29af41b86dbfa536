"""Which device a name means: "auto", "cpu", "cuda" or "cuda:N", and whether that GPU can be used.

In: the name and a driver that is asked. Out: "cpu" or "cuda:N", or an `InvalidRequest` that says what is there. Knows
nothing of models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from gapless.errors import InvalidRequest, shown

OLDEST = (8, 0)
"""The oldest compute capability: bfloat16 arithmetic begins there (Ampere)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `free` and `total` in bytes; `capability` is (major, minor)."""

    index: int
    name: str
    capability: tuple[int, int]
    free: int
    total: int

    @property
    def device(self) -> str:
        """Its name for torch."""
        return f"cuda:{self.index}"


class Driver(Protocol):
    """What is asked of CUDA."""

    def forked(self) -> bool:
        """Whether this process was forked from one that had used CUDA, and so cannot use it."""
        ...

    def count(self) -> int:
        """How many GPUs there are."""
        ...

    def why_none(self) -> str:
        """A reason why there is no GPU."""
        ...

    def look_at(self, index: int) -> Gpu:
        """Describe one."""
        ...


class TorchDriver:
    """CUDA as torch sees it."""

    def forked(self) -> bool:
        """See `Driver`."""
        return bool(torch.cuda._is_in_bad_fork())

    def count(self) -> int:
        """See `Driver`."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def why_none(self) -> str:
        """See `Driver`."""
        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) was built without CUDA; install a build with it"
        return "no driver answers; check nvidia-smi and CUDA_VISIBLE_DEVICES"

    def look_at(self, index: int) -> Gpu:
        """See `Driver`."""
        found = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        return Gpu(index, found.name, (found.major, found.minor), free, total)


def choose_device(name: str, driver: Driver) -> str:
    """ "cpu" or "cuda:N". "auto" is the first GPU that can be used, else the CPU. Raises `InvalidRequest`; so
    does "auto" in a fork that has lost its GPU, where a CPU in silence would be a surprise."""
    if not isinstance(name, str):
        raise InvalidRequest(f"device must be auto, cpu, cuda or cuda:N, not {shown(name)}", param="device")
    if name == "cpu":
        return name
    if name == "auto":
        _check_not_forked(name, driver)
        gpus = (driver.look_at(i) for i in range(driver.count()))
        return next((gpu.device for gpu in gpus if gpu.capability >= OLDEST), "cpu")
    return find_gpu(name, driver).device


def find_gpu(name: str, driver: Driver) -> Gpu:
    """The GPU that "cuda" (the first) or "cuda:N" means. Raises `InvalidRequest` if there is none, or it is too old."""
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not (number.isascii() and number.isdecimal() and len(number) < 6)):
        raise InvalidRequest(f"device {shown(name)} does not exist; use auto, cpu, cuda or cuda:N", param="device")
    _check_not_forked(name, driver)
    count, index = driver.count(), int(number or 0)
    if not count:
        raise InvalidRequest(
            f"device {name!r} was asked for, but there is no GPU: {driver.why_none()}; or use cpu", param="device"
        )
    if index >= count:
        raise InvalidRequest(
            f"device {name!r} is not there: GPUs are numbered 0 to {count - 1} on this machine", param="device"
        )
    gpu = driver.look_at(index)
    if gpu.capability < OLDEST:
        raise InvalidRequest(
            f"{gpu.name} has compute capability {_dotted(gpu.capability)}, but {_dotted(OLDEST)} is the least; use cpu",
            param="device",
        )
    return gpu


def _check_not_forked(name: str, driver: Driver) -> None:
    if driver.forked():
        raise InvalidRequest(
            f"device {name!r} cannot be had in this process: it was forked after CUDA was used, and CUDA does not "
            "survive a fork; start processes with the method spawn, or fork before anything uses the GPU; or use cpu",
            param="device",
        )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
