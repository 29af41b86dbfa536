"""The library around a model whose answers end by surprise: a `VLM` for each depth, made as `gapless.load` makes one.

In: a loaded model and how many requests run at once. Out: `VLM`s, opened when first asked for and open until `close`,
and lengths of answers to choose while nothing runs. All depths share the weights.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gapless.api.load import assemble
from gapless.api.vlm import VLM
from gapless.bench.clients import prompt_ids
from gapless.bench.ending import EndingModel
from gapless.bench.rates import Rates, measure_rates, on_worker
from gapless.bench.rig import PAGE_SIZE, facts_of, kernels_of
from gapless.config import EngineConfig, ImageLimits
from gapless.constrain.table import Table, build_table
from gapless.device.base import Device
from gapless.models.base import Model
from gapless.models.moondream.templates import Templates
from gapless.models.registry import Loaded

ROOM = 192
"""Positions behind a picture that every row has pages for: question, answer, and what is granted ahead."""


class VlmRig:
    """See the module. `graphs`, `plain`: of a GPU, see `CudaDeviceConfig`."""

    def __init__(self, loaded: Loaded, rows: int, graphs: bool = True, plain: bool = False) -> None:
        self._loaded = loaded
        self._rows = rows
        self._graphs = graphs
        self._plain = plain
        self._models: dict[int, EndingModel] = {}
        self._vlms: dict[int, VLM] = {}
        self._templates = Templates.of(loaded.config)
        self.rates: Rates = on_worker(self._measure_rates, loaded.model.device)

    def _measure_rates(self) -> Rates:
        return measure_rates(self._loaded.model.device, self._loaded.model.dtype)

    @property
    def side(self) -> int:
        """Pixels of a crop's side."""
        return self._loaded.config.vision.crop_size

    def vlm(self, depth: int) -> VLM:
        """The library at that depth."""
        if depth not in self._vlms:
            rules, model = self._templates.rules(), self._loaded.model
            ending = EndingModel(model, rules.end, model.max_context, model.max_context + 1)
            table = build_table(rules)
            config = EngineConfig(depth, self._rows, PAGE_SIZE, self._pages(), prefix_cache=False)
            device = self._open(ending, table, config)
            plan = getattr(device, "plan", None)
            self._models[depth] = ending
            self._vlms[depth] = assemble(self._loaded, device, table, config, ImageLimits(), plan, picture_cache=0)
        return self._vlms[depth]

    def _pages(self) -> int:
        """Pages for all rows, and for at least one request of the longest context."""
        model = self._loaded.model
        row = -(-model.prefix // PAGE_SIZE) + -(-ROOM // PAGE_SIZE) + 2
        return max(self._rows * row, -(-model.max_context // PAGE_SIZE) + 2) + 1

    def _open(self, model: Model, table: Table, config: EngineConfig) -> Device:
        if model.device.type == "cpu":
            from gapless.device.host import HostDevice

            return HostDevice(model, table, config)
        from gapless.bench.cuda_rig import open_device

        return open_device(model, table, config, graphs=self._graphs, plain=self._plain)

    def end_after(self, depth: int, shortest: int, longest: int, seed: int) -> None:
        """From now on answers have `shortest` to `longest` tokens, their end among them. Only while nothing runs."""
        last_fed = self._loaded.model.prefix + prompt_ids(self.vlm(depth)) - 1  # the first token follows it
        self._models[depth].redraw(last_fed + shortest - 1, last_fed + longest, seed)

    def facts(self) -> dict[str, Any]:
        """Machine, versions and the like, for the report's head."""
        model = self._loaded.model
        plans = {f"depth {depth}": asdict(vlm.plan) for depth, vlm in self._vlms.items() if vlm.plan is not None}
        return {
            **facts_of(model.device),
            "device": model.device.type,
            "model": {"name": self._loaded.name, "dtype": str(model.dtype).removeprefix("torch.")},
            "kernels": kernels_of(model),
            **self.rates.as_dict(),
            **({"memory": plans} if plans else {}),
        }

    def close(self) -> None:
        """End all engines."""
        for vlm in self._vlms.values():
            vlm.close(drain=False)
