"""What /openapi.json says of answers: their shapes, and which status means what.

In: statuses, shapes. Out: what FastAPI's `responses=` takes. Nothing is checked against these at run time; the tests
do that from outside.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from gapless.records import MAX_BIASED, MAX_TOP_LOGPROBS
from gapless.skills.adjusting import LEAST_REPETITION, MAX_BAN_LENGTH, MAX_BIAS, MAX_PENALTY, MOST_REPETITION
from gapless.skills.rules import MOST_CHOICES
from gapless.skills.settings import (
    MAX_OBJECTS,
    MAX_SEED,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TIMEOUT,
)

Responses = dict[int | str, dict[str, Any]]

WHEN = {
    400: "The request is wrong; `param` names the field.",
    401: "No key, or an unknown one.",
    404: "No such route or model.",
    405: "The route does not take this method.",
    408: "The headers or the body did not arrive in time.",
    413: "The body is over its limit, or the request needs more memory than there is.",
    415: "The body is not declared as JSON.",
    429: "All places are taken, or this key asks too often; `Retry-After` says when to ask again.",
    431: "The request's line and headers have more than 64 KiB.",
    500: "A failure inside; the server's log has the reason under `request_id`.",
    501: "The model does not have this skill.",
    503: "The model is loading or gone, or the server is stopping.",
    504: "The answer took longer than the request may take.",
}
JSON = "application/json"
ASKING = tuple(WHEN)
"""What a request for an answer may be told."""
LOOKING = (401, 405, 408, 431, 500, 503, 504)
"""What a request about the server may be told."""


def _or_null(**said: Any) -> dict[str, Any]:
    return {"anyOf": [said, {"type": "null"}]}


RULES = {
    "choice": _or_null(type="array", minItems=1, maxItems=MOST_CHOICES, items={"type": "string", "minLength": 1}),
    "regex": _or_null(type="string", minLength=1, description="of the whole answer"),
    "json_schema": _or_null(type="object", description="a JSON schema"),
    "json_object": _or_null(type="boolean"),
}
"""`skills.rules`: of these at most one."""
_BIAS = {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}
_BAN = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1, "maxLength": MAX_BAN_LENGTH}]}
ADJUSTING = {
    "logit_bias": _or_null(
        type="object",
        additionalProperties=_BIAS,
        propertyNames={"pattern": "^[0-9]{1,19}$"},
        maxProperties=MAX_BIASED,
        description="by token id",
    ),
    "banned": {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": MAX_BAN_LENGTH},
            {"type": "array", "maxItems": MAX_BIASED, "items": _BAN},
            {"type": "null"},
        ],
        "description": "token ids, and texts that are one token each",
    },
    "min_tokens": _or_null(type="integer", minimum=0, maximum=2**31 - 1),
    "repetition_penalty": _or_null(type="number", minimum=LEAST_REPETITION, maximum=MOST_REPETITION),
    "presence_penalty": _or_null(type="number", minimum=-MAX_PENALTY, maximum=MAX_PENALTY),
    "frequency_penalty": _or_null(type="number", minimum=-MAX_PENALTY, maximum=MAX_PENALTY),
}
"""`skills.adjusting`, which says more."""
_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
SETTINGS = _or_null(
    type="object",
    properties={
        "temperature": _or_null(type="number", minimum=0, maximum=MAX_TEMPERATURE),
        "top_p": _or_null(type="number", exclusiveMinimum=0, maximum=1),
        "max_tokens": _or_null(type="integer", minimum=1, maximum=2**31 - 1),
        "max_objects": _or_null(type="integer", minimum=1, maximum=MAX_OBJECTS),
        "seed": _or_null(type="integer", minimum=0, maximum=MAX_SEED),
        "timeout": _or_null(type="number", exclusiveMinimum=0, maximum=MAX_TIMEOUT, description="seconds"),
        "stop": {"anyOf": [_STOP, {"type": "array", "maxItems": MAX_STOPS, "items": _STOP}, {"type": "null"}]},
        "logprobs": _or_null(type="integer", minimum=0, maximum=MAX_TOP_LOGPROBS),
        "adapter": _or_null(type="string", description="one that is loaded"),
        **ADJUSTING,
        **RULES,
    },
    additionalProperties={"type": "null"},
)
"""`skills.settings.Settings`, which checks them. Null is what is not set."""
EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "contentMediaType": JSON}},
    "required": ["data"],
}


class Said(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str = ""
    """The field at fault; left out where there is none."""


class ErrorAnswer(BaseModel):
    """Every error."""

    error: Said
    request_id: str


class Metrics(BaseModel):
    """What an answer cost. Times are milliseconds."""

    input_tokens: int
    output_tokens: int
    queue_ms: float
    prefill_time_ms: float
    decode_time_ms: float
    ttft_ms: float
    cached_tokens: int
    preemptions: int
    idle_ms: float
    rule: dict[str, float] = {}
    """Of an answer that has one: states, classes and bytes of its table, and compile_ms."""


class Answer(BaseModel):
    """What every answer has."""

    request_id: str
    finish_reason: str
    metrics: Metrics


class QueryAnswer(Answer):
    """`reasoning` where it was asked for."""

    answer: str
    reasoning: dict[str, Any] = {}


class CaptionAnswer(Answer):
    """A description."""

    caption: str


class Box(BaseModel):
    """Parts of the upright picture's sides, 0..1; x to the right, y down."""

    x_min: float
    y_min: float
    x_max: float
    y_max: float


class Point(BaseModel):
    """Parts of the upright picture's sides, 0..1; x to the right, y down."""

    x: float
    y: float


class DetectAnswer(Answer):
    """Boxes, as many as were found."""

    objects: list[Box]


class PointAnswer(Answer):
    """Points, as many as were found."""

    points: list[Point]


class SegmentAnswer(Answer):
    """An SVG path inside its box; no box where nothing was found."""

    path: str
    bbox: Box | None


def errors(*statuses: int) -> Responses:
    """These statuses, each with the shape of an error."""
    return {status: {"model": ErrorAnswer, "description": WHEN[status]} for status in statuses}


def answers(shape: type[BaseModel], streams: bool) -> Responses:
    """An answer of this shape, or its events where the route `streams`; and every error of such a request."""
    found: dict[str, Any] = {"model": shape, "description": "The answer; with `stream` its events."}
    if streams:
        found["content"] = {"text/event-stream": {"schema": EVENT}}
    else:
        found["description"] = "The answer."
    return {200: found} | errors(*ASKING)
