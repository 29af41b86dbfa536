"""Regexes as automata accept what Python's `re` accepts, no more and no less; the rest is refused by name."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.constrain.charset import ANY, CharSet
from gapless.constrain.compile import automaton
from gapless.constrain.graph import distances
from gapless.constrain.language import Chars
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.constrain.regex import found_in, whole
from gapless.errors import InvalidRequest

QUICK = settings(max_examples=40, derandomize=True, deadline=None)
LONG = settings(max_examples=400, derandomize=True, deadline=None)
SMALL = Limits(work=300_000, states=3_000)
LETTERS = "ab1_ .\n\t-é日😀\u2028"

ATOMS = [*"ab1_ é日😀", ".", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\.", r"\n", r"\x61", r"\u00e9", r"\U0001F600"]
ATOMS += [
    "[ab]",
    "[^ab]",
    "[a-z1]",
    r"[\d_]",
    r"[^\s日]",
    "[é-日]",
    r"[\]\-]",
    "[a[:]",
    "[&a]",
    "[a-]",
    r"[^\n]",
    "[.]",
    "{",
    "x{,",
    "",
    r"\-",
]
QUANTIFIERS = ["*", "+", "?", "{2}", "{0}", "{1,}", "{,2}", "{0,2}", "{1,3}", "*?", "+?", "??", "{1,2}?"]


def random_pattern(rng, depth=3):
    """Alternatives of runs of atoms and groups, some repeated; at most three groups deep."""
    runs = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        run = ""
        for _ in range(rng.randrange(4)):
            grouped = depth and rng.random() < 0.4
            opening = rng.choice(["(", "(?:", f"(?P<n{rng.randrange(10**9)}>"])
            part = f"{opening}{random_pattern(rng, depth - 1)})" if grouped else rng.choice(ATOMS)
            quantifier = rng.choice(QUANTIFIERS) if part not in ("", "{", "x{,") and rng.random() < 0.35 else ""
            run += part + quantifier
        runs.append(run)
    return "|".join(runs)


def samples(dfa, rng, count):
    """Random accepted texts, none very long."""
    distance = distances(dfa.following, dfa.accepting)
    bytes_of = [np.flatnonzero(dfa.classes == k).tolist() for k in range(dfa.following.shape[1])]
    for _ in range(count):
        state, text = 0, bytearray()
        while not (dfa.accepting[state] and (rng.random() < 0.3 or not (dfa.following[state] >= 0).any())):
            ways = [k for k, then in enumerate(dfa.following[state]) if then >= 0]
            if len(text) > 12:
                ways = [k for k in ways if distance[dfa.following[state, k]] < distance[state]]
                if not ways:
                    break
            k = rng.choice(ways)
            text.append(rng.choice(bytes_of[k]))
            state = dfa.following[state, k]
        yield text.decode()


def check(pattern, others, tree, matches):
    dfa = automaton(tree(pattern), SMALL)
    said = [] if dfa is None else list(samples(dfa, random.Random(pattern), 4))
    for text in said:
        assert matches(text), f"{text!r} is accepted"
    for text in [*others, *(text[::-1] for text in said), *(text[:-1] for text in said)]:
        accepted = dfa is not None and dfa.accepts(text.encode())
        assert accepted == bool(matches(text)), text


def check_random(seed):
    rng = random.Random(seed)
    pattern = random_pattern(rng)
    others = ["".join(rng.choice(LETTERS) for _ in range(rng.randrange(7))) for _ in range(8)]
    try:
        check(pattern, others, whole, re.compile(pattern, re.ASCII).fullmatch)
    except NotATable:
        assert re.search(r"\{[123,]", pattern), f"{pattern!r} repeats nothing so often that it could explode"


@QUICK
@given(st.integers(0, 2**32))
def test_a_regex_accepts_what_python_accepts(seed):
    check_random(seed)


@pytest.mark.slow
@LONG
@given(st.integers(0, 2**32))
def test_many_regexes_accept_what_python_accepts(seed):
    check_random(seed)


@pytest.mark.parametrize(
    "pattern", ["a|^b$", "(^a|b)1", "a(1|b$)", "^(a|b)*$", "^$", "", "a.b", "^a", r"\Aa\Z|b", "(^a$)|1"]
)
def test_a_pattern_is_found_where_python_finds_it(pattern):
    others = [a + b + c for a in ("", "a", "b", "1é") for b in ("a", "", "1", "日") for c in ("b", "", "1")]
    compiled = re.compile(pattern, re.ASCII)
    check(pattern, others, found_in, compiled.search)
    check(pattern, others, whole, compiled.fullmatch)


@pytest.mark.parametrize(
    ("pattern", "what", "at"),
    [
        ("a(?=b)", "lookahead", 1),
        ("(?!b)", "lookahead", 0),
        ("ab(?<=b)", "lookbehind", 2),
        (r"(a)\1", "back-reference", 3),
        (r"(?P<x>a)(?P=x)", "back-reference", 8),
        (r"\bword", "word boundary", 0),
        (r"a\p{L}", "Unicode property", 1),
        ("(?i)a", "inline flags", 0),
        ("a++", "possessive", 1),
        ("[[:alpha:]]+", "POSIX class", 1),
        ("[^_[:^digit:]]", "POSIX class", 3),
        ("[a-z&&[^aeiou]]", "intersection of classes", 4),
        ("(?>a)", "atomic", 0),
        ("a(^b)", "begin", 2),
        ("(a$)+", "end", 2),
        ("^*", "repeated anchor", 0),
        (r"a\q", r"escape \q", 1),
        ("[]a]", "']'", 1),
        ("a" + "(" * 70, "nested", 65),
        ("(a", "unclosed '('", 0),
        ("a)", "unopened ')'", 1),
        ("[a", "unclosed '['", 0),
        ("*a", "nothing to repeat", 0),
        ("a**", "quantifier behind", 2),
        ("a{3,2}", "at least 3 and at most 2", 1),
        ("a{1000000}", "more than 100000", 1),
        ("[b-a]", "backwards", 1),
        (r"[\d-a]", "range with a class", 1),
        ("\\", "backslash", 0),
        (r"\u12", "hexadecimal", 0),
        (r"\u{110000}", "beyond", 0),
    ],
)
def test_what_is_no_language_is_refused_with_its_position(pattern, what, at):
    with pytest.raises(InvalidRequest, match=rf"(?s){re.escape(what)}.* at position {at}\b") as refusal:
        whole(pattern)
    assert not isinstance(refusal.value, NotATable)


@pytest.mark.parametrize(
    "pattern", [".*a.{20}", "(a|aa){0,10000}", "((x{1,99}){1,99}){1,99}", "((){99999}){99999}", "a{99999}"]
)
def test_what_explodes_is_no_table_and_says_so_soon(pattern):
    with pytest.raises(NotATable, match="too large for a table"):
        automaton(whole(pattern), Limits(work=50_000, fragments=5_000, states=500))


@pytest.mark.parametrize(
    "pair", [(0, 0x10FFFF), (0x7F, 0x80), (0x7FF, 0x800), (0xD7FF, 0xE000), (0xFFFF, 0x10000), (0x3042, 0x1F600)]
)
def test_utf8_of_a_range_is_its_characters_and_nothing_else(pair):
    dfa = automaton(Chars(CharSet.of(pair)), DEFAULT)
    edges = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF, *pair]
    for code in {code + step for code in edges for step in (-1, 0, 1)}:
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            continue
        assert dfa.accepts(chr(code).encode()) == (pair[0] <= code <= pair[1]), hex(code)
    for wrong in (b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xff", b"\xe2\x82", b""):
        assert not dfa.accepts(wrong)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=4), st.integers(0, 310))
def test_sets_of_characters_behave_like_sets(pairs, code):
    ranges = [(min(pair), max(pair)) for pair in pairs]
    one, other = CharSet.of(*ranges[:2]), CharSet.of(*ranges[2:])
    inside = [any(first <= code <= last for first, last in part) for part in (ranges[:2], ranges[2:])]
    assert [code in one, code in other] == inside
    assert (code in one | other) == any(inside)
    assert (code in one & other) == all(inside)
    assert (code in one - other) == (inside[0] and not inside[1])
    assert (code in ~one) != inside[0]
    assert ~~one == one
    assert (one | ~one) == ANY
