"""Numbers between bounds are exactly those whose digits say so."""

import random
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.constrain.compile import automaton, both
from gapless.constrain.digits import Bound, between, fraction_digits, multiples
from gapless.constrain.limits import DEFAULT

QUICK = settings(max_examples=25, derandomize=True, deadline=None)


def inside(value, low, high):
    return (low is None or value > low.value or (value == low.value and not low.open)) and (
        high is None or value < high.value or (value == high.value and not high.open)
    )


def texts(rng, low, high, digits):
    """Texts near the bounds and anywhere."""
    near = [bound.value for bound in (low, high) if bound] + [Decimal(0)]
    for _ in range(60):
        exponent = rng.randrange(digits + 1)
        value = rng.choice(near) + Decimal(rng.randrange(-12, 13)).scaleb(-exponent)
        if rng.random() < 0.3:
            value = Decimal(rng.randrange(-(10**6), 10**6)).scaleb(-exponent)
        yield format(value.quantize(Decimal(1).scaleb(-exponent)), "f")


def check(seed, digits):
    rng = random.Random(seed)
    scale = rng.choice([1, 10, 1000, 10**7])
    ends = [Decimal(rng.randrange(-scale, scale)).scaleb(-rng.randrange(4)) for _ in range(2)]
    low, high = (None if rng.random() < 0.2 else Bound(end, rng.random() < 0.5) for end in sorted(ends))
    dfa = automaton(between(low, high, digits), DEFAULT)
    for text in texts(rng, low, high, digits):
        zero = text.strip("-0.") == ""
        wanted = inside(Decimal(text), low, high) and not (zero and text.startswith("-"))
        assert (dfa is not None and dfa.accepts(text.encode())) == wanted, (text, low, high)


@QUICK
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 3, 6]))
def test_a_range_is_what_arithmetic_says(seed, digits):
    check(seed, digits)


@pytest.mark.slow
@settings(max_examples=700, derandomize=True, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 2, 3, 6, 15]))
def test_many_ranges_are_what_arithmetic_says(seed, digits):
    check(seed, digits)


def test_no_number_is_written_in_two_ways_but_for_zeros_behind_the_point():
    dfa = automaton(between(None, None, 2), DEFAULT)
    for text in ("01", "-0", "+1", "1.", ".5", "-", "", "1e1", "1.234", "-0.0", "00"):
        assert not dfa.accepts(text.encode()), text
    for text in ("0", "-1", "10", "1.50", "-0.5", "0.0", "9" * 18):
        assert dfa.accepts(text.encode()), text


@pytest.mark.parametrize("step", [1, 2, 7, 10, 12, 97])
def test_multiples_are_those_that_divide(step):
    within = between(Bound(Decimal(-200), False), Bound(Decimal(1100), True), 0)
    dfa = automaton(both(within, multiples(step), DEFAULT), DEFAULT)
    for value in range(-205, 1105):
        assert dfa.accepts(str(value).encode()) == (value % step == 0 and -200 <= value < 1100), value


def test_fractions_stay_short_of_where_doubles_round_onto_an_open_bound():
    for bound in ("0", "0.3", "99.5", "123456789.25"):
        low = Bound(Decimal(bound), True)
        digits = fraction_digits(low, None)
        nearest = Decimal(bound) + Decimal(1).scaleb(-digits)
        assert float(nearest) > float(Decimal(bound))
        assert automaton(between(low, None, digits), DEFAULT).accepts(format(nearest, "f").encode())
    assert fraction_digits(Bound(Decimal("0.1234567890123456"), True), None) < 0
    assert fraction_digits(Bound(Decimal("0.1234567890123456"), False), None) == 15
