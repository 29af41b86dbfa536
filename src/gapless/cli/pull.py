"""`gapless pull`: bring a model from the hub to this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from gapless.cli.options import ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import table
from gapless.errors import InvalidRequest, shown

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME[@revision]", help="A hub id, owner/name; a tag, branch or commit behind the @.")
]


@dataclass(frozen=True, slots=True)
class Pulled:
    """What is there now. `size`: bytes of the weights."""

    name: str
    revision: str | None
    folder: str
    size: int
    licence: str


def pull(name: NameArgument, json: ReportJsonOption = False) -> int:
    """Download a model, or bring it up to date. Goes on with what an earlier try left; needs no network later."""
    from gapless.weights.catalogue import CATALOGUE
    from gapless.weights.folder import find_files
    from gapless.weights.hub import BUNDLED, fetch, is_hub_id, similar, split_name

    repository, revision = split_name(name)
    if repository in BUNDLED:
        raise InvalidRequest(f"{repository} is bundled with gapless and needs no download; use it by its name")
    if not is_hub_id(repository):
        raise InvalidRequest(
            f"{shown(name)} is no hub id like 'owner/name' or 'owner/name@revision'.{similar(repository)}", param="name"
        )
    _bars(sys.stderr.isatty())
    located = fetch(repository, revision)
    files = find_files(located.folder, located.tokenizer)
    size = sum(path.stat().st_size for path in files.weights)
    published = CATALOGUE.get(repository)
    terms = published.terms if published else f"see https://huggingface.co/{repository}"
    pulled = Pulled(repository, located.revision, str(located.folder), size, terms)
    if json:
        json_line({field: getattr(pulled, field) for field in Pulled.__slots__})
    else:
        rows = [("name", repository), ("revision", located.revision or "main"), ("folder", pulled.folder)]
        table(("", ""), [*rows, ("weights", f"{size / 1e9:.3f} GB"), ("licence", terms)])
    return 0


def _bars(watched: bool) -> None:
    """The hub client's own bars of bytes, if somebody watches."""
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

    (enable_progress_bars if watched else disable_progress_bars)()
