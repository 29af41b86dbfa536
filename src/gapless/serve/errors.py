"""What goes wrong at the door, and how any error looks to a client.

In: exceptions. Out: `{"error": {"message", "type", "param"?}, "request_id"}` with the error's HTTP status; on OpenAI's
routes `{"error": {"message", "type", "param", "code"}, "request_id"}`, as its clients read it. Invariants: a message
either says what was wrong with the request or nothing about the inside; the log has the rest, under the request's id.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import ValidationError
from starlette.responses import Response

from gapless.constrain.compiler import CompilerGone, TooManyGrammars
from gapless.errors import (
    EngineClosed,
    EngineDead,
    GaplessError,
    InvalidRequest,
    PromptTooLong,
    RequestCancelled,
    RequestTimeout,
    shown,
)
from gapless.skills.settings import Settings

RETRY_SECONDS = 1
"""What `Retry-After` advises: a row is free again within about a second."""


class DoorError(GaplessError):
    """Said by the server itself, before the model is asked; `headers` go with it."""

    headers: Mapping[str, str] = {}


class Unauthorized(DoorError):
    """No key, or none that is known."""

    status: ClassVar[int] = 401
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class NotFound(DoorError):
    """There is no such route, or no such model."""

    status: ClassVar[int] = 404


class MethodNotAllowed(DoorError):
    """The route exists, but not for this method."""

    status: ClassVar[int] = 405


class NotHttp(DoorError):
    """The bytes are no request."""

    status: ClassVar[int] = 400


class HeadersTooLarge(DoorError):
    """There is no end of the request's headers."""

    status: ClassVar[int] = 431


class TooSlow(DoorError):
    """The headers or the body did not arrive in time."""

    status: ClassVar[int] = 408


class BodyTooLarge(DoorError):
    """The body is over the limit."""

    status: ClassVar[int] = 413


class NotJson(DoorError):
    """The body is declared to be something else than JSON."""

    status: ClassVar[int] = 415


class TooManyRequests(DoorError):
    """All places, running and waiting, are taken."""

    status: ClassVar[int] = 429
    headers: Mapping[str, str] = {"Retry-After": str(RETRY_SECONDS)}


class RateLimited(DoorError):
    """This key asks more often than it may; after `seconds` one more request is taken."""

    status: ClassVar[int] = 429

    def __init__(self, message: str, seconds: float = 1.0) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(max(1, math.ceil(seconds)))}


class NotServing(DoorError):
    """The model is still loading, or the server is on its way out."""

    status: ClassVar[int] = 503
    headers: Mapping[str, str] = {"Retry-After": "5"}


_TELLING = (DoorError, InvalidRequest, RequestTimeout, RequestCancelled, TooManyGrammars, CompilerGone)
"""Errors whose messages are about the request; any other may speak of the inside."""


_OPENAI = ("/v1/chat", "/v1/models", "/v1/completions", "/v1/embeddings", "/v1/responses")
_OPENAI_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_OPENAI_CODES: Mapping[type[BaseException], str] = {
    Unauthorized: "invalid_api_key",
    TooManyRequests: "rate_limit_exceeded",
    RateLimited: "rate_limit_exceeded",
    TooManyGrammars: "rate_limit_exceeded",
    PromptTooLong: "context_length_exceeded",
}


def type_of(error: BaseException) -> str:
    """The error's class in the spelling of JSON: InvalidImage is invalid_image."""
    name = type(error).__name__ if isinstance(error, GaplessError) else "InternalError"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def is_inside(error: BaseException) -> bool:
    """Whether the log has to explain it: not what is wrong with a request, a deadline, or the server's stop."""
    return not isinstance(error, (*_TELLING, EngineClosed))


def status_of(error: BaseException) -> int:
    """The HTTP status; 500 for what was not raised on purpose."""
    return error.status if isinstance(error, GaplessError) else 500


def speaks_openai(path: str) -> bool:
    """Whether a path is one of OpenAI's, served here or not."""
    return path.startswith(_OPENAI)


