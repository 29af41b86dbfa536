"""JSON schemas to languages: the texts that a schema allows, written as `spelling` says.

In: a schema. Out: a tree. What is written always satisfies the schema. The other way round, a value that satisfies it
can be written, except for what the schema leaves open and nobody asked for: members and elements that are not declared
(without `additionalProperties` or `items`), types that no keyword is about (without `type`), another order of members.
Where nothing at all is known (`true`, `{}`, an object or array of which nothing is said), values nest to a bounded
depth. A keyword that cannot be honoured raises `InvalidRequest` with its name and JSON pointer; a recursive schema
raises `NotATable`, unless it is asked for as `schema_rules`: the same language, in which places that lead to themselves
are rules, and which is put together of whole lexemes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from operator import not_
from urllib.parse import unquote

from gapless.constrain.compile import both, compact, without
from gapless.constrain.digits import Bound, between, fraction_digits, multiples, plain_number, too_fine
from gapless.constrain.disjoint import Disjoint
from gapless.constrain.flat import Conjunction, Flat, Part, declared, merge, refusal, smaller, type_of
from gapless.constrain.keywords import ANNOTATIONS, Keywords
from gapless.constrain.language import (
    EMPTY,
    NEVER,
    Listed,
    Literal,
    Member,
    Members,
    Node,
    Repeat,
    alt,
    lexeme,
    seq,
)
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.constrain.rules import Ruled, Rules, some_member
from gapless.constrain.spelling import CHARACTER, Spacing, key, quoted
from gapless.constrain.strings import Strings
from gapless.errors import InvalidRequest, shown

_SIMPLE = Flat()

_NAMING = ANNOTATIONS | {"$ref"}
SEEN_THROUGH = ("integer", "number", "string")
"""Types of values of which it is seen without an automaton of all keywords whether they satisfy these."""
_FEW = 2
"""Elements beyond which a bounded array's element is made small before it is copied."""


def schema_language(schema: object, spaces: int = 1, limits: Limits = DEFAULT) -> Node:
    """The tree of a schema. Raises `InvalidRequest` for what it cannot honour or nothing can satisfy."""
    return _Schema(schema, spaces, limits, None).root()


def schema_rules(schema: object, spaces: int = 1, limits: Limits = DEFAULT) -> Ruled:
    """The same with rules where the schema leads to itself. Raises as `schema_language` does."""
    rules = Rules()
    while True:
        root = _Schema(schema, spaces, limits, rules).root()
        if not rules.bury():
            return Ruled(root, dict(rules.bodies))


