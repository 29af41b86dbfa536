"""Whether no value can satisfy two schemas: what a oneOf must know of its options.

In: two `Flat`s, which are two ways to satisfy the options. Out: True only where it is proven that nothing that is
written for one of them satisfies the other; False says nothing. What satisfies a schema is more than what is written
for it: it may be of a type, and have members and elements, that the schema does not mention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gapless.constrain.automaton import build
from gapless.constrain.compile import both
from gapless.constrain.dfa import determinize
from gapless.constrain.digits import Bound
from gapless.constrain.flat import TYPES, Conjunction, Flat, decimal, same, type_of
from gapless.constrain.language import NEVER, Node
from gapless.constrain.limits import Limits
from gapless.constrain.strings import Strings


class Disjoint:
    """Proofs, for the places of one schema."""

    def __init__(self, alternatives: Callable[[Conjunction], list[Flat]], strings: Strings, limits: Limits) -> None:
        """`alternatives` of a conjunction."""
        self._alternatives, self._strings, self._limits = alternatives, strings, limits

    def flats(self, one: Flat, other: Flat) -> bool:
        """Whether no value written for one satisfies the other."""
        if one.values is not None:
            return all(not self.admits(other, value) or not self.admits(one, value) for value in one.values)
        if other.values is not None:
            return self.flats(other, one)
        shared = (_types(one) & frozenset(other.admitted())) | (_types(other) & frozenset(one.admitted()))
        return all(self._of_type(name, one, other) for name in shared)

    def _conjunctions(self, one: Conjunction, other: Conjunction) -> bool:
        return all(self.flats(a, b) for a in self._alternatives(one) for b in self._alternatives(other))

    def _of_type(self, name: str, one: Flat, other: Flat) -> bool:
        if name in ("integer", "number"):
            return _apart(one.high, other.low) or _apart(other.high, one.low)
        if name == "string":
            return self._texts(one, other)
        if name == "array":
            return self._arrays(one, other)
        return self._objects(one, other) if name == "object" else False

    def _texts(self, one: Flat, other: Flat) -> bool:
        """Lengths apart, or patterns, which are small where lengths are large, or what both say together."""
        if _shorter(one.longest, other.shortest) or _shorter(other.longest, one.shortest):
            return True
        mine, its = (self._strings.text(replace(flat, shortest=0, longest=None)) for flat in (one, other))
        if both(mine, its, self._limits) == NEVER:
            return True
        counted = any(flat.shortest or flat.longest is not None for flat in (one, other))
        return counted and both(self._strings.text(one), self._strings.text(other), self._limits) == NEVER

    def _arrays(self, one: Flat, other: Flat) -> bool:
        """Lengths apart, or an element that both must have and that cannot be both."""
        if _shorter(one.most, other.fewest) or _shorter(other.most, one.fewest):
            return True
        common = range(min(max(one.fewest, other.fewest), max(len(one.heads), len(other.heads)) + 1))
        return any(self._conjunctions(one.element(i), other.element(i)) for i in common)

    def _objects(self, one: Flat, other: Flat) -> bool:
        """A member that one must have and that cannot be what the other wants it to be, if it wants it at all."""
        names = dict.fromkeys(one.required + other.required)
        return any(self._conjunctions(one.property(name), other.property(name)) for name in names)

    def admits(self, flat: Flat, value: object) -> bool:
        """Whether a value may satisfy a flat; True in doubt."""
        if flat.types is not None and type_of(value) not in flat.types:
            return False
        if flat.values is not None and not any(same(value, known) for known in flat.values):
            return False
        if isinstance(value, str):
            fits = flat.shortest <= len(value) and (flat.longest is None or len(value) <= flat.longest)
            return fits and all(self._accepts(pattern, value) for pattern in self._strings.patterns(flat))
        if isinstance(value, int | float) and not isinstance(value, bool):
            point = Bound(decimal(value), False)
            divides = flat.step is None or (value == int(value) and int(value) % flat.step == 0)
            divides &= flat.places is None or -int(point.value.normalize().as_tuple().exponent) <= flat.places
            return divides and not _apart(flat.high, point) and not _apart(point, flat.low)
        return True

    def _accepts(self, pattern: Node, value: str) -> bool:
        texts = determinize(build(pattern, self._limits), self._limits)
        return texts is not None and texts.accepts(value.encode("utf-8", "surrogatepass"))


def _types(flat: Flat) -> frozenset[str]:
    return frozenset(TYPES) if flat.types is None else flat.types


def _apart(high: Bound | None, low: Bound | None) -> bool:
    """Whether nothing is both up to `high` and from `low` on."""
    if high is None or low is None:
        return False
    return high.value < low.value or (high.value == low.value and (high.open or low.open))


def _shorter(most: int | None, fewest: int) -> bool:
    return most is not None and most < fewest
