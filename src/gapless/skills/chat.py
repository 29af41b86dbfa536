"""chat: a conversation, with pictures in it or without.

Each user's turn is laid out as a query is: its pictures, the template, the text, and behind it the answer if there was
one. The model is not trained on more than one turn, nor on more than one picture. What a system message says is put
before the first user's text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gapless.errors import InvalidRequest, PromptTooLong
from gapless.models.moondream.templates import Wrap
from gapless.records import Inset, Picture, Prompt
from gapless.skills.base import Ask, SkillContext, answer_text, supported, text_sampling
from gapless.skills.messages import Conversation, Turn
from gapless.skills.query import QueryReader
from gapless.skills.settings import Settings
from gapless.skills.structured import Shape


class ChatReader(QueryReader):
    """Reader of a message. A stream yields its words; a reasoning is whole once its end is seen."""

    def result(self) -> dict[str, Any]:
        """`{"message": {"role", "content"}}`, in it "reasoning" (str) and "reasoning_details" ({"grounding"}) when they
        were asked for; beside it "logprobs"."""
        found = super().result()
        message: dict[str, Any] = {"role": "assistant", "content": found.pop("answer")}
        return {"message": message | reasoning_fields(found.pop("reasoning", None))} | found


def reasoning_fields(reasoning: Mapping[str, Any] | None) -> dict[str, Any]:
    """A reasoning as a message has it; nothing without one."""
    if reasoning is None:
        return {}
    return {"reasoning": reasoning["text"], "reasoning_details": {"grounding": reasoning["grounding"]}}


def chat(
    context: SkillContext,
    conversation: Conversation,
    pictures: Sequence[Picture],
    *,
    reasoning: bool = False,
    settings: Mapping[str, object] | None = None,
    shape: Shape | None = None,
) -> Ask:
    """Ask for the next message. `pictures`: those of the conversation, one for each of its parts, in order. `shape`: of
    an object that is to be made of it."""
    templates = context.templates
    wrap = supported(context, "chat", templates.query)
    last = supported(context, "reasoning", templates.reason) if reasoning else wrap
    chosen = Settings.parse(settings)
    chosen = chosen if shape is None else shape.ruled(chosen)
    prompt = _lay_out(context, conversation, pictures, wrap, last)
    sampling = text_sampling(context, prompt, chosen, phases=2 if reasoning else 1)
    text = answer_text(context, chosen)
    reader = ChatReader(context.tokenizer, templates.ids, text, reasoning=reasoning)
    return Ask(
        prompt,
        "reason" if reasoning else "text",
        sampling,
        reader,
        chosen.timeout,
        text,
        chosen.adapter,
        chosen.rule,
        shape,
    )


def check_chat(context: SkillContext, conversation: Conversation, reasoning: object) -> None:
    """What can be refused before any picture is decoded or text tokenized: above all a conversation far too long."""
    if not isinstance(reasoning, bool):
        raise InvalidRequest(f"reasoning must be True or False, not {type(reasoning).__name__}", param="reasoning")
    shown = len(conversation.pictures) * (context.prefix - 1)
    texts = [conversation.system, *(turn.text for turn in conversation.turns)]
    texts += [turn.answer for turn in conversation.turns if turn.answer is not None]
    fewest = shown + sum(map(context.tokenizer.fewest, texts))
    if fewest > context.max_context:
        raise PromptTooLong(
            f"the messages take at least {fewest} tokens, {shown} of them for {len(conversation.pictures)} pictures, "
            f"and the model's whole context is {context.max_context}; "
            + ("leave some out" if len(texts) > 2 or len(conversation.pictures) > 1 else "shorten the text"),
            param="messages",
        )


def _lay_out(
    context: SkillContext, conversation: Conversation, pictures: Sequence[Picture], wrap: Wrap, last: Wrap
) -> Prompt:
    """BOS belongs to a picture right at the front, which other requests may share; all others are insets."""
    bos, block, left = context.templates.ids.bos, context.prefix - 1, list(pictures)
    front = left.pop(0) if conversation.turns[0].pictures else None
    ids = [] if front is not None else [bos]
    insets: list[Inset] = []
    for number, turn in enumerate(conversation.turns):
        for _ in turn.pictures[number == 0 :]:
            insets.append(Inset(len(ids), left.pop(0)))
            ids += [bos] * block
        system = conversation.system if number == 0 else ""
        ids += _turn(context, turn, system, wrap if turn.answer is not None else last)
    return Prompt(tuple(ids), ((),) * len(ids), front, tuple(insets))


def _turn(context: SkillContext, turn: Turn, system: str, wrap: Wrap) -> list[int]:
    text = f"{system}\n\n{turn.text}" if system else turn.text
    encode = context.tokenizer.encode
    ids = [*wrap.prefix, *encode(" " + text if wrap.space else text, param=turn.where), *wrap.suffix]
    return ids if turn.answer is None else [*ids, *encode(turn.answer, param=turn.where)]