class _Schema:
    """A schema's places, each turned into a language once. Without `rules` it must not be recursive."""

    def __init__(self, schema: object, spaces: int, limits: Limits, rules: Rules | None) -> None:
        self._root, self._limits, self._rules = schema, limits, rules
        self._spacing = Spacing(spaces)
        self._known: dict[tuple[str, ...], Node] = {}
        self._deep: dict[int, Node] = {}
        self._ranges: dict[tuple[Bound | None, Bound | None, int], Node] = {}
        self._depth = 0
        self._strings = Strings(limits, on_host=rules is not None)
        known = self.alternatives if rules is None else self._known_alternatives
        self._disjoint = Disjoint(known, self._strings, limits)

    def root(self) -> Node:
        found = self._language((Part("", self._root, frozenset(("",))),))
        if found == NEVER:
            raise InvalidRequest("no value satisfies the schema", param="json_schema")
        return found

    def _language(self, conjunction: Conjunction) -> Node:
        """All ways in which these schemas hold together."""
        if not conjunction:
            return self._anything(self._limits.generic_depth)
        if self._rules is not None:  # each once: else places that lead to themselves would go on for ever
            parts = [self._meant(replace(part, trail=frozenset())) for part in conjunction]
            conjunction = tuple({part.pointer: replace(part, trail=frozenset()) for part in parts}.values())
        place = tuple(part.pointer for part in conjunction)
        if place not in self._known:
            self._depth += 1
            if self._depth > self._limits.depth:
                raise NotATable(f"the schema nests more than {self._limits.depth} deep at #{place[0]}")
            self._known[place] = self._written(place, conjunction)
            self._depth -= 1
        return self._known[place]

    def _meant(self, part: Part) -> Part:
        """Where a schema leads that is nothing but a reference."""
        while isinstance(part.schema, Mapping) and "$ref" in part.schema and part.schema.keys() <= _NAMING:
            part = self._referred(part, part.schema["$ref"])
        return part

    def _written(self, place: tuple[str, ...], conjunction: Conjunction) -> Node:
        if self._rules is None:
            return alt(self._of(flat) for flat in self.alternatives(conjunction))
        again = self._rules.enter(place)
        if again is not None:
            return again
        return self._rules.leave(place, alt(self._of(flat) for flat in self.alternatives(conjunction)))

    # What applies at one place

    def alternatives(self, conjunction: Conjunction) -> list[Flat]:
        """The ways in which schemas hold together, each without alternatives."""
        found = [Flat()]
        for part in conjunction:
            found = self._combined(found, self._expanded(part), part.pointer)
        return found

    def _known_alternatives(self, conjunction: Conjunction) -> list[Flat]:
        """The same to tell values apart by: of what leads to itself, or is too large, nothing is known."""
        try:
            return self.alternatives(conjunction)
        except NotATable:
            return [Flat()]

    def _combined(self, one: list[Flat], other: list[Flat], pointer: str) -> list[Flat]:
        if len(one) * len(other) > self._limits.alternatives:
            raise NotATable(f"the schema's alternatives combine in too many ways at #{pointer}")
        return [merge(a, b) for a in one for b in other]

    def _expanded(self, part: Part) -> list[Flat]:
        """A schema's own keywords with each way through its $ref, allOf, anyOf and oneOf."""
        if isinstance(part.schema, bool):
            return [Flat(part.pointer)] if part.schema else []
        keywords = Keywords(part)
        assert isinstance(part.schema, Mapping)
        own = keywords.flat()
        found = [own]
        also = keywords.several("allOf")
        if "$ref" in part.schema:
            also = [self._referred(part, part.schema["$ref"]), *also]
        for further in also:
            found = self._combined(found, self._expanded(further), part.pointer)
        if "anyOf" in part.schema:
            options = [flat for option in keywords.several("anyOf") for flat in self._expanded(option)]
            found = self._combined(found, options, part.pointer)
        if "oneOf" in part.schema:
            found = self._one_of(part, found, [self._expanded(option) for option in keywords.several("oneOf")])
        if part.schema.get("nullable") is True and (own.values is None or None in own.values):
            found.append(Flat(part.pointer, frozenset(("null",))))
        return found

    def _one_of(self, part: Part, found: list[Flat], options: list[list[Flat]]) -> list[Flat]:
        each = [self._combined(found, option, part.pointer) for option in options]
        for i, one in enumerate(each):
            for j, other in enumerate(each[:i]):
                if not all(self._disjoint.flats(a, b) for a in one for b in other):
                    why = f"cannot be honoured: a value might satisfy both option {j} and option {i} (use anyOf)"
                    raise refusal(part.pointer, "oneOf", why)
        return [flat for option in each for flat in option]

    def _referred(self, part: Part, reference: object) -> Part:
        """Where a reference leads: a place of the same schema."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            why = f"is {shown(reference)}; it must lead to a place of the same schema, #/..."
            raise refusal(part.pointer, "$ref", why)
        pointer = unquote(reference[1:])
        if pointer in part.trail:
            raise NotATable(f"the schema is recursive: #{pointer} leads to itself again", param="json_schema")
        target = self._root
        for word in pointer.split("/")[1:]:
            name = word.replace("~1", "/").replace("~0", "~")
            if isinstance(target, Mapping) and name in target:
                target = target[name]
            elif isinstance(target, list) and (at := _place(name, target)) is not None:
                target = target[at]
            else:
                raise refusal(part.pointer, "$ref", f"leads nowhere: there is no #{pointer}")
        return Part(pointer, target, part.trail | {pointer})

    # Values

    def _of(self, flat: Flat) -> Node:
        kinds = {
            "null": self._null,
            "boolean": self._boolean,
            "integer": self._integer,
            "number": self._number,
            "string": self._string,
            "array": self._array,
            "object": self._object,
        }
        if flat.values is not None:
            return self._listed_values(flat)
        names = flat.admitted()
        return alt(kinds[name](flat) for name in names if not (name == "integer" and "number" in names))

    def _listed_values(self, flat: Flat) -> Node:
        """Those of an enum that satisfy the rest: seen from the value if that is a number, or a text without a format,
        or the rest is about types alone, and else from the automata."""
        rest = replace(flat, values=None)
        values = [value for value in flat.values or () if self._disjoint.admits(rest, value)]
        simple = replace(rest, types=None, pointer="", speaks=frozenset()) == _SIMPLE
        seen = ("integer", "number") if any(text.keyword == "format" for text in rest.texts) else SEEN_THROUGH
        plain = [simple or type_of(value) in seen for value in values]
        sure, others = (list(compress(values, kinds)) for kinds in (plain, map(not_, plain)))
        return alt([self._either(sure), self._satisfying(others, rest)])

    def _either(self, values: list[object]) -> Node:
        plain = [not isinstance(value, dict | list) for value in values]
        scalars = lexeme(alt(self._spacing.value(value) for value in compress(values, plain)))
        return alt([scalars, *(self._spacing.value(value) for value in compress(values, map(not_, plain)))])

    def _satisfying(self, values: list[object], rest: Flat) -> Node:
        if not values:
            return NEVER
        types = frozenset(type_of(value) for value in values)
        wanted = self._of(replace(rest, types=types))
        return alt(value for value in map(self._spacing.value, values) if both(value, wanted, self._limits) != NEVER)

    def _null(self, flat: Flat) -> Node:
        return lexeme(Literal(b"null"))

    def _boolean(self, flat: Flat) -> Node:
        return lexeme(alt((Literal(b"true"), Literal(b"false"))))

    def _integer(self, flat: Flat) -> Node:
        found = self._digits(flat, 0)
        return found if flat.step is None else lexeme(both(found, multiples(flat.step), self._limits))

    def _number(self, flat: Flat) -> Node:
        if flat.step is not None:
            return self._integer(flat)
        if flat.low is None and flat.high is None and flat.places is None:
            return lexeme(plain_number())
        digits = fraction_digits(flat.low, flat.high)
        if digits < 0:
            keyword = "exclusiveMinimum" if flat.low is not None and flat.low.open else "exclusiveMaximum"
            raise refusal(flat.pointer, keyword, "has more digits than a double tells apart from its neighbours")
        return self._digits(flat, digits if flat.places is None else min(digits, flat.places))

    def _digits(self, flat: Flat, fraction: int) -> Node:
        """Numbers in a flat's range, as a small automaton: the same range tends to come again."""
        wanted = (flat.low, flat.high, fraction)
        if wanted not in self._ranges:
            self._ranges[wanted] = lexeme(compact(between(*wanted), self._limits))
            if self._ranges[wanted] == NEVER and too_fine(*wanted):
                keyword = "minimum" if flat.low is not None else "maximum"
                raise refusal(flat.pointer, keyword, "leaves only numbers of more digits than are written")
        return self._ranges[wanted]

    def _string(self, flat: Flat) -> Node:
        return self._strings.written(flat)

    # Arrays and objects

    def _array(self, flat: Flat) -> Node:
        if not flat.heads and flat.rest is None and "array" not in flat.speaks:
            return self._lists(self._anything(self._limits.generic_depth - 1))
        heads = [self._language(head) for head in flat.heads[: flat.most]]
        most = smaller(flat.most, heads.index(NEVER) if NEVER in heads else None)
        open_end = flat.rest is not None or not heads or flat.fewest > len(heads)
        rest = self._language(flat.rest or ()) if open_end else NEVER
        if rest == NEVER:
            most = smaller(most, len(heads))
        if most is not None and most < flat.fewest:
            return NEVER
        return seq(Literal(b"["), self._elements(tuple(heads[:most]), rest, flat.fewest, most), Literal(b"]"))

    def _elements(self, heads: tuple[Node, ...], rest: Node, least: int, most: int | None) -> Node:
        if rest != NEVER and max(least, most or 0) - len(heads) > _FEW and self._rules is None:
            rest = compact(rest, self._limits)
        return Listed(heads, None if rest == NEVER else rest, least, most, self._spacing.comma)

    def _lists(self, element: Node) -> Node:
        return seq(Literal(b"["), self._elements((), element, 0, None), Literal(b"]"))

    def _object(self, flat: Flat) -> Node:
        if not flat.properties and flat.more is None and not flat.required:
            flat = replace(flat, more=())
        if flat.names:
            flat = declared(flat, self._known_alternatives(flat.names))
        names = [*flat.properties, *(name for name in flat.required if name not in flat.properties)]
        values = {name: self._language(flat.property(name)) for name in names if self._named(flat, name)}
        fewest = max(flat.least_members, len(flat.required))
        impossible = flat.most_members is not None and flat.most_members < fewest
        if impossible or any(values.get(name, NEVER) == NEVER for name in flat.required):
            return NEVER
        there = {name: value for name, value in values.items() if value != NEVER}
        more = self._more(flat, tuple(values))
        members = tuple(Member(self._member(key(name), there[name]), name in flat.required) for name in there)
        if not members and more != NEVER and flat.least_members <= 1 and flat.most_members is not None:
            found = self._elements((), more, flat.least_members, flat.most_members)
        else:
            found = self._members(flat, members, more)
        return seq(Literal(b"{"), found, Literal(b"}"))

    def _members(self, flat: Flat, members: tuple[Member, ...], more: Node) -> Node:
        members, more = self._counted(flat, members, more)
        if len(members) < flat.least_members and more == NEVER:
            return NEVER
        found = Members(members, None if more == NEVER else more, self._spacing.comma)
        if flat.least_members != 1 or flat.required:
            return found
        return without(found, EMPTY, self._limits) if self._rules is None else some_member(found)

    def _member(self, name: Node, value: Node) -> Node:
        return seq(name, self._spacing.colon, value)

    def _named(self, flat: Flat, name: str) -> bool:
        """Whether `propertyNames` allows a name; those that are declared are checked, the others written so."""
        return all(both(key(name), self._name(part), self._limits) != NEVER for part in flat.names)

    def _name(self, part: Part) -> Node:
        """What `propertyNames` says: it speaks of strings."""
        return self._language((part, Part(f"{part.pointer}#", {"type": "string"}, part.trail)))

    def _more(self, flat: Flat, names: tuple[str, ...]) -> Node:
        """A member of another name."""
        if flat.more is None:
            return NEVER
        value = self._language(flat.more) if flat.more else self._anything(self._limits.generic_depth - 1)
        if value == NEVER:
            return NEVER
        other: Node = quoted(Repeat(CHARACTER, 0, None))
        declared = alt(key(name) for name in names)
        other = other if declared == NEVER else lexeme(without(other, declared, self._limits))
        for part in flat.names:
            other = lexeme(self._strings.common(other, self._name(part)))
        return self._member(other, value) if other != NEVER else NEVER

    def _counted(self, flat: Flat, members: tuple[Member, ...], more: Node) -> tuple[tuple[Member, ...], Node]:
        """`minProperties` and `maxProperties`, where they leave the choice all or nothing."""
        needed = sum(member.required for member in members)
        least, most = flat.least_members, flat.most_members
        if most is not None and not (more == NEVER and most >= len(members)):
            if most != needed:
                why = "can only be honoured if it allows all members, or none but required ones"
                raise refusal(flat.pointer, "maxProperties", why)
            members, more = tuple(member for member in members if member.required), NEVER
        if least > max(needed, 1):
            if least < len(members) or more != NEVER:
                why = "can only be honoured if it asks for all members, or for one"
                raise refusal(flat.pointer, "minProperties", why)
            members = tuple(Member(member.part, True) for member in members)
        return members, more

    def _anything(self, depth: int) -> Node:
        """Any value, nested to a depth."""
        if depth not in self._deep:
            scalars = [self._null(_SIMPLE), self._boolean(_SIMPLE), self._number(_SIMPLE), self._string(_SIMPLE)]
            if depth > 0:
                inner = self._anything(depth - 1)
                more = self._member(quoted(Repeat(CHARACTER, 0, None)), inner)
                members: Node = Members((), more, self._spacing.comma)
                scalars += [self._lists(inner), seq(Literal(b"{"), members, Literal(b"}"))]
            self._deep[depth] = alt(scalars)
        return self._deep[depth]


def _place(name: str, elements: list[object]) -> int | None:
    """Which element a word of a JSON pointer names: as numbers are written, and never a number of any length."""
    plain = name.isascii() and name.isdecimal() and len(name) <= len(str(len(elements)))
    return int(name) if plain and int(name) < len(elements) else None
