"""Options that say what an answer may be, and the settings that they mean."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gapless.errors import InvalidRequest
from gapless.skills.rules import rules_of

PANEL = "The answer's shape"
LONGEST = 2**20
"""Bytes of a file that may hold a schema."""

ChoiceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--choice", metavar="TEXT", rich_help_panel=PANEL, help="The answer is this text, or another --choice."
    ),
]
RegexOption = Annotated[
    str | None,
    typer.Option("--regex", metavar="PATTERN", rich_help_panel=PANEL, help="The whole answer matches this pattern."),
]
SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="FILE", rich_help_panel=PANEL, help="The answer is JSON of the JSON schema in this file."
    ),
]
JsonObjectOption = Annotated[
    bool, typer.Option("--json-object", rich_help_panel=PANEL, help="The answer is any JSON object.")
]
Rule = dict[str, Any]


def rule_from(choice: Sequence[str] | None, regex: str | None, schema: str | None, json_object: bool = False) -> Rule:
    """The setting that these options mean; nothing without any. A wrong one is a usage error."""
    given = {
        "choice": list(choice) if choice else None,
        "regex": regex,
        "json_schema": None if schema is None else _schema(Path(schema)),
        "json_object": json_object or None,
    }
    rule = {name: value for name, value in given.items() if value is not None}
    try:
        rules_of(rule)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from error
    return rule


def _schema(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ValueError(f"it has more than {LONGEST} bytes")
        found = json.loads(data)
    except OSError as error:
        raise typer.BadParameter(f"--schema {path} cannot be read: {error.strerror}; name a file of JSON") from error
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--schema {path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f"--schema {path} is no schema: it must hold an object like {{}}")
    return found
