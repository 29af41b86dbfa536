"""`gapless models`: what can be loaded by name, and what it can do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from gapless.cli.options import ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import table
from gapless.config import tune_folder

LICENCE = "Apache-2.0"
"""What comes with the package comes under the package's licence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model. `folder`: where it lies, None if it is not on this machine; `size`: bytes of its weights.

    `terms`: what the licence means in a line; `problem`: why it cannot be loaded, None if it can.
    """

    name: str
    folder: str | None
    size: int
    licence: str
    terms: str
    skills: tuple[str, ...]
    problem: str | None


def models(json: ReportJsonOption = False) -> int:
    """List the models that can be loaded by name. A folder with a checkpoint can be given instead of a name."""
    from gapless.models.registry import available

    rows = [_bundled(found.name, found.folder, found.problem) for found in available()] + _published()
    for row in rows if json else ():
        json_line(asdict(row))
    if not json:
        _show(rows)
        _show_tiles()
    return 0


def _bundled(name: str, folder: Path, problem: str | None) -> Row:
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    terms = f"{LICENCE}, as the package"
    return Row(name, str(folder), size, LICENCE, terms, () if problem else _skills(folder), problem)


def _published() -> list[Row]:
    """What the catalogue has, each revision with its place in the cache."""
    from gapless.models.moondream.config import REVISIONS
    from gapless.models.moondream.templates import Templates
    from gapless.weights.catalogue import CATALOGUE
    from gapless.weights.hub import cached

    rows = []
    for name, published in CATALOGUE.items():
        for revision, edition in published.editions.items():
            found = cached(name, revision)
            full = name if revision == published.latest else f"{name}@{revision}"
            skills = Templates.of(REVISIONS[edition.behaves]).skills()
            folder = str(found.folder) if found else None
            rows.append(Row(full, folder, edition.size, published.licence, published.terms, skills, None))
    return rows


def _skills(folder: Path) -> tuple[str, ...]:
    from gapless.models.moondream.identify import identify
    from gapless.models.moondream.templates import Templates
    from gapless.weights.folder import find_files

    return Templates.of(identify(find_files(folder))).skills()


def _show(rows: list[Row]) -> None:
    cells = [
        (r.name, _size(r.size), r.licence, r.problem or ", ".join(r.skills), r.folder or "not here: gapless pull")
        for r in rows
    ]
    table(("name", "size", "licence", "skills", "where"), cells)
    for row in rows:
        for name in _adapters(row):
            print(f"adapter {row.name}/{name}: --adapter {name}={row.name}/{name}")
    for terms in dict.fromkeys(r.terms for r in rows if r.licence != LICENCE):
        print(terms)


def _show_tiles() -> None:
    """The tables that `gapless tune` has kept; nothing where it never ran."""
    folder = Path(tune_folder())
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        print(f"tiles of {path.stem}: {path}")


def _adapters(row: Row) -> list[str]:
    """Adapters that lie beside a model that is here."""
    folder = Path(row.folder or "") / "adapters"
    return sorted(found.name for found in folder.iterdir()) if row.folder and folder.is_dir() else []


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 10**8 else f"{size / 1e9:.2f} GB"
