"""The vision benchmark: how fast pictures are encoded.

In: a loaded model, and cases: so many crops of each of so many pictures. Out: a report for
`benchmarks/*/vision-*.json`, a row per case. `encoder_ms` is the tower's layers over all crops, `ms` whole pictures of
so many crops, stitched and projected too (None for a single crop: a picture has at least two). On a GPU both go as they
do in a step: by the graph of the next larger number of crops, if the kernels have a tower for that. Rates are the
encoder's. The crops are on the device already.
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
from gapless.bench.flops import encoder_work
from gapless.bench.rates import Rates, measure_rates, on_worker, time_ms
from gapless.bench.rig import facts_of, kernels_of
from gapless.bench.sections import Sections
from gapless.bench.text import rounded
from gapless.device.pictures import MOST_CROPS, CropBatch, Shown, bucket_of
from gapless.device.runtime import CudaRuntime
from gapless.errors import InvalidRequest
from gapless.models.moondream.model import Moondream
from gapless.models.registry import Loaded

Work = Callable[[], object]


@dataclass
class VisionBench:
    """One run over a model: `cases` of (crops, pictures), each timed `repeats` times."""

    loaded: Loaded
    cases: Sequence[tuple[int, int]]
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
        self.sections = Sections(self.seconds, len(self.cases), self.progress, self.now)

    def run(self, save: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """Measure everything; `save` is given the report at the end."""
        report = on_worker(self._run, self._model.device)
        save(report)
        return report

    def _run(self) -> dict[str, Any]:
        rates = measure_rates(self._model.device, self._model.dtype)
        for crops, pictures in self.cases:
            self.sections.run(f"{pictures} x {crops} crops", partial(self._row, rates), crops, pictures)
        return {
            "benchmark": "vision",
            **facts_of(self._model.device),
            "device": self._model.device.type,
            "model": {"name": self.loaded.name, "dtype": str(self._model.dtype).removeprefix("torch.")},
            "kernels": kernels_of(self._model),
            **rates.as_dict(),
            "rows": self.rows,
            "seconds": self.sections.seconds,
            "notes": self.sections.notes,
        }

    @torch.inference_mode()
    def _row(self, rates: Rates, count: int, pictures: int) -> None:
        device, vision, total = self._model.device, self._model.vision.config, count * pictures
        shape = (total, vision.crop_size, vision.crop_size, 3)
        crops = torch.randint(0, 256, shape, dtype=torch.uint8, device=device)
        graphed = self._model.tower is not None and total <= MOST_CROPS
        encode, pass_through = self._graphed(crops, count) if graphed else self._plain(crops, count)
        encoder = time_ms(encode, self.repeats, device)
        whole = time_ms(pass_through, self.repeats, device) if count > 1 else None
        work = encoder_work(vision, total, self._model.dtype.itemsize)
        self.rows.append(
            {
                "crops": count,
                "pictures": pictures,
                "encoder_ms": rounded(encoder),
                "ms": rounded(whole),
                "crops_per_s": rounded(1e3 * total / encoder),
                "pictures_per_s": None if whole is None else rounded(1e3 * pictures / whole),
                "tflop_per_s": rounded(work.tflop_per_s(encoder)),
                "floor_ms": rounded(work.floor_ms(rates)),
                "roofline_share": rounded(work.floor_ms(rates) / encoder),
            }
        )

    def _plain(self, crops: Tensor, count: int) -> tuple[Work, Work]:
        """The encoder over all crops, and pictures of `count` of them one after the other."""

        def whole() -> None:
            for own in torch.split(crops, count):
                self._model.encode_picture(own, tiling_of(count - 1))

        return partial(self._model.vision.encode, crops), whole

    def _graphed(self, crops: Tensor, count: int) -> tuple[Work, Work]:
        """The same as a step does it."""
        tower = self._model.tower
        assert tower is not None
        batch, bucket = CropBatch(self._model, tower), bucket_of(len(crops))
        runtime = CudaRuntime(self._model.device)
        batch.crops[: len(crops)] = crops
        with runtime.setting_up():
            batch.encode(bucket)
            replay = runtime.capture(partial(batch.encode, bucket))
        runtime.settle()
        runtime.give_back()
        pictures = torch.split(crops, count) if count > 1 else ()
        shown = [Shown(own, tiling_of(count - 1), 0, count) for own in pictures]

        def encode(bucket: int) -> None:
            replay()

        return replay, partial(batch.of, shown, encode, _nothing)


def _nothing() -> None:
    """Nobody waits for the crops' memory."""


def tiling_of(tiles: int) -> tuple[int, int]:
    """Rows and columns of so many tiles, as square as they come."""
    rows = next(n for n in range(int(tiles**0.5), 0, -1) if tiles % n == 0)
    return rows, tiles // rows
