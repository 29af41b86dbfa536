"""What a schema says at one place when everything that applies there is put together.

A `Flat` is a conjunction without alternatives: the keywords of one schema, or of several that must all hold (allOf, a
$ref and its siblings, one way through an anyOf). `merge` puts two together. Values of arrays and objects stay schemas,
as conjunctions of `Part`s. Nothing here is a language yet.

Where a schema leaves open what further members or elements there may be, none are written; a merge still knows that
they were allowed, so what another schema declares there may come.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import lcm

from gapless.constrain.digits import Bound
from gapless.errors import InvalidRequest

MOST_LISTED = 16
"""Names that are declared because they are listed: each has a value of its own in the table, and ways past it."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


@dataclass(frozen=True, slots=True)
class Part:
    """A schema, where it stands (a JSON pointer), and the references that were followed to it."""

    pointer: str
    schema: object
    trail: frozenset[str]


Conjunction = tuple[Part, ...]
"""Schemas that must all hold; of none, anything goes."""


@dataclass(frozen=True, slots=True)
class Text:
    """A `pattern` or `format`, and where it stands."""

    keyword: str
    content: str
    pointer: str


@dataclass(frozen=True, slots=True)
class Flat:
    """All keywords at one place; the defaults say nothing.

    `types`: allowed ones, where "number" comes with "integer"; `speaks`: types that the keywords are about. `more`:
    what members must be that are not among `properties`; `names`: what their names must be. `heads` and `rest`: the
    first elements and all others. `step`: whole numbers of which numbers are multiples; `places`: digits that they may
    have behind the point. None: nothing is said.
    """

    pointer: str = ""
    types: frozenset[str] | None = None
    speaks: frozenset[str] = frozenset()
    values: tuple[object, ...] | None = None
    low: Bound | None = None
    high: Bound | None = None
    step: int | None = None
    places: int | None = None
    shortest: int = 0
    longest: int | None = None
    texts: tuple[Text, ...] = ()
    properties: Mapping[str, Conjunction] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    more: Conjunction | None = None
    names: Conjunction = ()
    least_members: int = 0
    most_members: int | None = None
    heads: tuple[Conjunction, ...] = ()
    rest: Conjunction | None = None
    fewest: int = 0
    most: int | None = None

    def property(self, name: str) -> Conjunction:
        """What a member of this name must be."""
        return self.properties.get(name, self.more or ())

    def element(self, at: int) -> Conjunction:
        """What the element at this place must be."""
        return self.heads[at] if at < len(self.heads) else self.rest or ()

    def admitted(self) -> tuple[str, ...]:
        """The types that are written: those allowed, or else those that the keywords are about, or else all."""
        if self.types is not None:
            return tuple(name for name in TYPES if name in self.types)
        return tuple(name for name in TYPES if not self.speaks or name in self.speaks)


def merge(one: Flat, other: Flat) -> Flat:
    """Both at once."""
    names = dict.fromkeys([*one.properties, *other.properties])
    heads = range(max(len(one.heads), len(other.heads)))
    return Flat(
        one.pointer or other.pointer,
        one.types if other.types is None else other.types if one.types is None else one.types & other.types,
        one.speaks | other.speaks,
        common(one.values, other.values),
        _tighter(one.low, other.low, 1),
        _tighter(one.high, other.high, -1),
        lcm(one.step or 1, other.step or 1) if one.step or other.step else None,
        smaller(one.places, other.places),
        max(one.shortest, other.shortest),
        smaller(one.longest, other.longest),
        tuple(dict.fromkeys(one.texts + other.texts)),
        {name: one.property(name) + other.property(name) for name in names},
        tuple(dict.fromkeys(one.required + other.required)),
        _both(one.more, other.more),
        one.names + other.names,
        max(one.least_members, other.least_members),
        smaller(one.most_members, other.most_members),
        tuple(one.element(i) + other.element(i) for i in heads),
        _both(one.rest, other.rest),
        max(one.fewest, other.fewest),
        smaller(one.most, other.most),
    )


def declared(flat: Flat, names: list[Flat]) -> Flat:
    """An object whose members' `names` are listed ones, as one that declares these: each comes once at most, and all
    have an end. The same object where more is said of the names, or members are counted otherwise than one by one."""
    if flat.more is None or not all(_lists_texts(name) for name in names):
        return flat
    listed = {value for name in names for value in name.values or () if isinstance(value, str)}
    counted = flat.least_members not in (0, 1, len(listed)) or (flat.most_members or len(listed)) < len(listed)
    if counted or len(listed) > MOST_LISTED or not listed.issuperset(flat.required):
        return flat
    order = [*flat.properties, *(value for name in names for value in name.values or ())]
    properties = {name: flat.property(name) for name in order if isinstance(name, str) and name in listed}
    return replace(flat, properties=properties, more=None, names=())


def _lists_texts(name: Flat) -> bool:
    """Whether a name is one of some and nothing else is said of it."""
    strings = name.values is not None and (name.types is None or "string" in name.types)
    return strings and replace(name, types=None, values=None, pointer="", speaks=frozenset()) == Flat()


def smaller(one: int | None, other: int | None) -> int | None:
    """The smaller limit; None is none."""
    return min((limit for limit in (one, other) if limit is not None), default=None)


def same(one: object, other: object) -> bool:
    """JSON's equality: 1 is 1.0 but not true, and the order of members does not matter."""
    return _normal(one) == _normal(other)


def _normal(value: object) -> Hashable:
    if isinstance(value, dict):
        return "object", frozenset((name, _normal(inner)) for name, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(_normal(inner) for inner in value)
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__, value
    return "number", value


def type_of(value: object) -> str:
    """The narrowest type of a value: a number without a fraction is an integer."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    kinds = {dict: "object", list: "array", str: "string", float: "number"}
    return kinds.get(type(value), "null")


def common(one: tuple[object, ...] | None, other: tuple[object, ...] | None) -> tuple[object, ...] | None:
    """The values in both lists; None is any value."""
    if one is None or other is None:
        return other if one is None else one
    known = {_normal(value) for value in other}
    return tuple(value for value in one if _normal(value) in known)


def _tighter(one: Bound | None, other: Bound | None, sign: int) -> Bound | None:
    bounds = [bound for bound in (one, other) if bound is not None]
    return max(bounds, key=lambda bound: (sign * bound.value, bound.open), default=None)


def _both(one: Conjunction | None, other: Conjunction | None) -> Conjunction | None:
    return None if one is None and other is None else (one or ()) + (other or ())


def decimal(value: float) -> Decimal:
    """The number that is written, not the binary one nearest to it.

    Of a whole number it is the binary one: readers compare it with integers exactly.
    """
    return Decimal(int(value)) if value == int(value) else Decimal(repr(value))


def below(pointer: str, *names: str | int) -> str:
    """A JSON pointer further down."""
    return pointer + "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)


def refusal(pointer: str, keyword: str, why: str) -> InvalidRequest:
    """The error for a keyword that cannot be honoured: it names the keyword and its JSON pointer."""
    where = below(pointer, keyword)
    return InvalidRequest(f"the schema's {json.dumps(keyword)} at #{where} {why}", param="json_schema")
