"""The options that the commands share, each said once, and what they are gathered into.

Only options that change something are offered: temperature, top-p and seed belong to free text, since points, boxes
and outlines always take the likeliest token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from gapless.config import DType, KVDType, bytes_of
from gapless.errors import InvalidRequest
from gapless.skills.settings import Settings, adapter_name

RUN, SAMPLE, SHOW = "Model and machine", "Answer", "Output"
MOST_DEPTH, MOST_ROWS, MOST_PAGES, MOST_GRAMMARS = 64, 1024, 2**24, 1024
"""The most that `gapless.load` takes."""


class DTypeChoice(StrEnum):
    """Number formats to compute in: `config.DType` in the form that the command line's parser takes."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    def for_load(self) -> DType:
        """What `gapless.load` takes."""
        return self.value


class KVDTypeChoice(StrEnum):
    """How keys and values are kept: `config.KVDType`, likewise."""

    AUTO = "auto"
    FP8 = "fp8"

    def for_load(self) -> KVDType:
        """What `gapless.load` takes."""
        return self.value


class Switch(StrEnum):
    """On or off."""

    ON = "on"
    OFF = "off"


class LengthChoice(StrEnum):
    """How long a caption is."""

    SHORT = "short"
    NORMAL = "normal"
    LONG = "long"


def checked_bytes(text: str | None) -> str | None:
    """An amount of memory, checked before a model is loaded."""
    try:
        return None if text is None else str(bytes_of(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from error


ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME|FOLDER",
        rich_help_panel=RUN,
        help="A model's name or folder, @revision behind it if wanted.",
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", rich_help_panel=RUN, help="Where to compute: auto, cpu, cuda or cuda:N."
    ),
]
DTypeOption = Annotated[
    DTypeChoice,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        rich_help_panel=RUN,
        help="Number format: float32, bfloat16, float16, or auto: bfloat16 on a GPU, and on a CPU what suits it.",
    ),
]
DepthOption = Annotated[
    int,
    typer.Option(
        "--depth",
        min=1,
        max=MOST_DEPTH,
        rich_help_panel=RUN,
        help="Steps in flight; 1 waits after each. Same answers.",
    ),
]
GraphsOption = Annotated[
    Switch,
    typer.Option("--graphs", rich_help_panel=RUN, help="off: a GPU's steps without CUDA graphs, for debugging."),
]
MaxRowsOption = Annotated[
    int | None,
    typer.Option(
        "--max-rows",
        metavar="N",
        min=1,
        max=MOST_ROWS,
        rich_help_panel=RUN,
        help="Requests that run at once; fewer take less memory. Not given: 16, on a GPU 64.",
    ),
]
PagesOption = Annotated[
    int | None,
    typer.Option(
        "--pages",
        metavar="N",
        min=2,
        max=MOST_PAGES,
        rich_help_panel=RUN,
        help="Size of the KV cache in pages of 16 tokens; one is reserved. Not given: all rows, or what fits.",
    ),
]
KvMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="SIZE",
        callback=checked_bytes,
        rich_help_panel=RUN,
        help="Size of the KV cache, like 8GB; instead of --pages.",
    ),
]
KVDTypeOption = Annotated[
    KVDTypeChoice,
    typer.Option(
        "--kv-dtype",
        metavar="KIND",
        rich_help_panel=RUN,
        help="How the KV cache is kept: auto (as the model computes), or fp8: twice the tokens, half the reads.",
    ),
]
MaxContextOption = Annotated[
    int | None,
    typer.Option(
        "--max-context",
        metavar="N",
        min=1,
        rich_help_panel=RUN,
        help="Tokens of a prompt and its answer together. Not given: as the checkpoint says.",
    ),
]
MaxStepOption = Annotated[
    float | None,
    typer.Option(
        "--max-step-ms",
        metavar="MS",
        min=0,
        rich_help_panel=RUN,
        help="What prompts and pictures are cut to while others decode. Not given: 8, on a CPU none; 0: none.",
    ),
]
PrefixCacheOption = Annotated[
    Switch,
    typer.Option("--prefix-cache", rich_help_panel=RUN, help="off: what was computed is not kept for later questions."),
]
AdapterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="NAME=PATH",
        rich_help_panel=RUN,
        help="A LoRA adapter to load; may be given again. glint/moon is one that comes with glint.",
    ),
]
UseAdapterOption = Annotated[
    str | None,
    typer.Option(
        "--use-adapter",
        metavar="NAME",
        rich_help_panel=SAMPLE,
        help="Which adapter to answer with. Not given: the one that is loaded, if it is one.",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", rich_help_panel=RUN, help="Give a picture up after this long."),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens", metavar="N", rich_help_panel=SAMPLE, help="Stop the answer after N tokens."),
]
MaxObjectsOption = Annotated[
    int | None, typer.Option("--max-objects", metavar="N", rich_help_panel=SAMPLE, help="Stop after N objects.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="T",
        rich_help_panel=SAMPLE,
        help="0 takes the likeliest token; more is bolder. Not given: the model's own.",
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", rich_help_panel=SAMPLE, help="Sample among the likeliest P of all tokens."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", rich_help_panel=SAMPLE, help="Same seed, same answer.")
]
StopOption = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", rich_help_panel=SAMPLE, help="End before this text; may be given again."),
]
LogprobsOption = Annotated[
    int | None,
    typer.Option(
        "--logprobs", metavar="N", rich_help_panel=SAMPLE, help="With --json: each token's logprob, and N alternatives."
    ),
]
SpatialRefOption = Annotated[
    list[str] | None,
    typer.Option(
        "--spatial-ref",
        metavar="X,Y|X1,Y1,X2,Y2",
        rich_help_panel=SAMPLE,
        help="A point or box the words refer to, 0..1 of the picture; may be given again.",
    ),
]
FaceOption = Annotated[
    str | None,
    typer.Option(
        "--face",
        metavar="X1,Y1,X2,Y2",
        rich_help_panel=SAMPLE,
        help="Instead of X Y the box of a face: asks from twenty places in it and in the mirrored picture.",
    ),
]
ForceOption = Annotated[
    bool, typer.Option("--force", rich_help_panel=SAMPLE, help="A point in any case, also if the model sees none.")
]
GazeSeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", rich_help_panel=SAMPLE, help="Same seed, same places in --face.")
]
ReasoningOption = Annotated[
    bool, typer.Option("--reasoning", rich_help_panel=SAMPLE, help="Think first, and show the thoughts.")
]
LengthOption = Annotated[LengthChoice, typer.Option("--length", rich_help_panel=SAMPLE, help="How long a caption.")]
JsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=SHOW, help="One JSON object a picture, with all the library returns.")
]
ReportJsonOption = Annotated[
    bool, typer.Option("--json", rich_help_panel=SHOW, help="JSON instead of text, one object a line.")
]
StreamOption = Annotated[
    bool,
    typer.Option(
        "--stream",
        rich_help_panel=SHOW,
        help="Print the answer as it comes; one picture only. With --json, one object a piece.",
    ),
]
DrawOption = Annotated[
    str | None,
    typer.Option(
        "--draw",
        metavar="OUT",
        rich_help_panel=SHOW,
        help="Draw the answer on the picture: a file; for several pictures a folder or a pattern with {name}.",
    ),
]


