"""What a chat completion's text may be, in the words of OpenAI's clients, of vLLM's, and of this library.

In: the body's fields. Out: the library's setting, and the field that it came from, which errors name. Invariants: one
answer has one rule; nothing in such a field is passed over: it is honoured, or says nothing about the text, or is
refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gapless.errors import InvalidRequest, shown
from gapless.skills.rules import RULES

GUIDED = {"guided_choice": "choice", "guided_regex": "regex", "guided_json": "json_schema"}
"""vLLM's older fields, and the library's settings that they are."""
_OUTPUTS = {"choice": "choice", "regex": "regex", "json": "json_schema", "json_object": "json_object"}
"""The members of vLLM's newer field."""
_BESIDE = ("name", "strict", "description")
"""What may stand beside a schema. Every schema is held to the letter, whatever `strict` says."""

Fields = Mapping[str, Any]
Rule = dict[str, object]


def rule_in(fields: Fields) -> tuple[Rule, str | None]:
    """The library's setting and the field that says it; nothing where there is none. Raises `InvalidRequest`."""
    readers: dict[str, Callable[[Any], Rule]] = {"response_format": _format, "structured_outputs": _outputs}
    found: Rule = {}
    place: str | None = None
    for name in (*readers, *GUIDED, *RULES):
        value = fields.get(name)
        if value is None or (name == "json_object" and value is False):
            continue
        if name in readers:
            rule = readers[name](value)
        elif name in GUIDED:
            rule = {GUIDED[name]: _parsed(name, value)}
        else:
            rule = {name: value}
        if rule and place is not None:
            raise InvalidRequest(f"{place} and {name} both say what the answer may be; send one of them", param=name)
        if rule:
            found, place = rule, name
    return found, place


def _format(value: Any) -> Rule:
    """OpenAI's `response_format`."""
    field = "response_format"
    if not isinstance(value, dict):
        raise _refused(field, f'must be an object like {{"type": "json_object"}}; got {shown(value)}')
    match value.get("type"):
        case "text":
            _only(field, value, ("type",))
            return {}
        case "json_object":
            _only(field, value, ("type",))
            return {"json_object": True}
        case "json_schema":
            _only(field, value, ("type", "json_schema"))
            return {"json_schema": _schema(value.get("json_schema"))}
    raise _refused(field, f"has the type {shown(value.get('type'))}; known are text, json_object and json_schema")


def _schema(named: Any) -> Any:
    field = "response_format.json_schema"
    if not isinstance(named, dict):
        raise _refused(field, f'must be an object like {{"name": "...", "schema": {{}}}}; got {shown(named)}')
    _only(field, named, (*_BESIDE, "schema"))
    for name, kind, words in (
        ("name", str, "a text"),
        ("description", str, "a text"),
        ("strict", bool, "true or false"),
    ):
        if named.get(name) is not None and not isinstance(named[name], kind):
            raise _refused(f"{field}.{name}", f"must be {words}; got {shown(named[name])}")
    if not isinstance(named.get("schema"), dict):
        raise _refused(f"{field}.schema", f"must be a JSON schema; got {shown(named.get('schema'))}")
    return named["schema"]


def _outputs(value: Any) -> Rule:
    """vLLM's `structured_outputs`."""
    field = "structured_outputs"
    if not isinstance(value, dict):
        raise _refused(field, f'must be an object like {{"regex": "[0-9]+"}}; got {shown(value)}')
    given = {name: one for name, one in value.items() if one is not None and one is not False}
    _only(field, given, tuple(_OUTPUTS))
    if len(given) > 1:
        raise _refused(field, f"says {' and '.join(given)}; say one of them")
    return {_OUTPUTS[name]: _parsed(f"{field}.{name}", one) for name, one in given.items()}


def _parsed(place: str, value: Any) -> Any:
    """A schema may also come as the text of one."""
    if not place.endswith("json") or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _refused(place, f"is no JSON: {type(error).__name__}; send the schema as an object") from error


def _only(place: str, value: Fields, names: tuple[str, ...]) -> None:
    for name, one in value.items():
        if name not in names and one is not None:
            raise _refused(place, f"has {shown(name)}, which is not known there; known are {', '.join(names)}")


def _refused(place: str, why: str) -> InvalidRequest:
    """An error's `param` is the field of the body, as OpenAI's is."""
    return InvalidRequest(f"{place} {why}", param=place.partition(".")[0])