def told_openai(error: BaseException, request_id: str) -> dict[str, Any]:
    """The body that a client of OpenAI's gets. `code` is exact: OpenAI's own where it has one."""
    status, param = status_of(error), error.param if isinstance(error, GaplessError) else None
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    code = _OPENAI_CODES.get(type(error), type_of(error))
    if isinstance(error, NotFound) and param == "model":
        code = "model_not_found"
    said = {"message": _message(error, request_id), "type": kind, "param": param, "code": code}
    return {"error": said, "request_id": request_id}


def told(error: BaseException, request_id: str) -> dict[str, Any]:
    """The body that a client gets."""
    said: dict[str, Any] = {"message": _message(error, request_id), "type": type_of(error)}
    if isinstance(error, GaplessError) and error.param is not None:
        said["param"] = error.param
    return {"error": said, "request_id": request_id}


def _message(error: BaseException, request_id: str) -> str:
    if isinstance(error, _TELLING):
        return str(error)
    if isinstance(error, EngineDead):
        return (
            "the server's engine has died, and the server ends with it; ask again in a few seconds, when it may have "
            f"been started anew. Its log has the reason under {request_id}"
        )
    if isinstance(error, EngineClosed):
        return "the server stopped before this request ended; ask again, or ask another server"
    return f"the server failed at this request; its log has the reason under {request_id}"


_ELSEWHERE = {
    **dict.fromkeys(("schema", "response_format", "guided_json", "format"), "json_schema"),
    "guided_choice": "choice",
    "guided_regex": "regex",
    "max_completion_tokens": "max_tokens",
}
"""What the library's argument, and fields of other servers, are called among the settings."""


def _meant(name: str, fields: Collection[str]) -> str:
    """What to do about a field that is none of these."""
    meant = _ELSEWHERE.get(name, name)
    if meant in Settings.__slots__ and "settings" in fields:
        return f'put it into settings: {{"settings": {{"{meant}": ...}}}}'
    near = get_close_matches(name, sorted(fields), 1)
    return f"did you mean {near[0]}?" if near else f"leave it out; it knows {', '.join(fields)}"


class Json(Response):
    """UTF-8 JSON; what UTF-8 cannot spell (half a surrogate pair) is written as JSON's own escape."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Bytes of the body."""
        return encoded(content)


def encoded(content: Any) -> bytes:
    """JSON without blanks, in one line."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def error_response(error: BaseException, request_id: str, path: str) -> Json:
    """The answer to a request that failed before its answer began, in the words of its path."""
    headers = dict(error.headers) if isinstance(error, DoorError) else {}
    if isinstance(error, TooManyGrammars | CompilerGone):
        headers = dict(TooManyRequests.headers)
    if isinstance(error, EngineDead | EngineClosed):
        headers = dict(NotServing.headers)
    said = told_openai(error, request_id) if speaks_openai(path) else told(error, request_id)
    return Json(said, status_of(error), headers)


def too_long(timeout: object, most: float) -> InvalidRequest:
    """A request wants more time than the server gives any."""
    return InvalidRequest(
        f"timeout is {shown(timeout)} seconds, and this server gives {most:g}; ask for no more, or raise its "
        "request_timeout",
        param="timeout",
    )


def field_error(error: ValidationError, fields: Collection[str]) -> InvalidRequest:
    """The first thing that is wrong with a body of these fields, with the name of the one at fault."""
    found = error.errors(include_url=False)[0]
    names = [part if isinstance(part, str) else f"[{part}]" for part in found["loc"]]
    name = ascii(".".join(names).replace(".[", "["))[1:-1][:80]
    if found["type"] == "missing":
        return InvalidRequest(f"{name} is missing; it must be given", param=name)
    if found["type"] == "extra_forbidden":
        return InvalidRequest(f"{name} is not a field that this route knows; {_meant(name, fields)}", param=name)
    if not names:
        return InvalidRequest(f"the body must be one JSON object, not {shown(found['input'])}")
    return InvalidRequest(f"{name}: {found['msg'].lower()}; got {shown(found['input'])}", param=name)
