"""What /openapi.json says of OpenAI's routes. Nothing is checked against this at run time; the tests do."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gapless.serve.schema import ASKING, EVENT, WHEN, Responses
from gapless.skills.messages import ROLES

_PART = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "image_url"]},
        "text": {"type": "string"},
        "image_url": {
            "anyOf": [
                {"type": "string"},
                {"type": "object", "properties": {"url": {"type": "string"}}, "required": ["url"]},
            ],
            "description": "A data URL.",
        },
    },
    "required": ["type"],
}
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": _PART}]},
        },
        "required": ["role", "content"],
    },
}
"""System messages first, then users and assistants in turn; the last is a user's. Only users show pictures."""


FORMAT = {
    "anyOf": [
        {"type": "null"},
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string"},
                        "description": {"type": "string"},
                        "schema": {"type": "object"},
                        "strict": {"type": "boolean"},
                    },
                    "required": ["name", "schema"],
                },
            },
            "required": ["type", "json_schema"],
        },
    ]
}
"""What an answer may be. Every schema is held to the letter."""


class OpenAISaid(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorAnswer(BaseModel):
    """Every error of these routes."""

    error: OpenAISaid
    request_id: str


class Model(BaseModel):
    """A model that is served."""

    id: str
    object: str
    created: int
    owned_by: str


class Models(BaseModel):
    """All of them."""

    object: str
    data: list[Model]


class Choice(BaseModel):
    """One answer."""

    index: int
    message: dict[str, Any]
    logprobs: dict[str, Any] | None
    finish_reason: str


class Usage(BaseModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]


class ChatCompletion(BaseModel):
    """The answer to a conversation. `metrics` are the first choice's; see the Moondream routes."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    metrics: dict[str, Any]
    request_id: str


def openai_errors(*statuses: int) -> Responses:
    """These statuses, each with the shape of an error."""
    return {status: {"model": OpenAIErrorAnswer, "description": WHEN[status]} for status in statuses}


def shown_as(shape: type[BaseModel], *statuses: int) -> Responses:
    """An answer of this shape, and these errors."""
    return {200: {"model": shape}, **openai_errors(*statuses)}


def completions() -> Responses:
    """A chat completion or its chunks, and every error of such a request."""
    told = "The answer; with `stream` its chunks, and at last [DONE]."
    chunk = {"text/event-stream": {"schema": EVENT}}
    return {200: {"model": ChatCompletion, "description": told, "content": chunk}, **openai_errors(*ASKING)}
