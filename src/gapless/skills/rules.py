"""Rules for an answer's text, as a caller sets them, checked before anything is compiled.

In: the settings `choice`, `regex`, `json_schema` and `json_object`. Out: the `Grammar` that they mean. Invariants: one
answer has one rule; a rule is bounded in bytes, and what it says no longer depends on the caller's objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gapless.constrain.grammar import Grammar
from gapless.errors import InvalidRequest, shown

RULES = ("choice", "regex", "json_schema", "json_object")
"""Settings that say what an answer's text may be."""
MOST_BYTES = 2**17
"""Of a rule, written as JSON. Compiling takes time and memory by it, and whoever asks is not always a friend."""
MOST_CHOICES = 4096


def rules_of(settings: Mapping[str, object]) -> dict[str, Grammar]:
    """The rule under its setting's name; nothing where none is set. Raises `InvalidRequest`."""
    given = {name: value for name in RULES if (value := settings.get(name)) is not None}
    if given.get("json_object") is False:
        del given["json_object"]
    if len(given) > 1:
        one, other, *_ = given
        raise InvalidRequest(f"{one} and {other} both say what the answer may be; give one of them", param=other)
    return {name: _sized(name, _grammar(name, value)) for name, value in given.items()}


def _grammar(name: str, value: object) -> Grammar:
    match name:
        case "choice":
            return Grammar.choice(_choices(value))
        case "regex":
            if not isinstance(value, str) or not value:
                raise _wrong(name, value, "the text of a pattern, not empty")
            return Grammar.regex(value)
        case "json_schema":
            if not isinstance(value, Mapping):
                hint = "; a class is given as query's schema" if isinstance(value, type) else ""
                raise _wrong(name, value, f"a JSON schema, a dict like {{'type': 'object'}}{hint}")
            return Grammar.json_schema(value)
    if value is not True:
        raise _wrong(name, value, "true or false")
    return Grammar.json_object()


def _choices(value: object) -> Sequence[str]:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MOST_CHOICES:
        raise _wrong("choice", value, f"a list of 1 to {MOST_CHOICES} texts")
    for text in value:
        if not isinstance(text, str) or not text:
            raise _wrong("choice", text, "texts that are not empty")
    return value


def _sized(name: str, grammar: Grammar) -> Grammar:
    size = len(grammar.content)
    if size > MOST_BYTES:
        raise InvalidRequest(
            f"{name} takes {size} bytes as JSON, and at most {MOST_BYTES} are compiled; make it smaller", param=name
        )
    return grammar


def _wrong(name: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {wanted}; got {shown(value)} ({type(value).__name__})", param=name)
