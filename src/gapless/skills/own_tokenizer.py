"""The tokenizer of a checkpoint, and whether it is that model's own.

In: the path of a `tokenizer.json`, and the model's templates. Out: its `Tokenizer`, or one `InvalidCheckpoint` with
path and remedy. A foreign tokenizer answers nonsense without any error, so what is known of the right one is asked.
"""

from __future__ import annotations

from pathlib import Path

from gapless.errors import InvalidCheckpoint, shown
from gapless.models.moondream.templates import Templates
from gapless.skills.tokenizer import Tokenizer


def open_tokenizer(templates: Templates, path: Path) -> Tokenizer:
    """Read it and check it. Raises `InvalidCheckpoint` for one that is damaged, or another model's."""
    try:
        tokenizer = Tokenizer.from_file(path, templates.ids.all())
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{error}; {_remedy(templates)}") from error
    check_tokenizer(templates, tokenizer, path)
    return tokenizer


def check_tokenizer(templates: Templates, tokenizer: Tokenizer, path: Path | str = "tokenizer.json") -> None:
    """Raise `InvalidCheckpoint` for a tokenizer that is not this model's.

    The templates of captions name their lengths, and those of the first revisions are words altogether: there it shows.
    """
    for reading in templates.readings():
        said = tokenizer.decode(reading.ids)
        if reading.words.casefold() not in said.casefold():
            raise InvalidCheckpoint(
                f"{path} is not this model's: the template of a {reading.name} reads {shown(said)}, which should say "
                f"{reading.words!r}; {_remedy(templates)}"
            )
    if tokenizer.largest >= templates.vocab:
        raise InvalidCheckpoint(
            f"{path} is not this model's: it has ids up to {tokenizer.largest}, and the model a vocabulary of "
            f"{templates.vocab}; {_remedy(templates)}"
        )


def _remedy(templates: Templates) -> str:
    if templates.worded:
        whose = f"Moondream 2 of {templates.revision} that of vikhyatk/moondream2 at 2024-08-26"
    else:
        whose = "Moondream 2 of 2025-06-21 and later, and Moondream 3, that of moondream/starmie-v1"
    return f"take the tokenizer that the weights were trained with: for {whose}"
