"""What all skills share: their surroundings, what they ask of the engine, and how answers are read.

In: a user's arguments. Out: `Ask`: a prompt, a program, how to sample, and the reader of the tokens to come.
Building an `Ask` checks everything that can be checked without the engine; what passes here fits in the context.
Nothing here knows how a request is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gapless.constrain.grammar import Grammar
from gapless.errors import InvalidRequest, PromptTooLong, UnsupportedSkill, shown
from gapless.models.moondream.config import REVISIONS
from gapless.models.moondream.templates import Templates, Wrap
from gapless.records import Picture, Prompt, Sampling, Token
from gapless.skills.adjusting import ADJUSTING, check_ids, check_least, ids_of
from gapless.skills.answer import AnswerText
from gapless.skills.rules import RULES
from gapless.skills.settings import Settings, fresh_seed
from gapless.skills.structured import Shape
from gapless.skills.tokenizer import Tokenizer
from gapless.weights.catalogue import CATALOGUE

Piece = str | dict[str, Any]
"""What a stream yields: text, or for segment a dict with one of the keys bbox, chunk, completed."""
Values = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SkillContext:
    """The model as the skills see it. `prefix`: positions of BOS + picture block; `name`: for error messages."""

    templates: Templates
    tokenizer: Tokenizer
    prefix: int
    max_context: int
    name: str


class Reader(Protocol):
    """Turns one request's committed tokens into its answer. One per request, not to be shared."""

    def feed(self, tokens: Sequence[Token]) -> tuple[Piece, ...]:
        """Take tokens in order; return what a stream may show now."""
        ...

    def finish(self) -> tuple[Piece, ...]:
        """Say that no token follows; return what a stream has left to show. To be called once."""
        ...

    def result(self) -> dict[str, Any]:
        """The whole answer, of plain JSON types. Complete after `finish`; never raises, whatever was fed."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One question, checked. `timeout` in seconds, None for none. `text`: an answer in words, as its reader has it.

    `adapter`: the name of the adapter it is answered with. `rule`: what the text may be. `shape`: of the object that
    is made of it."""

    prompt: Prompt
    program: str
    sampling: Sampling
    reader: Reader
    timeout: float | None = None
    text: AnswerText | None = None
    adapter: str | None = None
    rule: Grammar | None = None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """Prompt ids with the value each stands for: () for text, (c,) for a coordinate, (w, h) for a size."""

    ids: tuple[int, ...]
    values: tuple[Values, ...]

    @classmethod
    def text(cls, ids: Iterable[int]) -> Body:
        """Ids without values."""
        ids = tuple(ids)
        return cls(ids, ((),) * len(ids))

    def __add__(self, other: Body) -> Body:
        return Body(self.ids + other.ids, self.values + other.values)


NOTHING = Body((), ())


def supported(context: SkillContext, skill: str, wrap: Wrap | None) -> Wrap:
    """The skill's template. Raises `UnsupportedSkill` naming the skill and the model."""
    if wrap is None:
        raise lacking(context, skill)
    return wrap


def lacking(context: SkillContext, skill: str) -> UnsupportedSkill:
    """The error for a skill that the model lacks: what it has, and which of the published models have it."""
    own = ", ".join(context.templates.skills()) or "none"
    others = [
        name
        for name, published in CATALOGUE.items()
        if skill in Templates.of(REVISIONS[published.editions[published.latest].behaves]).skills()
    ]
    return UnsupportedSkill(
        f"the model {context.name} has no skill {skill!r}; it has {own}; {skill} is a skill of {', '.join(others)}"
    )


def pictured(picture: Picture | None, skill: str) -> Picture:
    """The picture. Raises `InvalidRequest` without one."""
    if picture is None:
        raise InvalidRequest(f"{skill} needs a picture; pass an image", param="image")
    return picture


WANTED = {"question": "know", "object": "find"}
"""What a user's text is for, by the name of its argument."""


def user_text(value: object, param: str) -> str:
    """A user's question or object name without the white space around it. Raises `InvalidRequest`."""
    if value is None:
        raise InvalidRequest(
            f"{param} must be one string, and none is given; pass {param}='...' (the first argument is the image)",
            param=param,
        )
    if not isinstance(value, str):
        kind = type(value).__name__
        raise InvalidRequest(f"{param} must be one string, not {shown(value)} ({kind})", param=param)
    text = value.strip()
    if not text:
        raise InvalidRequest(f"{param} is empty; say what you want to {WANTED[param]}", param=param)
    return text


