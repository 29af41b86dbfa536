"""`gapless models`: what can be loaded by name, and what it can do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from gapless.cli.options import ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import table

LICENCE = "Apache-2.0"
"""What comes with the package comes under the package's licence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model. `size`: bytes of its weights; `problem`: why it cannot be loaded, None if it can."""

    name: str
    folder: str
    size: int
    licence: str
    skills: tuple[str, ...]
    problem: str | None


def models(json: ReportJsonOption = False) -> int:
    """List the models that can be loaded by name. A folder with a checkpoint can be given instead of a name."""
    from gapless.models.registry import available

    rows = [_row(found.name, found.folder, found.problem) for found in available()]
    for row in rows if json else ():
        json_line(asdict(row))
    if not json:
        _show(rows)
    return 0


def _row(name: str, folder: Path, problem: str | None) -> Row:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return Row(name, str(folder), size, LICENCE, () if problem else _skills(folder), problem)


def _skills(folder: Path) -> tuple[str, ...]:
    """What the model's templates have."""
    from gapless.models.moondream.config import read_config
    from gapless.models.moondream.templates import Templates
    from gapless.weights.folder import find_files, read_json

    templates = Templates.of(read_config(read_json(find_files(folder).config)))
    having = {
        "query": templates.query,
        "reasoning": templates.reason,
        "caption": templates.captions,
        "point": templates.point,
        "detect": templates.detect,
        "segment": templates.segment,
    }
    return tuple(skill for skill, template in having.items() if template)


def _show(rows: list[Row]) -> None:
    cells = [(r.name, f"{r.size / 1e6:.1f} MB", r.licence, r.problem or ", ".join(r.skills), r.folder) for r in rows]
    table(("name", "size", "licence", "skills", "where"), cells)
