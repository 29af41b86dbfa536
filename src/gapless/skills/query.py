"""query: a question, about a picture or without one, answered at once or after reasoning.

A reasoning is everything before the answer id. It may point: coordinates stand in stretches that begin at the ground
id or at the id after it, and each stretch with at least two coordinates becomes a grounding of its piece of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gapless.errors import InvalidRequest
from gapless.models.moondream.templates import SpecialIds
from gapless.records import Picture, Token
from gapless.skills.answer import AnswerText
from gapless.skills.base import (
    Ask,
    Piece,
    SkillContext,
    answer_text,
    supported,
    text_sampling,
    to_prompt,
    user_text,
    wrapped,
)
from gapless.skills.settings import Settings
from gapless.skills.spatial import SpatialRefs, references
from gapless.skills.structured import Shape
from gapless.skills.tokenizer import Tokenizer


class QueryReader:
    """Reader of an answer. A stream yields the answer's words; the reasoning is whole once its end is seen."""

    def __init__(self, tokenizer: Tokenizer, ids: SpecialIds, text: AnswerText, *, reasoning: bool) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._text = text
        self._reasons = reasoning
        self._thinking = reasoning
        self._thoughts: list[Token] = []

    @property
    def reasoning(self) -> dict[str, Any] | None:
        """`{"text", "grounding"}` once the reasoning has ended, before the answer; None until then, or without one."""
        return grounded(self._tokenizer, self._ids, self._thoughts) if self._reasons and not self._thinking else None

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """See `Reader`."""
        answer: list[Token] = []
        for token in tokens:
            if not self._thinking:
                answer.append(token)
            elif token.id == self._ids.answer:
                self._thinking = False
            else:
                self._thoughts.append(token)
        return self._text.feed(answer)

    def finish(self) -> tuple[Piece, ...]:
        """See `Reader`."""
        self._thinking = False
        return self._text.finish()

    def result(self) -> dict[str, Any]:
        """`{"answer": str}`, and `"reasoning": {"text", "grounding"}` and "logprobs" when they were asked for."""
        result: dict[str, Any] = {"answer": self._text.text}
        if self._reasons:
            result["reasoning"] = grounded(self._tokenizer, self._ids, self._thoughts)
        return result | self._text.scores()


def grounded(tokenizer: Tokenizer, ids: SpecialIds, tokens: Sequence[Token]) -> dict[str, Any]:
    """Text and groundings of a reasoning: [{"start_idx", "end_idx", "points": [[x, y], ...]}], offsets in characters.

    Stretches are decoded one by one, as in the reference; an odd coordinate at a stretch's end is left out.
    """
    stretches: list[list[Token]] = [[]]
    for token in tokens:
        if token.id in (ids.ground, ids.unground):
            stretches.append([])
        stretches[-1].append(token)
    text, grounding = "", []
    for stretch in stretches:
        start = len(text)
        text += tokenizer.decode(t.id for t in stretch)
        found = [float(t.values[0]) for t in stretch if t.id == ids.coord and len(t.values) == 1]
        points = [[x, y] for x, y in zip(found[::2], found[1::2], strict=False)]
        if points:
            grounding.append({"start_idx": start, "end_idx": len(text), "points": points})
    return {"text": text, "grounding": grounding}


def query(
    context: SkillContext,
    picture: Picture | None,
    question: object,
    *,
    reasoning: bool = False,
    spatial_refs: SpatialRefs | None = None,
    settings: Mapping[str, object] | None = None,
    shape: Shape | None = None,
) -> Ask:
    """Ask for `{"answer": str}`; with `reasoning` also `{"reasoning": {"text", "grounding"}}`.

    With a `shape` the answer's text is one that an object can be made of.
    Without a picture the prompt is BOS and text. Spatial references need a picture.
    """
    if not isinstance(reasoning, bool):
        raise InvalidRequest(f"reasoning must be True or False, not {type(reasoning).__name__}", param="reasoning")
    templates = context.templates
    wrap = supported(context, "query", templates.query)
    if reasoning:
        wrap = supported(context, "reasoning", templates.reason)
    chosen = Settings.parse(settings)
    chosen = chosen if shape is None else shape.ruled(chosen)
    text = user_text(question, "question")
    refs = references(context, spatial_refs)
    if refs.ids and picture is None:
        raise InvalidRequest("spatial_refs point into a picture; pass an image too", param="spatial_refs")
    prompt = to_prompt(context, picture, wrapped(context, wrap, text, refs, "question"))
    sampling = text_sampling(context, prompt, chosen, phases=2 if reasoning else 1)
    words = answer_text(context, chosen)
    reader = QueryReader(context.tokenizer, templates.ids, words, reasoning=reasoning)
    return Ask(
        prompt,
        "reason" if reasoning else "text",
        sampling,
        reader,
        chosen.timeout,
        words,
        chosen.adapter,
        chosen.rule,
        shape,
    )
