"""The model that a benchmark runs on, and where: random weights at full size on a GPU, the bundled model on a CPU.

In: a name, or None for the usual one, and a device's name. Out: a loaded model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gapless.config import KVDType
from gapless.errors import NotEnoughMemory

if TYPE_CHECKING:
    from gapless.models.registry import Loaded

RANDOM = "random"
"""The name for full-size random weights of Moondream 2: times do not depend on what weights say."""
BUNDLED = "glint"
FLOAT32 = 4
"""Bytes of a weight on a CPU."""


def where(device: str) -> str:
    """ "cpu" or "cuda:N" for a device's name; "auto" is the first GPU, or the CPU. Raises `InvalidRequest`."""
    from gapless.device.gpus import TorchDriver, choose_device

    return choose_device(device, TorchDriver())


def load(model: str | None, device: str, plain: bool = False, kv_dtype: KVDType = "auto") -> Loaded:
    """Load on `device` ("cpu" or "cuda:N"): bfloat16 on a GPU, float32 on a CPU. A name of `random_weights.SIZES` is
    random weights of those dimensions. `plain`: torch's kernels alone; `kv_dtype`: of the KV cache. Raises
    `NotEnoughMemory`, and what loading raises."""
    from gapless.models.moondream.random_weights import SIZES
    from gapless.models.registry import load_model, random_model

    name = model or (BUNDLED if device == "cpu" else RANDOM)
    size = SIZES[0] if name == RANDOM else name
    if size in SIZES:
        if device == "cpu":
            check_memory(size)
        return random_model(size, device, plain=plain, kv_dtype=kv_dtype)
    return load_model(name, device, plain=plain, kv_dtype=kv_dtype)


def check_memory(size: str) -> None:
    """Refuse random weights that this machine cannot hold: the system would end the process without a word. Raises
    `NotEnoughMemory`."""
    from gapless.models.machine import machine_memory
    from gapless.models.moondream.random_weights import random_bytes

    takes, memory = random_bytes(size, FLOAT32), machine_memory()
    if takes > memory:
        raise NotEnoughMemory(
            f"random weights of {size} take {takes / 1e9:.1f} GB on a CPU, but this machine has {memory / 1e9:.1f} GB; "
            "measure it on a GPU, or a smaller model here",
            param="model",
        )


def names_of(model: str | None) -> list[str | None]:
    """The models that a name stands for: one, or several kinds of random weights with commas between them."""
    from gapless.models.moondream.random_weights import SIZES

    names = (model or "").split(",")
    return list(names) if len(names) > 1 and set(names) <= {*SIZES, RANDOM} else [model]


def check_sizes(depths: Sequence[int], rows: Sequence[int], param: str) -> None:
    """Refuse depths and numbers of rows that no engine takes, before anything is loaded. `param`: what the rows are
    called. Raises `InvalidRequest`."""
    from gapless.api.load import LARGEST, check_size

    for depth in depths:
        check_size("depth", depth, LARGEST["depth"])
    for count in rows:
        check_size(param, count, LARGEST["max_rows"])
