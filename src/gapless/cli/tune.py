"""`gapless tune`: find the tiles that the kernels use best on this GPU, and keep them for the engine.

In: a model's name, or its sizes. Out: a table of times before and after, files in the user's cache folder.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.options import DeviceOption, ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import PROGRAM, complain, progress_bar, table
from gapless.errors import GaplessError, InvalidRequest

if TYPE_CHECKING:
    from gapless.models.moondream.config import TextConfig

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Those that a table has tiles for; `kernels.triton.choices` has them too, but that waits for torch."""
SECONDS = 900.0
COLUMNS = ("what", "rows", "before us", "after us", "faster %", "tried", "wrong")


class Half(StrEnum):
    """Number formats that the kernels take."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def _known(rows: list[int] | None) -> list[int] | None:
    odd = [str(count) for count in rows or () if count not in BATCHES]
    if odd:
        raise typer.BadParameter(f"there are tiles for {', '.join(map(str, BATCHES))} rows, not for {', '.join(odd)}")
    return None if rows is None else list(dict.fromkeys(rows))


ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="moondream-2, -3 or -3.1 (sizes alone, no files), a name or a folder.")
]
RowsOption = Annotated[
    list[int] | None,
    typer.Option("--rows", callback=_known, help="Batch size of decode steps; may be given again. Not given: all."),
]
HalfOption = Annotated[Half, typer.Option("--dtype", help="What the model computes in: bfloat16 or float16.")]
SecondsOption = Annotated[float, typer.Option("--seconds", min=1, help="No new part begins after that long.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Keep the report as JSON, too.")]


def tune(
    model: ModelArgument = "moondream-2",
    device: DeviceOption = "auto",
    rows: RowsOption = None,
    dtype: HalfOption = Half.BFLOAT16,
    seconds: SecondsOption = SECONDS,
    json: ReportJsonOption = False,
    out: OutOption = None,
) -> int:
    """Time the kernels' tiles on this GPU and keep the fastest ones that compute what they should.

    The engine takes them up at its next start, for models of the same sizes. Nothing becomes slower than it was: the
    search begins from what there is. Use the GPU for nothing else meanwhile.
    """
    where = _gpu(device)
    text = _text(model)
    report = _run(text, where, dtype, rows or list(BATCHES), seconds, _kinds_of(model))
    if out is not None:
        from gapless.bench.report_file import save_to

        save_to(out)(report)
    if json:
        json_line(report)
    else:
        _show(report)
    return 0 if any(part["rows"] for part in report["parts"]) else 1


def _gpu(device: str) -> str:
    """ "cuda:N". Raises `InvalidRequest` without a GPU or Triton."""
    from importlib.util import find_spec

    from gapless.bench.load import where
    from gapless.device.gpus import TorchDriver

    found = where(device)
    if found == "cpu":
        why = "a CPU has no tiles" if device == "cpu" else f"there is none: {TorchDriver().why_none()}"
        raise InvalidRequest(f"tune times kernels on a GPU, and {why}; run it on a machine with one", param="device")
    if find_spec("triton") is None:
        raise InvalidRequest("tune times Triton's kernels, and Triton is not installed: pip install triton")
    return found


def _text(model: str) -> TextConfig:
    """A model's decoder."""
    from gapless.models.moondream.identify import identify
    from gapless.models.moondream.random_weights import SIZES, random_config
    from gapless.weights.folder import find_files
    from gapless.weights.hub import have

    if model in SIZES:
        return random_config(model).text
    located = have(model)
    return identify(find_files(located.folder, located.tokenizer), located.behaves).text


def _kinds_of(model: str) -> tuple[str, ...]:
    """Of experts' weights: those that the engine would have, of a model with experts."""
    from gapless.models.moondream.random_weights import SIZES, has_fp8

    if model in SIZES:
        return ("float8",) if has_fp8(model) else ("bfloat16",)
    return ("bfloat16", "float8")


def _run(
    text: TextConfig, where: str, dtype: Half, rows: list[int], seconds: float, kinds: tuple[str, ...]
) -> dict[str, Any]:
    from gapless.bench.tune_run import Tuning

    try:
        with progress_bar("tuning", 1) as bar:

            def tell(doing: str, done: int, total: int) -> None:
                bar.update(bar.task_ids[0], description=f"tuning {doing}", completed=done, total=total)

            return Tuning.of(text, dtype.value, where, rows, seconds, kinds).run(tell)
    except ValueError as error:
        raise InvalidRequest(str(error), param="model") from error
    except RuntimeError as error:
        raise GaplessError(
            f"the GPU failed while tiles were tried ({str(error)[:200]}); look at it with nvidia-smi, then try again"
        ) from error


def _show(report: dict[str, Any]) -> None:
    cells = [
        (
            part["sizes"],
            row["rows"],
            f"{row['before_us']:.1f}",
            f"{row['after_us']:.1f}",
            f"{100 * row['gain']:.1f}",
            row["tried"],
            row["wrong"],
        )
        for part in report["parts"]
        for row in part["rows"]
    ]
    table(COLUMNS, cells, title=f"{report['gpu']}, compute capability {report['capability']}")
    for part in report["parts"]:
        hurried = [row["rows"] for row in part["rows"] if not row["whole"]]
        for rows, what in ((part["left_out"], "left out"), (hurried, "not searched to the end")):
            if rows:
                complain(f"{part['sizes']}: time ran out; {what}: {', '.join(map(str, rows))}; give more --seconds")
        if part["file"]:
            print(f"kept in {part['file']}; {PROGRAM} uses it from its next start")
