"""The benchmark of sampling: what a step takes from its logits to its rows moved on and their lines written.

In: a device and numbers of rows. Out: a report for `benchmarks/*/sampler.json`, a row for each wish and number of rows.
Logits are normal with a deviation of 3, as long as Moondream's vocabulary, and the same each time: a step's logits have
just been written, so caches hold what they can of them. On a GPU several ends are one CUDA graph. Rows never end.

Wishes: `greedy`, temperature 0; `default`, what a query has whose caller sets nothing; `open`, temperature 1 and top-p
1; `flat`, `default` over logits with a deviation of 0.3, where thousands of ids stay; `logprobs`, `default` with 20
alternatives of each token; `mixed`, one row in eight `default`, the others greedy; `adjusted`, greedy with all three
penalties, 200 biases and 100 bans, whose logits are read once more, written, and read beside a word for each id.
`floor_us` is how long moving the logits once, and that besides, takes at the bandwidth measured before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gapless.api.load import Progress
from gapless.bench.rates import Rates, measure_rates, on_worker, time_ms
from gapless.bench.rig import facts_of
from gapless.bench.sampler import WISHES
from gapless.bench.sections import Sections
from gapless.bench.text import rounded
from gapless.constrain.table import build_table
from gapless.device.adjust import BIAS, PROMPT, Adjuster
from gapless.device.packet import Asked, Count, Real
from gapless.device.program import new_lines
from gapless.device.rows import RowStore
from gapless.device.tables import DeviceTable
from gapless.device.tail import Batch, Tail, TailKind
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.random_weights import random_config
from gapless.models.moondream.templates import Templates
from gapless.records import MAX_BIASED

SIZES = {"cpu": "small", "cuda": "moondream-2"}
ENDS = {"cpu": 1, "cuda": 10}
"""In a graph."""
FOREVER = 2**40


@dataclass
class SamplerBench:
    """One run: `counts` of rows, each timed `repeats` times."""

    where: str
    counts: Sequence[int]
    repeats: int
    seconds: float
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._device = torch.device(self.where)
        self._size = SIZES[self._device.type]
        self._config: MoondreamConfig = random_config(self._size)
        templates = Templates.of(self._config)
        self._usual = templates.defaults
        self._rules = templates.rules()
        self.sections = Sections(self.seconds, len(WISHES) * len(self.counts), self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report at the end."""
        report = on_worker(self._run, self._device)
        save(report)
        return report

    @torch.inference_mode()
    def _run(self) -> dict[str, Any]:
        rates = measure_rates(self._device, torch.bfloat16)
        table = DeviceTable(build_table(self._rules), self._device)
        for wish in WISHES:
            for count in self.counts:
                self.sections.run(f"{count} rows, {wish}", self._row, rates, table, wish, count)
        return {
            "benchmark": "sampler",
            **facts_of(self._device),
            "device": self._device.type,
            "model": {"name": f"logits of {self._size} (random)", "dtype": "float32"},
            "default": {"temperature": self._usual.temperature, "top_p": self._usual.top_p},
            **rates.as_dict(),
            "rows": self.rows,
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    def _row(self, rates: Rates, table: DeviceTable, wish: str, count: int) -> None:
        store, kind = (
            self._store(wish, count),
            TailKind(wish not in ("greedy", "adjusted"), adjusted=wish == "adjusted"),
        )
        batch = self._batch(wish, count)
        end = _End(Tail(_Silent(), table, store), self._adjuster(table, store) if kind.adjusted else None)
        took, other = self._time_us(end, batch, kind), None
        kernels, store.kernels = store.kernels, None
        if kernels is not None:
            other = self._time_us(end, batch, kind)
        size = batch.logits.numel() * batch.logits.itemsize * (4 if kind.adjusted else 1)
        floor = 1e6 * size / rates.bandwidth
        self.rows.append(
            {
                "wish": wish,
                "rows": count,
                "kernels": "torch" if kernels is None else type(kernels).__name__,
                "read_mb": rounded(size / 1e6),
                "us": rounded(took),
                "torch_us": rounded(other),
                "floor_us": rounded(floor),
                "roofline_share": rounded(floor / took),
            }
        )

    def _store(self, wish: str, count: int) -> RowStore:
        """Rows 1 to `count` are in the middle of an answer that has no end."""
        store = RowStore(count + 1, 1, self._device)
        for column in (Count.LEFT, Count.LEFT_NEXT, Count.OBJECTS_LEFT):
            store.counts[1:, column] = FOREVER
        store.counts[1:, Count.POSITION] = 800
        store.counts[1:, Count.SEED] = torch.arange(count, device=self._device)
        store.counts[1:, Count.TOP_LOGPROBS] = 20 if wish == "logprobs" else -1
        store.counts[1:, Count.DONE] = 0
        drawing = slice(1, None, 8 if wish == "mixed" else 1)
        if wish == "adjusted":
            store.counts[1:, Count.ADJUSTED] = 2
            store.reals[1:, Real.REPETITION], store.reals[1:, Real.FREQUENCY : Real.PRESENCE + 1] = 1.2, 0.5
        elif wish != "greedy":
            store.reals[drawing, Real.TEMPERATURE] = 1.0 if wish == "open" else self._usual.temperature
            store.reals[drawing, Real.TOP_P] = 1.0 if wish == "open" else self._usual.top_p
        return store

    def _adjuster(self, table: DeviceTable, store: RowStore) -> Adjuster:
        """Prompts have every tenth id, answers every fiftieth, and every 170th is biased or banned."""
        adjuster = Adjuster(table, store, self._rules.vocab, 1)
        words, every = adjuster.said.words, self._rules.vocab // MAX_BIASED
        words[:, ::10], words[:, ::50] = PROMPT, PROMPT | 1
        numbers = torch.arange(1, MAX_BIASED + 1, dtype=torch.int32, device=self._device)
        words[:, : every * MAX_BIASED : every] |= numbers << BIAS
        adjuster.said.biases[:, 1:] = torch.where(numbers % 3 == 0, -torch.inf, 1.0)
        return adjuster

    def _batch(self, wish: str, count: int) -> Batch:
        generator = torch.Generator(self._device).manual_seed(count)
        logits = torch.randn(count, self._rules.vocab, generator=generator, device=self._device)
        logits *= 0.3 if wish == "flat" else 3.0
        logits[:, self._rules.end] = -torch.inf
        rows = torch.arange(1, count + 1, device=self._device)
        one = torch.ones(1, dtype=torch.int64, device=self._device)
        lines = new_lines(count, self._device)
        return Batch(one, rows, torch.full_like(rows, Asked.SAMPLE), logits, logits[:, :1], logits > 0, lines)

    def _time_us(self, end: _End, batch: Batch, kind: TailKind) -> float:
        """Microseconds of an end."""
        ends = ENDS[self._device.type]

        def work() -> None:
            for _ in range(ends):
                end.run(batch, kind)

        if self._device.type == "cpu":
            return 1e3 * time_ms(work, self.repeats, self._device) / ends
        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        return 1e3 * time_ms(graph.replay, self.repeats, self._device) / ends


@dataclass(frozen=True)
class _End:
    """A tail, with what goes before and behind it where rows are adjusted."""

    tail: Tail
    adjuster: Adjuster | None

    def run(self, batch: Batch, kind: TailKind) -> None:
        if self.adjuster is not None:
            self.adjuster.adjust(batch.rows, batch.asked, batch.logits, None)
        self.tail.run(batch, kind)
        if self.adjuster is not None:
            self.adjuster.count(batch.rows, batch.asked)


class _Silent:
    """Heads of values that nobody here asks."""

    def values(self, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        raise AssertionError("no row here carries a value")
