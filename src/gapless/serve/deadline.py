"""How long a request may take: at a front, which may ask one engine after another, and at the engine that is asked.

In: a body's bytes, or its settings and the seconds that others have spent on it. Out: seconds. Invariant: however
often a request is asked again, it has the time that its caller gave it and no more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from starlette.requests import Request

from gapless.errors import InvalidRequest, RequestTimeout
from gapless.serve.limits import parse

TIMEOUT = "timeout"
_NAMED = re.compile(rb'"timeout"\s*:\s*[0-9]')


def time_of(body: bytes, most: float) -> float:
    """Seconds that a body, as the routes take it, asks for; `most` where it asks for none, for more, or is no JSON.
    Only a body that may name a time is parsed."""
    if not _NAMED.search(body):
        return most
    try:
        found = parse(body)
    except InvalidRequest:
        return most  # the engine says what is wrong with it
    fields = found if isinstance(found, dict) else {}
    settings = fields.get("settings")
    asked = [fields.get(TIMEOUT), settings.get(TIMEOUT) if isinstance(settings, dict) else None]
    return min([most, *(float(seconds) for seconds in asked if _is_time(seconds))])


def spent_on(request: Request) -> float:
    """Seconds that whoever passed it on says it took until then."""
    spent: float = getattr(request.state, "spent", 0.0)
    return spent


def less(settings: Mapping[str, Any], spent: float) -> dict[str, Any]:
    """Settings whose timeout, if they have one, is shorter by the seconds that are spent already. Raises
    `RequestTimeout` where nothing is left."""
    given = settings.get(TIMEOUT)
    if spent <= 0 or not _is_time(given):
        return dict(settings)
    if given <= spent:
        raise RequestTimeout(
            f"the request's timeout of {given:g} s ran out while it was with engines that could not answer; ask again"
        )
    return {**settings, TIMEOUT: given - spent}


def _is_time(seconds: object) -> TypeGuard[float]:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0
