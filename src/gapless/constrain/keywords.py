"""One schema's own keywords, checked and put into a `Flat`.

In: a schema (an object or a truth value) and where it stands. Out: its `Flat`, without what combines schemas ($ref,
allOf, anyOf, oneOf: see `schema`). Every keyword is honoured, or known to say nothing about values (`ANNOTATIONS`), or
refused by name: a schema that is served is served as it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from gapless.constrain.digits import FRACTION_DIGITS, MOST_STEP, Bound
from gapless.constrain.flat import TYPES, Conjunction, Flat, Part, Text, below, common, decimal, refusal
from gapless.constrain.spelling import FORMATS
from gapless.errors import InvalidRequest, shown

_HINTS = ("title", "description", "default", "example", "examples", "deprecated", "readOnly", "writeOnly")
ANNOTATIONS = frozenset((*_HINTS, "discriminator", "$schema", "$comment", "$defs", "definitions", "$vocabulary"))
COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "nullable"))
_GENERAL = frozenset(("type", "enum", "const"))
_SPEAKS = {
    "integer number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "string": "minLength maxLength pattern format",
    "array": "items prefixItems additionalItems minItems maxItems uniqueItems",
    "object": "properties required additionalProperties propertyNames minProperties maxProperties",
}
_ABOUT = {keyword: frozenset(kinds.split()) for kinds, words in _SPEAKS.items() for keyword in words.split()}
_NO_TABLE = {
    "not": "says what values are not",
    "if": "depends on the value",
    "then": "depends on the value",
    "else": "depends on the value",
    "contains": "asks for one element among others",
    "dependentRequired": "depends on other members",
    "dependentSchemas": "depends on other members",
    "dependencies": "depends on other members",
    "patternProperties": "sorts members by their names",
    "unevaluatedProperties": "depends on other keywords (use additionalProperties)",
    "unevaluatedItems": "depends on other keywords (use items)",
}
MOST_COUNT = 2**31 - 1
"""No answer has so many characters, elements or members: as an upper bound it bounds nothing."""
_BOUNDS = (("minimum", False), ("exclusiveMinimum", True), ("maximum", False), ("exclusiveMaximum", True))


class Keywords:
    """Reads the keywords of one schema, each with its own check."""

    def __init__(self, part: Part) -> None:
        """Raises `InvalidRequest` for what is no schema, and for a keyword that cannot be honoured."""
        if not isinstance(part.schema, Mapping):
            raise InvalidRequest(
                f"the schema at #{part.pointer} is {shown(part.schema)}; it must be an object or a truth value",
                param="json_schema",
            )
        self._part = part
        self._schema: Mapping[str, Any] = part.schema
        for keyword in self._schema:
            self._check(keyword)

    def _check(self, keyword: str) -> None:
        known = ANNOTATIONS | COMBINING | _GENERAL | _ABOUT.keys()
        if keyword in known or keyword.startswith("x-") or (keyword in ("$id", "id") and not self._part.pointer):
            return
        if keyword in _NO_TABLE:
            raise self.refused(keyword, f"cannot be honoured: it {_NO_TABLE[keyword]}")
        raise self.refused(keyword, "is no keyword that can be honoured; remove it, or name it x-...")

    def refused(self, keyword: str, why: str) -> InvalidRequest:
        """The error for a keyword of this schema."""
        return refusal(self._part.pointer, keyword, why)

    def flat(self) -> Flat:
        """All of them."""
        low, high = self._bounds()
        heads, rest = self._elements()
        return Flat(
            self._part.pointer,
            self._types(),
            frozenset().union(*(_ABOUT.get(keyword, frozenset()) for keyword in self._schema)),
            self._values(),
            low,
            high,
            *self._step(),
            self._count("minLength") or 0,
            self._count("maxLength"),
            self._texts(),
            self._properties(),
            self._required(),
            self._one("additionalProperties"),
            self._one("propertyNames") or (),
            self._count("minProperties") or 0,
            self._count("maxProperties"),
            heads,
            rest,
            self._count("minItems") or 0,
            self._count("maxItems"),
        )

    def _below(self, schema: object, *names: str | int) -> Part:
        return Part(below(self._part.pointer, *names), schema, self._part.trail)

    def several(self, keyword: str) -> list[Part]:
        """The schemas in the list that is a keyword's value; none where it is not there."""
        value = self._schema.get(keyword, [])
        if not isinstance(value, list) or (keyword in self._schema and keyword != "items" and not value):
            raise self.refused(keyword, f"is {shown(value)}; it must be a list of schemas")
        return [self._below(schema, keyword, i) for i, schema in enumerate(value)]

    def _one(self, keyword: str) -> Conjunction | None:
        return (self._below(self._schema[keyword], keyword),) if keyword in self._schema else None

    def _types(self) -> frozenset[str] | None:
        if "type" not in self._schema:
            return None
        value = self._schema["type"]
        names = value if isinstance(value, list) else [value]
        if not names or any(not isinstance(name, str) or name not in TYPES for name in names):
            raise self.refused("type", f"is {shown(value)}; it must be one or a list of {', '.join(TYPES)}")
        return frozenset(names) | ({"integer"} if "number" in names else set())

    def _values(self) -> tuple[object, ...] | None:
        if "enum" in self._schema and (not isinstance(self._schema["enum"], list) or not self._schema["enum"]):
            raise self.refused("enum", f"is {shown(self._schema['enum'])}; it must be a list of values")
        listed = tuple(self._schema["enum"]) if "enum" in self._schema else None
        return common(listed, (self._schema["const"],) if "const" in self._schema else None)

    def _bounds(self) -> tuple[Bound | None, Bound | None]:
        ends: list[Bound | None] = [None, None]
        for i, (keyword, open_) in enumerate(_BOUNDS):
            if keyword not in self._schema:
                continue
            bound, known = Bound(decimal(self._number(keyword)), open_), ends[i // 2]
            sign = 1 if i < 2 else -1
            if known is None or (sign * bound.value, bound.open) > (sign * known.value, known.open):
                ends[i // 2] = bound
        return ends[0], ends[1]

    def _number(self, keyword: str) -> float:
        value = self._schema[keyword]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refused(keyword, f"is {shown(value)}; it must be a number")
        if isinstance(value, float) and not isfinite(value):
            raise self.refused(keyword, f"is {shown(value)}; it must be a number")
        return value

    def _step(self) -> tuple[int | None, int | None]:
        """`multipleOf` as a step, or as digits behind the point."""
        if "multipleOf" not in self._schema:
            return None, None
        value = self._number("multipleOf")
        parts = decimal(value).normalize().as_tuple()
        if value > 0 and parts.digits == (1,) and -FRACTION_DIGITS <= int(parts.exponent) < 0:
            return None, -int(parts.exponent)
        if value <= 0 or value != int(value):
            why = "only whole numbers from 1 on, and 0.1, 0.01 and so on, can be honoured"
            raise self.refused("multipleOf", f"is {shown(value)}; {why}")
        if value > MOST_STEP:
            raise self.refused("multipleOf", f"is {shown(value)}; up to {MOST_STEP} can be honoured")
        return int(value), None

    def _count(self, keyword: str) -> int | None:
        if keyword not in self._schema:
            return None
        value = self._number(keyword)
        if value < 0 or value != int(value):
            raise self.refused(keyword, f"is {shown(value)}; it must be a whole number from 0 on")
        if value > MOST_COUNT:
            if keyword.startswith("min"):
                raise self.refused(keyword, f"is {shown(value)}, and no answer is so long; lower it")
            return None
        return int(value)

    def _texts(self) -> tuple[Text, ...]:
        found = []
        for keyword in ("pattern", "format"):
            if keyword in self._schema:
                content = self._schema[keyword]
                if not isinstance(content, str):
                    raise self.refused(keyword, f"is {shown(content)}; it must be a string")
                if keyword == "format" and content not in FORMATS:
                    known = f"known are {', '.join(FORMATS)}; of another kind of text, a pattern says what it is"
                    raise self.refused(keyword, f"is {shown(content)}; {known}")
                found.append(Text(keyword, content, self._part.pointer))
        return tuple(found)

    def _properties(self) -> dict[str, Conjunction]:
        value = self._schema.get("properties", {})
        if not isinstance(value, Mapping):
            raise self.refused("properties", f"is {shown(value)}; it must be an object of schemas")
        return {name: (self._below(schema, "properties", name),) for name, schema in value.items()}

    def _required(self) -> tuple[str, ...]:
        value = self._schema.get("required", [])
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.refused("required", f"is {shown(value)}; it must be a list of names")
        return tuple(dict.fromkeys(value))

    def _elements(self) -> tuple[tuple[Conjunction, ...], Conjunction | None]:
        """`prefixItems` and `items`, or in the older way a list of `items` and `additionalItems`."""
        most = self._count("maxItems")
        if self._schema.get("uniqueItems", False) is not False and (most is None or most > 1):
            why = (
                "cannot be honoured: an element would have to know all before it (leave it out, and look at the answer)"
            )
            raise self.refused("uniqueItems", why)
        if isinstance(self._schema.get("items"), list):
            return tuple((part,) for part in self.several("items")), self._one("additionalItems")
        heads = self.several("prefixItems") if "prefixItems" in self._schema else []
        return tuple((part,) for part in heads), self._one("items")
