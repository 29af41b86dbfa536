"""Numbers between bounds, as digits: languages of decimal texts, exact.

In: bounds as decimals. Out: trees. Every number has one text, save for zeros at the end of a fraction: no plus sign, no
zero in front, no minus before a zero. Where a number is bounded it has no exponent, since then a text's value is read
off its digits from left to right: for each count of digits before the point, a state says how many digits were read and
whether they are still those of a bound.

JSON's readers make binary floating point of a text. Rounding keeps order, so a text within closed bounds stays within
them. It may reach an open bound, unless both have at most 15 digits, which doubles tell apart; so fractions are kept
that short.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from gapless.constrain.language import NEVER, Alt, Literal, Machine, Node, alt, seq
from gapless.constrain.regex import whole

WHOLE_DIGITS = 18
"""Most digits of an integer without a bound, and of a number's part before its point: fits 64 bits."""
FRACTION_DIGITS = 15
"""Most digits behind the point of a number between bounds."""
EXACT_DIGITS = 15
"""Decimals of up to so many digits are told apart by doubles."""
MOST_STEP = 4096
"""The largest `multipleOf`: its automaton has a state for each remainder."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range; `open`: the value itself is outside."""

    value: Decimal
    open: bool


def plain_number() -> Node:
    """Any number in digits, or with one digit before the point and an exponent, the way doubles are printed.

    Each part is of bounded length. A double prints in up to 17 digits, and without an exponent from 0.0001 on.
    """
    return whole(rf"-?((0|[1-9]\d{{0,{WHOLE_DIGITS - 1}}})(\.\d{{1,20}})?|[1-9](\.\d{{1,16}})?[eE][+-]?\d\d?)")


def between(low: Bound | None, high: Bound | None, fraction: int) -> Node:
    """Numbers in a range, with up to `fraction` digits behind the point; 0 for integers. `NEVER` if there are none."""
    return alt(
        [
            _magnitudes(_above_zero(low), high, fraction),
            seq(Literal(b"-"), _magnitudes(_beyond_zero(_negated(high)), _negated(low), fraction)),
        ]
    )


def fraction_digits(low: Bound | None, high: Bound | None) -> int:
    """How many digits behind the point keep numbers apart from open bounds, see the module; at most 15.

    Negative if an open bound has too many digits itself.
    """
    room = FRACTION_DIGITS
    for bound in (low, high):
        if bound is not None and bound.open:
            room = min(room, EXACT_DIGITS - _whole_digits(bound.value))
            if len(_text(bound.value)[1]) > room:
                return -1
    return room


def too_fine(low: Bound | None, high: Bound | None, fraction: int) -> bool:
    """Whether a range that is found empty is so only because a number of it would take too many digits."""
    return low is None or high is None or (fraction > 0 and low.value < high.value)


def multiples(step: int) -> Node:
    """Whole numbers, with their sign, that `step` divides. States: nothing read, a minus, and each remainder."""
    moves = [(0, ord("-"), ord("-"), 1)]
    for state in (0, 1):
        moves += [(state, ord("0") + digit, ord("0") + digit, 2 + digit % step) for digit in range(10)]
    for rest in range(step):
        moves += [(2 + rest, ord("0") + digit, ord("0") + digit, 2 + (10 * rest + digit) % step) for digit in range(10)]
    return Machine(2 + step, tuple(moves), frozenset([2]))


def _negated(bound: Bound | None) -> Bound | None:
    return None if bound is None else Bound(-bound.value, bound.open)


def _above_zero(low: Bound | None) -> Bound:
    return low if low is not None and low.value >= 0 else Bound(Decimal(0), False)


def _beyond_zero(low: Bound | None) -> Bound:
    """Of what stands behind a minus: zero is not written so."""
    return low if low is not None and low.value > 0 else Bound(Decimal(0), True)


def _text(value: Decimal) -> tuple[str, str]:
    """Digits before and behind the point of a value from 0 on, without needless zeros."""
    before, _, behind = format(abs(value), "f").partition(".")
    return before.lstrip("0") or "0", behind.rstrip("0")


def _whole_digits(value: Decimal) -> int:
    return max(value.adjusted() + 1, 1)


def _magnitudes(low: Bound, high: Bound | None, fraction: int) -> Node:
    """Numbers from 0 on."""
    if high is not None and (high.value < low.value or (high.value == low.value and (high.open or low.open))):
        return NEVER
    longest = WHOLE_DIGITS
    if high is not None:
        longest = _whole_digits(high.value) if _whole_digits(high.value) <= WHOLE_DIGITS else WHOLE_DIGITS
    shortest = _whole_digits(low.value)
    return Alt(
        tuple(
            _Digits(
                count,
                low if count == shortest else None,
                high if high is not None and count == _whole_digits(high.value) else None,
                fraction,
            ).machine()
            for count in range(shortest, longest + 1)
        )
    )


_State = tuple[int, bool, bool]
"""Characters read, and whether they are the first ones of the lower bound, and of the upper one."""


class _Digits:
    """Numbers of exactly `count` digits before the point, not below `low` nor above `high`, if there are."""

    def __init__(self, count: int, low: Bound | None, high: Bound | None, fraction: int) -> None:
        self._count, self._low, self._high, self._fraction = count, low, high, fraction
        self._low_text = "" if low is None else "".join(_text(low.value))
        self._high_text = "" if high is None else "".join(_text(high.value))

    def machine(self) -> Machine:
        """Explored from its begin; state numbers as they are found."""
        begin: _State = (0, self._low is not None, self._high is not None)
        numbers, found = {begin: 0}, [begin]
        moves: list[tuple[int, int, int, int]] = []
        for state in found:  # grows meanwhile
            for byte, then in self._next(state):
                number = numbers.setdefault(then, len(found))
                if number == len(found):
                    found.append(then)
                moves.append((numbers[state], byte, byte, number))
        accepting = frozenset(numbers[state] for state in found if self._ends(state))
        return Machine(len(found), tuple(moves), accepting)

    def _digit(self, text: str, at: int) -> int:
        return int(text[at]) if at < len(text) else 0

    def _next(self, state: _State) -> Iterator[tuple[int, _State]]:
        """Read a digit, or the point: in the count it is a character too, at place `count`."""
        at, on_low, on_high = state
        if at == self._count:
            if self._fraction:
                yield ord("."), (at + 1, on_low, on_high)
            return
        digits = at if at < self._count else at - 1
        if digits >= self._count + self._fraction:
            return
        least = self._digit(self._low_text, digits) if on_low else 0
        most = self._digit(self._high_text, digits) if on_high else 9
        for digit in range(least, most + 1):
            if at == 0 and digit == 0 and self._count > 1:
                continue
            yield ord("0") + digit, (at + 1, on_low and digit == least, on_high and digit == most)

    def _ends(self, state: _State) -> bool:
        """Whether what was read is a number in the range: what a bound still has decides, if all is as in the bound."""
        at, on_low, on_high = state
        if at < self._count or at == self._count + 1:
            return False
        digits = at if at == self._count else at - 1
        if on_low and (self._low_text[digits:].strip("0") or (self._low is not None and self._low.open)):
            return False
        return not (on_high and not self._high_text[digits:].strip("0") and self._high is not None and self._high.open)
