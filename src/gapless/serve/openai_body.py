"""The body of /v1/chat/completions: what is honoured, what is refused, what is passed over.

In: the JSON that OpenAI's clients send. Out: `Wanted`, in the library's words. Invariants: a field that would change
the answer is honoured, or refused by name; one that would not, or that nobody knows, is passed over, and the log names
it once.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from gapless.errors import InvalidRequest, shown
from gapless.serve.errors import too_long
from gapless.serve.limits import RequestLimits
from gapless.serve.openai_format import rule_in
from gapless.serve.openai_schema import FORMAT, MESSAGES
from gapless.serve.schema import ADJUSTING, RULES
from gapless.skills.messages import Conversation, PicturePart, Turn, read_messages
from gapless.skills.settings import MAX_SEED, Settings

MAX_CHOICES = 16
MAX_ALTERNATIVES = 20
Skill = Literal["chat", "query", "caption", "detect", "point", "segment"]
WORDS = ("chat", "query", "caption")
"""Skills that answer in words; the others answer in JSON, of which there is one right one."""

_Stop = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "null"}]})]

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "web_search_options": (),
    # of this server's other routes
    "settings": ({},),
    "image_url": (),
    "question": (),
    "object": (),
    "length": (),
    # of other servers
    "top_k": (0, -1),
    "min_p": (0,),
    "typical_p": (1,),
    "length_penalty": (1,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "echo": (False,),
    "continue_final_message": (False,),
    "chat_template": (),
    "guided_grammar": (),
}
"""Fields that are not honoured, with the values that ask for nothing; null is one for each."""

ELSEWHERE = {
    "settings": "put what is in it beside messages, at the top of the body",
    "image_url": "put the picture into a message's content, as a part of type image_url",
    "question": "put it into a message's content",
    "object": 'put it into a message\'s content, with "skill": "detect", "point" or "segment"',
    "length": 'put it into a message\'s content, with "skill": "caption"',
}
"""Where a field of the other routes belongs here."""

_log = logging.getLogger("gapless.serve")
_MOST_NAMES = 200
_named: set[str] = set()


class ChatBody(BaseModel):
    """OpenAI's fields, and behind them this server's own."""

    model_config = ConfigDict(extra="allow", strict=True)

    messages: Annotated[list[Any], WithJsonSchema(MESSAGES)]
    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: _Stop = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: Annotated[Any, WithJsonSchema(ADJUSTING["logit_bias"])] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    reasoning: bool | None = None
    skill: Skill | None = None
    max_objects: int | None = None
    spatial_refs: list[list[float]] | None = None
    timeout: float | None = Field(default=None, description="seconds")
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    banned: Annotated[Any, WithJsonSchema(ADJUSTING["banned"])] = None

    response_format: Annotated[Any, WithJsonSchema(FORMAT)] = None
    structured_outputs: Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]})] = None
    choice: Annotated[Any, WithJsonSchema(RULES["choice"])] = None
    regex: Annotated[Any, WithJsonSchema(RULES["regex"])] = None
    json_schema: Annotated[Any, WithJsonSchema(RULES["json_schema"])] = None
    json_object: Annotated[Any, WithJsonSchema(RULES["json_object"])] = None
    guided_choice: Annotated[Any, WithJsonSchema(RULES["choice"])] = None
    guided_regex: Annotated[Any, WithJsonSchema(RULES["regex"])] = None
    guided_json: Annotated[Any, WithJsonSchema(RULES["json_schema"])] = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """A body, understood. `settings` are the library's, `choices` how many answers are wanted; `limit_field`: the name
    under which `max_tokens` came."""

    conversation: Conversation
    settings: Mapping[str, object]
    stream: bool
    usage_chunk: bool
    choices: int
    reasoning: bool
    skill: str
    spatial_refs: list[list[float]] | None
    limit_field: str
    rule_field: str | None = None
    """The field that says what the answer may be."""

    @property
    def turn(self) -> Turn:
        """The last one."""
        return self.conversation.turns[-1]

    @property
    def pictures(self) -> tuple[PicturePart, ...]:
        """Those that are looked at: in a chat all; else the last turn's one, or the last one before it."""
        if self.skill == "chat":
            return self.conversation.pictures
        return self.conversation.pictures[-1:]

    def place_of(self, param: str | None) -> str | None:
        """Where in the body an argument of the library comes from."""
        if param in RULES:
            return self.rule_field or param
        match param:
            case "max_tokens":
                return self.limit_field
            case "question" | "object" | "length":
                return f"{self.turn.where}.content"
            case "image" if not self.pictures:
                return f"{self.turn.where}.content"
            case "image":
                return self.pictures[0].where if len(self.pictures) == 1 else "messages"
        return "model" if param == "adapter" else param

    def settings_of(self, choice: int) -> dict[str, object]:
        """Each choice has a seed of its own; the first has the one that was given, so it does not depend on `n`."""
        seed = self.settings.get("seed")
        if seed is None or choice == 0:
            return dict(self.settings)
        drawn = hashlib.sha256(f"{seed}:{choice}".encode()).digest()
        return dict(self.settings) | {"seed": int.from_bytes(drawn[:8], "big") % (MAX_SEED + 1)}


def placed(error: InvalidRequest, place: str | None) -> InvalidRequest:
    """An error of the library, which knows its own arguments alone, with the place in the body that is meant."""
    return type(error)(str(error) if place == error.param else f"{place}: {error}", param=place)


