"""Runs the fixed mix and says what it took.

In: a model's name and the depths to try. Out: a `Report`: one `MixRun` a depth, the machine, and whether the answers
were the same at every depth (they must be). All 24 requests are submitted at once, after a warm-up of one request of
each skill; pictures are encoded before the clock starts. Nothing here promises that one depth is faster.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gapless.bench.asks import Ask, Result
from gapless.bench.machine import Machine, describe_machine
from gapless.bench.mix import MIX, PICTURES, picture_path
from gapless.config import DType

if TYPE_CHECKING:
    from gapless.api.vlm import VLM


@dataclass(frozen=True, slots=True)
class MixRun:
    """One depth's numbers. `step_ms`: from one step's start to the next one's, while there was work; `idle_share`: the
    part of that time the device stood idle, 0..1; `answers`: what the library returned, without its metrics."""

    depth: int
    wall_s: float
    steps: int
    tokens: int
    step_ms: float
    idle_share: float
    tokens_per_s: float
    answers: tuple[Result, ...]

    def as_dict(self) -> dict[str, Any]:
        """The numbers alone, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "answers"}


@dataclass(frozen=True, slots=True)
class Report:
    """All runs of one model on one machine."""

    model: str
    machine: Machine
    runs: tuple[MixRun, ...]

    @property
    def answers_equal(self) -> bool:
        """Whether every depth gave the same answers."""
        return all(run.answers == self.runs[0].answers for run in self.runs)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the answers, for JSON."""
        return {
            "model": self.model,
            "requests": len(MIX),
            "pictures": len(PICTURES),
            "machine": self.machine.as_dict(),
            "runs": [run.as_dict() for run in self.runs],
            "answers_equal": self.answers_equal,
        }


def run_mix(model: str, depths: Sequence[int], *, device: str = "auto", dtype: DType = "auto") -> Report:
    """Load the model anew for each depth and run the mix on it."""
    import gapless

    runs = []
    for depth in depths:
        with gapless.load(model, device=device, dtype=dtype, depth=depth) as vlm:
            runs.append(_run_once(vlm, depth))
    return Report(model, describe_machine(), tuple(runs))


def _run_once(vlm: VLM, depth: int) -> MixRun:
    pictures = {name: vlm.encode_image(picture_path(name)) for name in PICTURES}

    def put(entry: tuple[str, Ask]) -> Result:
        name, ask = entry
        result = ask.put(vlm, pictures[name])
        return {key: value for key, value in result.items() if key != "metrics"}

    with ThreadPoolExecutor(len(MIX)) as pool:
        try:
            list(pool.map(put, {ask.skill: (name, ask) for name, ask in MIX}.values()))
            before, start = vlm.accounting(), time.perf_counter()
            answers = tuple(pool.map(put, MIX))
            wall, spent = time.perf_counter() - start, vlm.accounting() - before
        except BaseException:
            vlm.close(drain=False)  # else the pool would wait for answers that nobody wants any more
            raise
    return MixRun(
        depth=depth,
        wall_s=wall,
        steps=sum(spent.steps.values()),
        tokens=spent.counters.tokens,
        step_ms=spent.step_ms,
        idle_share=spent.idle_share,
        tokens_per_s=spent.counters.tokens / wall,
        answers=answers,
    )