def wrapped(context: SkillContext, wrap: Wrap, text: str, refs: Body, param: str) -> Body:
    """Template prefix, spatial references, text, template suffix."""
    text = " " + text if wrap.space else text
    fewest = context.tokenizer.fewest(text)
    if fewest > context.max_context:
        raise PromptTooLong(
            f"{param} takes at least {fewest} tokens, and the model's whole context is {context.max_context}; "
            "shorten it",
            param=param,
        )
    ids = context.tokenizer.encode(text, param=param)
    return Body.text(wrap.prefix) + refs + Body.text((*ids, *wrap.suffix))


def to_prompt(context: SkillContext, picture: Picture | None, body: Body) -> Prompt:
    """BOS belongs to the picture's block; without a picture it leads the ids."""
    if picture is None:
        body = Body.text((context.templates.ids.bos,)) + body
    return Prompt(body.ids, body.values, picture)


def text_sampling(context: SkillContext, prompt: Prompt, settings: Settings, *, phases: int = 1) -> Sampling:
    """Sampling of free text: the revision's defaults where nothing is set, a fresh seed unless one is given.

    `phases` 2: a reasoning and an answer of `max_tokens` each, and the answer id between them.
    """
    defaults = context.templates.defaults
    temperature = defaults.temperature if settings.temperature is None else settings.temperature
    seed = settings.seed if settings.seed is not None else fresh_seed() if temperature > 0 else 0
    most = _token_limit(context, prompt, settings.max_tokens, defaults.max_tokens, phases)
    banned = ids_of(settings.banned, context.tokenizer)
    check_ids(settings.logit_bias, banned, context.templates.vocab)
    check_least(settings.min_tokens, most)
    return Sampling(
        temperature=temperature,
        top_p=defaults.top_p if settings.top_p is None else settings.top_p,
        max_tokens=most,
        max_objects=settings.max_objects or defaults.max_objects,
        seed=seed,
        top_logprobs=-1 if settings.logprobs is None else settings.logprobs,
        logit_bias=settings.logit_bias,
        banned=banned,
        min_tokens=settings.min_tokens,
        repetition_penalty=settings.repetition_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
    )


def answer_text(context: SkillContext, settings: Settings) -> AnswerText:
    """An answer in words, as the settings want it."""
    return AnswerText(context.tokenizer, settings.stop, scored=settings.logprobs is not None)


def greedy_sampling(context: SkillContext, prompt: Prompt, settings: Settings, *, stride: int = 0) -> Sampling:
    """Sampling of spatial skills: always argmax, as in the reference; temperature, top_p and seed change nothing.

    `stride`: tokens per object, 0 when objects are not counted. Without `max_tokens` it is `max_objects` that ends
    a list, or the context, whichever is reached first.
    """
    nothing = {"stop": (), "logprobs": None, **ADJUSTING, **dict.fromkeys(RULES)}
    for name, value in nothing.items():
        if getattr(settings, name) != value:
            raise InvalidRequest(f"{name} is for answers in words: query, caption and chat; leave it out", param=name)
    defaults = context.templates.defaults
    objects = settings.max_objects or defaults.max_objects
    asked = settings.max_tokens
    if stride and asked is not None:
        asked = min(asked, stride * objects)
    wanted = stride * objects if stride else defaults.max_tokens
    limit = _token_limit(context, prompt, asked, wanted, phases=1)
    return Sampling(temperature=0.0, top_p=1.0, max_tokens=limit, max_objects=objects, seed=0)


def _token_limit(context: SkillContext, prompt: Prompt, asked: int | None, default: int, phases: int) -> int:
    """`max_tokens` that fits behind the prompt: an asked one as it is or an error, a default cut to what fits."""
    used = len(prompt.ids) + (context.prefix if prompt.picture is not None else 0)
    room = (context.max_context - used - (phases - 1)) // phases
    if room < 1:
        least = 2 * phases - 1
        excess = used + least - context.max_context
        raise PromptTooLong(
            f"the prompt takes {used} tokens and the answer at least {least}, {used + least} in all, but the model's "
            f"context is {context.max_context}; shorten the prompt by {excess} tokens"
        )
    if asked is not None and asked > room:
        raise PromptTooLong(
            f"max_tokens is {asked}, but behind a prompt of {used} tokens at most {room} fit in the model's context "
            f"of {context.max_context}{' (reasoning and answer each take max_tokens)' if phases > 1 else ''}; "
            "lower it or leave it out",
            param="max_tokens",
        )
    return min(default, room) if asked is None else asked