def understood(body: ChatBody, limits: RequestLimits) -> Wanted:
    """Check a body. Raises `InvalidRequest` naming the field."""
    _refuse(body.model_extra or {})
    skill = body.skill or "chat"
    rule, rule_field = rule_in(dict(body))
    settings = _settings(body, rule, rule_field, limits)
    conversation = read_messages(body.messages, wordless=skill == "caption")
    wanted = Wanted(
        conversation=conversation,
        settings=settings,
        stream=bool(body.stream),
        usage_chunk=_usage_chunk(body),
        choices=_choices(body.n, skill),
        reasoning=bool(body.reasoning),
        skill=skill,
        spatial_refs=body.spatial_refs,
        limit_field=_limit_field(body),
        rule_field=rule_field,
    )
    _check_skill(wanted)
    _check_pictures(wanted, limits.max_pictures)
    return wanted


def _refuse(extra: Mapping[str, Any]) -> None:
    for name, value in extra.items():
        if name not in NEUTRAL:
            _pass_over(name)
        elif value is not None and value not in NEUTRAL[name]:
            remedy = ELSEWHERE.get(name, "leave it out")
            raise InvalidRequest(
                f"{name} is not supported here, and would change the answer; {remedy} (got {shown(value)})", param=name
            )


def _pass_over(name: str) -> None:
    """Say so once for each name, and for so many names at most: they come from outside."""
    if name not in _named and len(_named) < _MOST_NAMES:
        _named.add(name)
        _log.warning("the field %s of chat completions is passed over", ascii(name[:80]))


def _settings(
    body: ChatBody, rule: Mapping[str, object], rule_field: str | None, limits: RequestLimits
) -> dict[str, object]:
    """Only what is set. Checked here, before any picture is decoded."""
    found = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "seed": body.seed,
        "max_tokens": _max_tokens(body),
        "max_objects": body.max_objects,
        "stop": body.stop,
        "logprobs": _logprobs(body),
        "timeout": body.timeout,
        **{name: getattr(body, name) for name in ADJUSTING},
        **rule,
    }
    settings: dict[str, object] = {name: value for name, value in found.items() if value is not None}
    try:
        Settings.parse(settings)
    except InvalidRequest as error:
        if error.param in rule:
            raise placed(error, rule_field) from error
        if error.param != "max_tokens":
            raise
        raise placed(error, _limit_field(body)) from error
    if body.timeout is not None and body.timeout > limits.request_timeout:
        raise too_long(body.timeout, limits.request_timeout)
    settings.setdefault("timeout", limits.request_timeout)
    return settings


def _limit_field(body: ChatBody) -> str:
    return "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"


def _max_tokens(body: ChatBody) -> int | None:
    """The newer name, or the older one. Both may be sent if they agree."""
    new, old = body.max_completion_tokens, body.max_tokens
    if new is not None and old is not None and new != old:
        raise InvalidRequest(
            f"max_tokens is {shown(old)} and max_completion_tokens {shown(new)}, which mean the same; send one of them",
            param="max_tokens",
        )
    return old if new is None else new


def _logprobs(body: ChatBody) -> int | None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_ALTERNATIVES:
        raise InvalidRequest(
            f"top_logprobs must be a whole number from 0 to {MAX_ALTERNATIVES}; got {shown(top)}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true; set that, or leave it out", param="top_logprobs")
    return (top or 0) if body.logprobs else None


def _usage_chunk(body: ChatBody) -> bool:
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise InvalidRequest("stream_options is for streams; set stream: true, or leave it out", param="stream_options")
    wish = options.get("include_usage")
    if wish is not None and not isinstance(wish, bool):
        raise InvalidRequest(
            f"stream_options.include_usage must be true or false; got {shown(wish)}", param="stream_options"
        )
    return bool(wish)


def _choices(n: int | None, skill: str) -> int:
    choices = 1 if n is None else n
    if not 1 <= choices <= MAX_CHOICES:
        raise InvalidRequest(f"n must be a whole number from 1 to {MAX_CHOICES}; got {shown(n)}", param="n")
    if choices > 1 and skill not in WORDS:
        raise InvalidRequest(f"the skill {skill} has one answer, so n must be 1; got {choices}", param="n")
    return choices


def _check_skill(wanted: Wanted) -> None:
    if wanted.reasoning and wanted.skill not in ("chat", "query"):
        raise InvalidRequest(f"the skill {wanted.skill} does not reason; leave reasoning out", param="reasoning")
    if wanted.spatial_refs is not None and wanted.skill not in ("query", "point", "segment"):
        raise InvalidRequest(
            f"spatial_refs are for the skills query, point and segment, not {wanted.skill}; leave them out",
            param="spatial_refs",
        )
    if wanted.skill != "chat" and len(wanted.turn.pictures) > 1:
        raise InvalidRequest(
            f"the skill {wanted.skill} is about one picture, and the last message shows {len(wanted.turn.pictures)}; "
            "show one",
            param=wanted.turn.where,
        )


def _check_pictures(wanted: Wanted, most: int) -> None:
    shown_ = wanted.conversation.pictures
    if len(shown_) > most:
        raise InvalidRequest(
            f"the messages show {len(shown_)} pictures, and this server takes {most}; leave some out", param="messages"
        )
    for part in shown_:
        if part.kind != "image_url":
            raise InvalidRequest(
                f"{part.where}.type must be text or image_url, not {part.kind}; send pictures as data URLs",
                param=f"{part.where}.type",
            )
