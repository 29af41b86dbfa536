"""The vision benchmark: how fast pictures are encoded.

In: a loaded model and numbers of crops. Out: a report for `benchmarks/*/vision-*.json`, a row per number of crops.
`encoder_ms` is the tower's layers over the crops, `ms` a whole picture of so many crops, stitched and projected too
(None for a single crop: a picture has at least two). Rates are the encoder's. The crops are on the device already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch

from gapless.api.load import Progress
from gapless.bench.flops import encoder_work
from gapless.bench.rates import Rates, measure_rates, on_worker, time_ms
from gapless.bench.rig import facts_of
from gapless.bench.sections import Sections
from gapless.bench.text import rounded
from gapless.errors import InvalidRequest
from gapless.models.moondream.model import Moondream
from gapless.models.registry import Loaded


@dataclass
class VisionBench:
    """One run over a model: `crops` numbers of them, each timed `repeats` times."""

    loaded: Loaded
    crops: Sequence[int]
    repeats: int
    seconds: float
    _: KW_ONLY
    progress: Progress | None = None
    now: Callable[[], float] = perf_counter
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.loaded.model, Moondream):
            raise InvalidRequest(f"{self.loaded.name} has no picture tower to time; take another model", param="model")
        self._model = self.loaded.model
        self.sections = Sections(self.seconds, len(self.crops), self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report at the end."""
        report = on_worker(self._run, self._model.device)
        save(report)
        return report

    def _run(self) -> dict[str, Any]:
        rates = measure_rates(self._model.device, self._model.dtype)
        for count in self.crops:
            self.sections.run(f"{count} crops", partial(self._row, rates), count)
        return {
            "benchmark": "vision",
            **facts_of(self._model.device),
            "device": self._model.device.type,
            "model": {"name": self.loaded.name, "dtype": str(self._model.dtype).removeprefix("torch.")},
            **rates.as_dict(),
            "rows": self.rows,
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    @torch.inference_mode()
    def _row(self, rates: Rates, count: int) -> None:
        device, vision = self._model.device, self._model.vision.config
        shape = (count, vision.crop_size, vision.crop_size, 3)
        crops = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        encoder = time_ms(partial(self._model.vision.encode, crops), self.repeats, device)
        whole = None
        if count > 1:
            whole = time_ms(partial(self._model.encode_picture, crops, tiling_of(count - 1)), self.repeats, device)
        work = encoder_work(vision, count, self._model.dtype.itemsize)
        self.rows.append(
            {
                "crops": count,
                "encoder_ms": rounded(encoder),
                "ms": rounded(whole),
                "crops_per_s": rounded(1e3 * count / encoder),
                "pictures_per_s": None if whole is None else rounded(1e3 / whole),
                "tflop_per_s": rounded(work.tflop_per_s(encoder)),
                "floor_ms": rounded(work.floor_ms(rates)),
                "roofline_share": rounded(work.floor_ms(rates) / encoder),
            }
        )


def tiling_of(tiles: int) -> tuple[int, int]:
    """Rows and columns of so many tiles, as square as they come."""
    rows = next(n for n in range(int(tiles**0.5), 0, -1) if tiles % n == 0)
    return rows, tiles // rows
