"""caption: a picture in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gapless.errors import InvalidRequest, UnsupportedSkill, shown
from gapless.records import Picture, Token
from gapless.skills.base import Ask, Body, Piece, SkillContext, pictured, text_sampling, to_prompt
from gapless.skills.detokenize import Detokenizer
from gapless.skills.settings import Settings
from gapless.skills.tokenizer import Tokenizer


class CaptionReader:
    """Reader of plain text. A stream yields words."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._text = Detokenizer(tokenizer)
        self._pieces: list[str] = []

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """See `Reader`."""
        return self._keep(self._text.feed(t.id for t in tokens))

    def finish(self) -> tuple[Piece, ...]:
        """See `Reader`."""
        return self._keep(self._text.finish())

    def result(self) -> dict[str, Any]:
        """`{"caption": str}`."""
        return {"caption": "".join(self._pieces)}

    def _keep(self, text: str) -> tuple[Piece, ...]:
        if not text:
            return ()
        self._pieces.append(text)
        return (text,)


def caption(
    context: SkillContext,
    picture: Picture | None,
    length: object = "normal",
    *,
    settings: Mapping[str, object] | None = None,
) -> Ask:
    """Ask for `{"caption": str}` of one of the model's lengths (usually short, normal, long)."""
    captions = context.templates.captions
    if not captions:
        raise UnsupportedSkill(f"the model {context.name} has no skill 'caption'; use another model or skill")
    if not isinstance(length, str) or length not in captions:
        known = ", ".join(captions)
        raise InvalidRequest(f"length must be one of {known}; got {shown(length)}", param="length")
    chosen = Settings.parse(settings)
    prompt = to_prompt(context, pictured(picture, "caption"), Body.text(captions[length]))
    sampling = text_sampling(context, prompt, chosen)
    return Ask(prompt, "text", sampling, CaptionReader(context.tokenizer), chosen.timeout)
