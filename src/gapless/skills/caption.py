"""caption: a picture in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gapless.errors import InvalidRequest, shown
from gapless.records import Picture, Token
from gapless.skills.answer import AnswerText
from gapless.skills.base import Ask, Body, Piece, SkillContext, answer_text, lacking, pictured, text_sampling, to_prompt
from gapless.skills.settings import Settings


class CaptionReader:
    """Reader of plain text. A stream yields words."""

    def __init__(self, text: AnswerText) -> None:
        self._text = text

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """See `Reader`."""
        return self._text.feed(tokens)

    def finish(self) -> tuple[Piece, ...]:
        """See `Reader`."""
        return self._text.finish()

    def result(self) -> dict[str, Any]:
        """`{"caption": str}`, with "logprobs" if they were asked for."""
        return {"caption": self._text.text} | self._text.scores()


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
        raise lacking(context, "caption")
    if not isinstance(length, str) or length not in captions:
        known = ", ".join(captions)
        raise InvalidRequest(f"length must be one of {known}; got {shown(length)}", param="length")
    chosen = Settings.parse(settings)
    prompt = to_prompt(context, pictured(picture, "caption"), Body.text(captions[length]))
    sampling = text_sampling(context, prompt, chosen)
    text = answer_text(context, chosen)
    return Ask(prompt, "text", sampling, CaptionReader(text), chosen.timeout, text, chosen.adapter, chosen.rule)
