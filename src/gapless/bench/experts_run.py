"""The benchmark of experts: what one layer of them takes, from routed tokens to their weighted sum.

In: a device and numbers of tokens. Out: a report for `benchmarks/*/experts.json`, a row for each kind of weights and
number of tokens. Several layers of random weights and random routing take turns, so that no cache holds them; on a GPU
they are one CUDA graph, as in a step. `experts_read` are those that any token chose, on average; `read_mb` what they
take, and `floor_us` how long reading that takes at the bandwidth measured before, or, if it is longer, multiplying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gapless.api.load import Progress
from gapless.bench.rates import Rates, measure_rates, on_worker, time_ms
from gapless.bench.rig import facts_of
from gapless.bench.sections import Sections
from gapless.bench.text import rounded
from gapless.kernels.choose import choose
from gapless.kernels.graphed import Graphed
from gapless.kernels.grouped import has_grouped
from gapless.kernels.stacks import FP8, Stack
from gapless.models.moondream.config import MoeConfig
from gapless.models.moondream.random_weights import random_config

SIZES = {"cpu": "small-3", "cuda": "moondream-3"}
LAYERS = {"cpu": 2, "cuda": 12}
"""At full size 9.7 GB in bfloat16."""
KINDS = ("bfloat16", "float8")


@dataclass
class ExpertsBench:
    """One run: `tokens` numbers of them, each timed `repeats` times."""

    where: str
    tokens: Sequence[int]
    repeats: int
    seconds: float
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._device = torch.device(self.where)
        self._size = SIZES[self._device.type]
        text = random_config(self._size).text
        assert text.moe is not None
        self._dim, self._moe = text.dim, text.moe
        self._kernels = choose(self._device)
        self.sections = Sections(self.seconds, len(KINDS) * len(self.tokens), self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report at the end."""
        report = on_worker(self._run, self._device)
        save(report)
        return report

    @torch.inference_mode()
    def _run(self) -> dict[str, Any]:
        rates = measure_rates(self._device, torch.bfloat16)
        generator = torch.Generator(self._device).manual_seed(0)
        for kind in KINDS:
            layers = [self._layer(kind, generator) for _ in range(LAYERS[self._device.type])]
            for count in self.tokens:
                row = partial(self._row, rates, layers, kind, count, generator)
                self.sections.run(f"{count} tokens, weights in {kind}", row)
        return {
            "benchmark": "experts",
            **facts_of(self._device),
            "device": self._device.type,
            "model": {"name": f"experts of {self._size} (random weights)", "dtype": "bfloat16"},
            **rates.as_dict(),
            "rows": self.rows,
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    def _layer(self, kind: str, generator: torch.Generator) -> tuple[Stack, Stack]:
        moe, dim = self._moe, self._dim
        shapes = ((2 * moe.expert_inner_dim, dim), (dim, moe.expert_inner_dim))
        up, down = (self._stack(kind, (moe.num_experts, *shape), generator) for shape in shapes)
        return up, down

    def _stack(self, kind: str, shape: tuple[int, ...], generator: torch.Generator) -> Stack:
        values = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        values.normal_(0.0, shape[-1] ** -0.5, generator=generator)
        if kind == "bfloat16":
            return Stack(values)
        scales = values.abs().amax(-1).float() / torch.finfo(FP8).max
        return Stack((values / scales[..., None]).to(FP8), scales)

    def _row(
        self, rates: Rates, layers: list[tuple[Stack, Stack]], kind: str, count: int, generator: torch.Generator
    ) -> None:
        routed = [self._routed(count, generator) for _ in layers]
        took = self._time_us(self._kernels, layers, routed)
        other = None
        if type(self._kernels) is not Graphed and kind == "bfloat16" and has_grouped(self._device):
            other = self._time_us(Graphed(grouped=True), layers, routed)
        read = sum(len(set(chosen.flatten().tolist())) for _, _, chosen in routed) / len(layers)
        one = _weights(self._dim, self._moe)
        size = read * one * layers[0][0].values.itemsize
        floor = 1e6 * max(size / rates.bandwidth, 2.0 * count * self._moe.experts_per_token * one / rates.flops)
        self.rows.append(
            {
                "weights": kind,
                "tokens": count,
                "kernels": getattr(type(self._kernels), "__name__", "") if self._device.type == "cuda" else "reference",
                "experts_read": rounded(read),
                "read_mb": rounded(size / 1e6),
                "us": rounded(took),
                "torch_us": rounded(other),
                "floor_us": rounded(floor),
                "roofline_share": rounded(floor / took),
            }
        )

    def _routed(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, weights and choices, each token's by lot."""
        x = torch.empty(count, self._dim, dtype=torch.bfloat16, device=self._device).normal_(generator=generator)
        logits = torch.empty(count, self._moe.num_experts, dtype=torch.bfloat16, device=self._device)
        return x, *self._kernels.route(logits.normal_(generator=generator), self._moe.experts_per_token)

    def _time_us(
        self, kernels: Any, layers: list[tuple[Stack, Stack]], routed: list[tuple[Tensor, Tensor, Tensor]]
    ) -> float:
        """Microseconds of a layer."""

        def work() -> None:
            for stacks, given in zip(layers, routed, strict=True):
                kernels.experts(*given, *stacks)

        if self._device.type == "cpu":
            return 1e3 * time_ms(work, self.repeats, self._device) / len(layers)
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return 1e3 * time_ms(graph.replay, self.repeats, self._device) / len(layers)


def _weights(dim: int, moe: MoeConfig) -> int:
    """Of one expert."""
    return 3 * dim * moe.expert_inner_dim
