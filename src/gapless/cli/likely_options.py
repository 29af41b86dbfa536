"""Options that change which tokens are likely, and the settings that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from gapless.errors import InvalidRequest
from gapless.skills.settings import Settings

PANEL = "Which words are likely"

RepetitionOption = Annotated[
    float | None,
    typer.Option(
        "--repetition-penalty", metavar="X", rich_help_panel=PANEL, help="Above 1: less of what was asked or said."
    ),
]
PresenceOption = Annotated[
    float | None,
    typer.Option("--presence-penalty", metavar="X", rich_help_panel=PANEL, help="Above 0: less of what was said."),
]
FrequencyOption = Annotated[
    float | None,
    typer.Option("--frequency-penalty", metavar="X", rich_help_panel=PANEL, help="The same, the more so each time."),
]
MinTokensOption = Annotated[
    int | None,
    typer.Option("--min-tokens", metavar="N", rich_help_panel=PANEL, help="The answer has at least N tokens."),
]
BannedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--banned",
        metavar="ID|TEXT",
        rich_help_panel=PANEL,
        help="Never this token; may be given again. A text is one.",
    ),
]
LogitBiasOption = Annotated[
    list[str] | None,
    typer.Option(
        "--logit-bias",
        metavar="ID=BIAS",
        rich_help_panel=PANEL,
        help="This token likelier by so much; may be given again.",
    ),
]


def likely_from(
    repetition: float | None,
    presence: float | None,
    frequency: float | None,
    min_tokens: int | None,
    banned: Sequence[str] | None,
    logit_bias: Sequence[str] | None,
    most: int | None = None,
) -> dict[str, Any]:
    """The settings that these options mean; nothing without any. A wrong one is a usage error, and fewest
    tokens over `most` are."""
    given = {
        "repetition_penalty": repetition,
        "presence_penalty": presence,
        "frequency_penalty": frequency,
        "min_tokens": min_tokens,
        "banned": [int(ban) if ban.isascii() and ban.isdigit() else ban for ban in banned] if banned else None,
        "logit_bias": dict(map(_bias, logit_bias)) if logit_bias else None,
    }
    found = {name: value for name, value in given.items() if value is not None}
    try:
        Settings.parse(found | {"max_tokens": most})
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from error
    return found


def _bias(text: str) -> tuple[str, float]:
    id, _, bias = text.partition("=")
    try:
        return id, float(bias)
    except ValueError as error:
        raise typer.BadParameter(f"--logit-bias {text} is not like 1234=-5: an id, and a number") from error
