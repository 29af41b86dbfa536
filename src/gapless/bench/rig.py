"""What a benchmark of the engine's steps runs on: a model whose answers end by surprise, and an engine for each depth.

In: a loaded model. Out: `Session`s, opened when first asked for and open until `close`, the machine's rates, and the
facts for a report's head. What only a kind of device can measure, its own rig does (`cpu_rig`, `cuda_rig`).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from gapless.bench.drawn_adapters import drawn_adapters
from gapless.bench.ending import BlindEndingModel, EndingModel
from gapless.bench.machine import describe_machine
from gapless.bench.rates import Rates, measure_rates, on_worker
from gapless.bench.roofline import Roofline
from gapless.bench.timed import Session
from gapless.bench.trace import StepWork
from gapless.bench.wave import FAR, PROMPT
from gapless.config import EngineConfig
from gapless.constrain.masks import MaskSource
from gapless.constrain.table import Rules, Table, build_table
from gapless.device.base import Device
from gapless.kernels.choose import name_of
from gapless.models.base import Model
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.registry import Loaded

PAGE_SIZE = 16
ANSWERS = (100, 121)
"""Lengths between which answers end, unknown to the engine: about 110, and so a mean context of about 800."""
SPATIAL, ADAPTED = "spatial", "adapters"
"""Rows that detect, and rows that have adapters: `ADAPTERS` of rank `RANK`, and after them one row that has none."""
ADAPTERS, RANK = 8, 16
PREFILLS = 8
"""Prompts of one prefill step."""


@dataclass(frozen=True, slots=True)
class Isolated:
    """Parts of a decode step alone, in milliseconds: its forward, and its sampling with every row greedy and with the
    default sampler. `experts_read`: of a layer, counted in that forward; None where nothing counts them."""

    forward_ms: float
    greedy_ms: float
    default_ms: float
    experts_read: float | None = None


class Inside(Protocol):
    """What can be seen inside a step of a session."""

    def isolated(self, session: Session, rows: int, kind: str | None = None) -> Isolated:
        """Time the parts of a step of `rows` rows alone. Nothing is in flight; the rows' state is left as it was.

        `kind`: `SPATIAL` or `ADAPTED` for rows that are; None for others.
        """
        ...

    def traced(self, session: Session, rows: int, steps: int) -> list[StepWork]:
        """Run `steps` steps under a profiler."""
        ...


@dataclass(frozen=True, slots=True)
class Wants:
    """What a benchmark wants of its rig. `prompt`: the most ids behind a picture; `adapters`: how many there are, of
    random numbers; `answers`: instead of `ANSWERS`; `max_step_ms`: see `EngineConfig`; `sees`: pictures are encoded,
    else each has the same made-up embedding."""

    prompt: int = PROMPT
    adapters: int = 0
    answers: tuple[int, int] | None = None
    max_step_ms: float | None = None
    sees: bool = False


class Rig(ABC):
    """See the module. `buckets`: the batch sizes that are measured, smallest first; the last is the most rows of a
    step."""

    def __init__(self, loaded: Loaded, buckets: tuple[int, ...], wants: Wants) -> None:
        self._model = loaded.model
        self._config = loaded.config
        self._model_name = loaded.name
        self._buckets = buckets
        self._rows = buckets[-1]
        self._prompt = wants.prompt
        self._answers = wants.answers or ANSWERS
        self._max_step_ms = wants.max_step_ms
        self._sees = wants.sees
        self._templates = Templates.of(loaded.config)
        self._sessions: dict[int, Session] = {}
        self.masks: MaskSource | None = None
        """Of rows whose masks come from the host, in sessions that are not open yet; None: those of the table."""
        self.adapters = drawn_adapters(
            loaded.config.text, wants.adapters, RANK, loaded.model.device, loaded.model.dtype
        )
        self.rates: Rates = on_worker(self._measure_rates, loaded.model.device)

    def _measure_rates(self) -> Rates:
        return measure_rates(self._model.device, self._model.dtype)

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the kind of device."""

    @property
    def config(self) -> MoondreamConfig:
        """The model's."""
        return self._config

    @property
    def itemsize(self) -> int:
        """Bytes of a weight."""
        return self._model.dtype.itemsize

    @property
    def expert_itemsize(self) -> int:
        """Bytes of an expert's weight, if the model has experts."""
        return self._model.expert_itemsize if isinstance(self._model, Moondream) else self.itemsize

    @property
    def roofline(self) -> Roofline:
        """What a step must read, and how fast this machine reads."""
        sizes = self.expert_itemsize, self.kv_dtype.itemsize
        return Roofline.of(self._config.text, self.itemsize, self.rates.bandwidth, *sizes)

    @property
    def kv_dtype(self) -> torch.dtype:
        """Of keys and values as they are kept."""
        return self._model.kv_dtype if isinstance(self._model, Moondream) else self._model.dtype

    @property
    def side(self) -> int:
        """Pixels of a crop's side."""
        return self._config.vision.crop_size

    @property
    def rules(self) -> Rules:
        """The model's ids."""
        return self._templates.rules()

    @property
    def prefix(self) -> int:
        """Positions of BOS and a picture's block."""
        return self._model.prefix

    @property
    def sampler(self) -> tuple[float, float]:
        """Temperature and top-p of a query whose caller sets neither."""
        return self._templates.defaults.temperature, self._templates.defaults.top_p

    def session(self, depth: int) -> Session:
        """The engine of that depth."""
        if depth not in self._sessions:
            rules = self._templates.rules()
            first = self._model.prefix + self._prompt
            kind = EndingModel if self._sees else BlindEndingModel
            model = kind(self._model, rules.end, first + self._answers[0], first + self._answers[1])
            table = build_table(rules)
            config = EngineConfig(
                depth,
                self._rows,
                PAGE_SIZE,
                self._pages(),
                prefills_per_step=PREFILLS,
                prefix_cache=False,
                adapters=len(self.adapters),
                adapter_rank=RANK if self.adapters else 0,
                max_step_ms=self._max_step_ms,
            )
            self._sessions[depth] = Session(self._open(model, table, config), table, config, self.masks)
        return self._sessions[depth]

    def _pages(self) -> int:
        """Pages for all rows, each with a picture of its own and room for what is granted ahead, and for at least one
        request as long as its token limit allows."""
        block = -(-self._model.prefix // PAGE_SIZE)
        own = -(-(self._prompt + self._answers[1] + EngineConfig().lookahead) // PAGE_SIZE) + 2
        longest = -(-(self._prompt + FAR) // PAGE_SIZE) + 2
        return max(self._rows * (block + own), block + longest) + 1

    @abstractmethod
    def _open(self, model: Model, table: Table, config: EngineConfig) -> Device:
        """A device around the model."""

    @property
    def inside(self) -> Inside | None:
        """How to look inside a step; None where there is no way."""
        return None

    def facts(self) -> dict[str, Any]:
        """Machine, versions and the like, for the report's head."""
        return {
            **facts_of(self._model.device),
            "device": self.name,
            "model": {
                "name": self._model_name,
                "dtype": str(self._model.dtype).removeprefix("torch."),
                "kv_dtype": str(self.kv_dtype).removeprefix("torch."),
            },
            "kernels": kernels_of(self._model),
            **self.rates.as_dict(),
        }

    def close(self) -> None:
        """Free all devices."""
        for session in self._sessions.values():
            session.watch.close()


def facts_of(device: torch.device) -> dict[str, Any]:
    """What a measurement ran on, and how it was started."""
    machine: dict[str, Any] = dict(describe_machine().as_dict())
    if device.type == "cuda":
        from gapless.bench.gpu import describe_gpu

        machine |= describe_gpu(device)
    return {"machine": machine, "versions": versions(), "command": _command()}


def kernels_of(model: Model) -> str | None:
    """Whose kernels a model computes with; None for one that has no set of them."""
    return name_of(model.kernels) if isinstance(model, Moondream) else None


def versions() -> dict[str, str]:
    """Of what computed the numbers."""
    from gapless import __version__

    return {"gapless": __version__, "torch": torch.__version__, "cuda": torch.version.cuda or "none"}


def _command() -> str:
    """How this process was started."""
    script = Path(sys.argv[0])
    module = f"gapless.bench.{script.stem}" if script.parent.name == "bench" else "gapless"
    program = "gapless" if script.stem == "gapless" else f"python -m {module}"
    return " ".join([program, *sys.argv[1:]])