Adapters = tuple[tuple[str, str], ...]
"""Names and paths."""
Setting = float | int | str | list[str]


@dataclass(frozen=True, slots=True)
class Engine:
    """What to load, and where to run it."""

    model: str
    device: str
    dtype: DTypeChoice
    depth: int
    graphs: Switch = Switch.ON
    max_rows: int | None = None
    pages: int | None = None
    adapters: Adapters = ()
    kv_memory: str | None = None
    max_context: int | None = None
    prefix_cache: Switch = Switch.ON
    kv_dtype: KVDTypeChoice = KVDTypeChoice.AUTO
    max_step_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """How to show what comes back."""

    json: bool
    draw: str | None
    stream: bool = False


def read_adapters(words: Sequence[str] | None) -> Adapters:
    """Adapters from their spelling on the command line."""
    found: dict[str, str] = {}
    for word in words or ():
        name, _, path = word.partition("=")
        try:
            adapter_name(name)
        except InvalidRequest as error:
            raise typer.BadParameter(f"--adapter {word!r} is not NAME=PATH: {error}") from error
        if not path or name in found:
            what = "names it twice" if path else "has no path behind a ="
            raise typer.BadParameter(f"--adapter {word!r} {what}; write NAME=PATH")
        found[name] = path
    return tuple(found.items())


def chosen_adapter(adapters: Adapters, use: str | None) -> str | None:
    """The one to answer with: what was said, or the only one there is."""
    names = [name for name, _ in adapters]
    if use is not None and use not in names:
        known = f"loaded are {', '.join(names)}" if names else "load it with --adapter NAME=PATH"
        raise typer.BadParameter(f"--use-adapter {use!r} is not loaded; {known}")
    if use is None and len(names) > 1:
        raise typer.BadParameter(f"say which of {', '.join(names)} is to answer: --use-adapter NAME")
    return use or next(iter(names), None)


def check_scored(logprobs: int | None, output: Output) -> None:
    """Logprobs are shown in JSON alone."""
    if logprobs is not None and not output.json:
        raise typer.BadParameter("--logprobs are shown in JSON; add --json")


def checked_settings(**named: float | str | list[str] | None) -> dict[str, Setting]:
    """The settings that were given, checked before a model is loaded. A wrong one is a usage error."""
    given = {name: value for name, value in named.items() if value is not None}
    try:
        Settings.parse(given)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from error
    return given


def spatial_refs(texts: Sequence[str] | None) -> list[list[float]] | None:
    """Points [x, y] and boxes [x_min, y_min, x_max, y_max] from their spelling on the command line."""
    return [_spatial_ref(text) for text in texts] if texts else None


def gaze_from(x: float | None, y: float | None, face: str | None) -> list[float]:
    """An eye [x, y], or the box of a face, of which exactly one is given."""
    if face is not None:
        if x is not None or y is not None:
            raise typer.BadParameter("X Y is one eye, --face is where both are; give one of them")
        box = _spatial_ref(face, "--face")
        if len(box) != 4:
            raise typer.BadParameter(f"--face {face!r} is not X1,Y1,X2,Y2; an eye is given as X Y")
        return box
    if x is None or y is None:
        raise typer.BadParameter("where is the eye? Give X and Y from 0 to 1, or the box of the face: --face")
    if not (0 <= x <= 1 and 0 <= y <= 1):
        raise typer.BadParameter(f"the eye at {x:g} {y:g} is outside the picture; X and Y are parts of it, 0 to 1")
    return [x, y]


def _spatial_ref(text: str, option: str = "--spatial-ref") -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 4) or not all(0 <= n <= 1 for n in numbers):
        raise typer.BadParameter(f"{option} {text!r} is not X,Y or X1,Y1,X2,Y2 with numbers from 0 to 1")
    if len(numbers) == 4 and (numbers[0] > numbers[2] or numbers[1] > numbers[3]):
        raise typer.BadParameter(f"{option} {text!r} must name the top left corner, then the bottom right one")
    return numbers
