"""A Moondream's folder looked at, not loaded: what it is, and what does not fit.

In: a folder. Out: `Inspected`. No weight is read. Everything that loading it would refuse is in `problems`, but for
values within tensors, and for what the tokenizer says: what reads texts is above this room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gapless.errors import GaplessError, ModelNotFound
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.identify import identify
from gapless.models.moondream.layouts import plan
from gapless.models.moondream.names import layout_of
from gapless.models.moondream.reading import count
from gapless.models.moondream.weights_map import tensor_shapes
from gapless.weights.checkpoint import check_parts
from gapless.weights.facts import Facts, facts
from gapless.weights.folder import CONFIG, TOKENIZER, ModelFolder, find_weights, is_file, remedy
from gapless.weights.hub import Located
from gapless.weights.stored import Header, look_into


@dataclass(frozen=True, slots=True)
class Inspected:
    """A checkpoint. `config` and `facts` are None where the files do not say which revision it is."""

    folder: Path
    files: tuple[Path, ...]
    tokenizer: Path
    """Where it has to lie."""
    layout: str
    config: MoondreamConfig | None
    facts: Facts
    problems: tuple[str, ...]


def inspect(located: Located) -> Inspected:
    """Look at it. Raises `ModelNotFound` without a config or weights, `InvalidCheckpoint` for files that are none."""
    folder = located.folder
    files = ModelFolder(folder, folder / CONFIG, located.tokenizer or folder / TOKENIZER, find_weights(folder))
    missing = [path.name for path in (files.config, *files.weights) if not is_file(path)]
    if missing:
        raise ModelNotFound(f"{folder} lacks {', '.join(missing[:8])}; nothing of it can be told.", param="folder")
    headers, twice = look_into(files.weights)
    problems = list(twice) if is_file(files.tokenizer) else [*twice, f"missing {TOKENIZER}. {remedy([TOKENIZER])}"]
    try:
        config = identify(files, located.behaves)
    except GaplessError as error:
        return _inspected(files, headers, None, facts(headers, ()), (*problems, str(error)))
    wanted = tensor_shapes(config)
    planned = plan(headers, wanted)
    parts = {name: part for recipe in planned.recipes.values() for name, part in recipe.parts().items()}
    problems += [*(f"missing {name}" for name in planned.missing), *check_parts(headers, parts)]
    return _inspected(files, headers, config, count(headers, planned, wanted), tuple(problems))


def _inspected(
    files: ModelFolder,
    headers: Mapping[str, Header],
    config: MoondreamConfig | None,
    numbers: Facts,
    problems: tuple[str, ...],
) -> Inspected:
    return Inspected(files.folder, files.weights, files.tokenizer, layout_of(headers), config, numbers, problems)
