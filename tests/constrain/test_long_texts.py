"""Texts with large bounds and patterns: a table as long as they fit, a grammar beyond, the same strings in both."""

import json
import re

import numpy as np
import pytest
from tests.constrain.test_host_grammars import GUIDES, QUICK, check_random_schema, check_same, say
from tests.constrain.walks import glint

from gapless.constrain import strings
from gapless.constrain.automaton import Nfa
from gapless.constrain.charset import ANY, CharSet
from gapless.constrain.compiler import Compiler
from gapless.constrain.grammar import Grammar, compile_grammar, host_grammar
from gapless.constrain.language import Both, Chars, Listed, Literal, Repeat, letters
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.constrain.regex import found_in
from gapless.constrain.tokens import TokenWalker
from gapless.errors import InvalidRequest

hypothesis = pytest.importorskip("hypothesis")
FEW = Limits(states=2_000, fragments=20_000)
WORDS = "^[a-z]+( [a-z]+)*$"


def text(**more):
    return {"type": "string", **more}


def holder(schema):
    """The schema at a place that leads to itself, so that there is no table."""
    return {"type": "object", "properties": {"a": schema, "next": {"$ref": "#"}}, "required": ["a"]}


@pytest.mark.parametrize(("pattern", "each"), [("^[a-z ]*$", 1), (WORDS, 2), ("^(?:[A-Z][a-z]+ ?)+$", 3)])
def test_what_a_pattern_has_is_counted_with_few_states(pattern, each):
    """Any character would take nine for each that is counted."""
    table = compile_grammar(Grammar.json_schema(text(pattern=pattern, maxLength=800)), glint())
    assert each * 800 - 8 < table.states <= each * 800 + 3


def test_any_text_takes_nine_states_a_character_and_eleven_without_a_bound():
    """As docs/structured.md says: so 1800 characters fit into a table, and 1821 do not."""
    for bounds, states in (({"maxLength": 60}, 9 * 60 + 3), ({}, 11)):
        assert compile_grammar(Grammar.json_schema(text(**bounds)), glint()).states == states
    assert 9 * 1800 + 3 <= DEFAULT.states < 9 * 1821 + 3


def test_letters_are_all_that_a_text_may_have_and_no_others():
    assert letters(found_in("^(ab|[c-e]x*){2,9}$")) == CharSet.among("abcdex")
    assert letters(found_in("b")) == ANY
    assert letters(Literal(b"")) == CharSet.of()


@pytest.mark.parametrize(
    "bounds", [{"pattern": WORDS, "maxLength": 150}, {"pattern": "ab", "minLength": 9, "maxLength": 70}], ids=str
)
def test_a_pattern_and_a_length_side_by_side_are_the_table_of_both(bounds):
    grammar = Grammar.json_schema(text(**bounds))
    assert " & " in host_grammar(grammar, glint()).text
    check_same(grammar, compile_grammar(grammar, glint()), 7, walks=1)


@QUICK
@hypothesis.given(hypothesis.strategies.integers(0, 2**32))
def test_whatever_is_left_to_the_engine_its_masks_are_the_tables(seed):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(strings, "MOST_WRITTEN_OUT", 0)
        check_random_schema(seed)


@pytest.mark.parametrize(
    ("bounds", "nested"),
    [
        ({"maxLength": 4000}, False),
        ({"minLength": 300, "maxLength": 5000}, False),
        ({"pattern": "^.*ab.*$", "maxLength": 2500}, False),
        ({"pattern": WORDS, "maxLength": 600}, True),
        ({"pattern": "^[a-z]*$", "minLength": 500}, True),
        ({"format": "uri", "maxLength": 2083}, True),
    ],
    ids=str,
)
def test_beyond_any_table_long_texts_are_led(bounds, nested):
    schema = holder(text(**bounds)) if nested else text(**bounds)
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    grammar, rng = Grammar.json_schema(schema), np.random.default_rng(8)
    with pytest.raises(NotATable):
        compile_grammar(grammar, glint(), FEW)
    guide = GUIDES.guide(host_grammar(grammar, glint(), FEW))
    said = say(guide, rng, most=40, longest=4000)
    assert said is not None
    validator.validate(json.loads(said))


LONG = {"maxLength": 3000}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["abc", "b", "a" * 40], **text(pattern="^.*a.*$", maxLength=3000)}, '"abc"', '"b"'),
        (text(pattern="^[ab]*$", maxLength=2500, enum=["ab", "c", "ba"]), '"ba"', '"c"'),
        ({"oneOf": [text(pattern="^a[a-z]*$", **LONG), text(pattern="^b[a-z]*$", **LONG)]}, '"bad"', '"cad"'),
        ({"oneOf": [text(pattern="^a", maxLength=10), text(pattern="a", minLength=11, maxLength=90)]}, '"ab"', '"b"'),
    ],
    ids=str,
)
def test_what_needs_no_count_is_judged_without_one(schema, good, bad):
    """Values that are listed, and options that patterns or lengths alone tell apart."""
    table = compile_grammar(Grammar.json_schema(schema), glint())
    for said, allowed in ((good, True), (bad, False)):
        walker, tokens = TokenWalker(table), [glint().pieces.index(bytes([byte])) for byte in said.encode()]
        went = []
        for token in tokens:
            went.append(walker.allows(token))
            if not went[-1]:
                break
            walker.advance(token)
        assert (all(went) and walker.complete) == allowed, said


def test_options_that_may_overlap_are_refused_however_long_their_texts_are():
    both = {"oneOf": [text(pattern="^a", maxLength=60), text(pattern="b$", maxLength=60)]}
    with pytest.raises(InvalidRequest, match="a value might satisfy both option 0 and option 1"):
        compile_grammar(Grammar.json_schema(both), glint())


def test_names_of_members_may_be_long_too():
    names = {"propertyNames": {"pattern": "^.*a.*$", "maxLength": 3000}, "additionalProperties": {"type": "integer"}}
    guide = GUIDES.guide(host_grammar(Grammar.json_schema(names), glint(), FEW))
    for piece, allowed in (
        (b"{", True),
        (b'"', True),
        (b"b", True),
        (b'"', False),
        (b"a", True),
        (b'"', True),
        (b":", True),
    ):
        token = glint().pieces.index(piece)
        assert guide.mask()[token] == allowed, piece
        if allowed:
            guide.consume([token])


@pytest.mark.parametrize("schema", [text(maxLength=4000), text(pattern="^.*ab.*$", maxLength=2500)], ids=str)
def test_a_led_text_goes_as_far_as_its_bound(schema):
    """As long as it may be, a token of one to three characters at a time."""
    guide, said, end = (
        GUIDES.guide(host_grammar(Grammar.json_schema(schema), glint(), FEW)),
        b"",
        glint().pieces.index(b'"'),
    )
    letters = np.array([bool(piece) and piece.isalpha() and piece.isascii() for piece in glint().pieces])
    for word in ('"', "ab"):
        token = glint().pieces.index(word.encode())
        guide.consume([token])
        said += glint().pieces[token]
    rng = np.random.default_rng(9)
    while len(choices := np.flatnonzero((mask := guide.mask()) & letters)):
        token = int(rng.choice(choices))
        guide.consume([token])
        said += glint().pieces[token]
    assert mask[end] and mask.sum() == 1 and len(said) == 1 + schema["maxLength"]
    guide.consume([end])
    assert np.flatnonzero(guide.mask()).tolist() == [glint().end]


@pytest.mark.parametrize(
    "node",
    [
        Repeat(Chars(ANY), 0, 90_000),
        Repeat(Chars(ANY), 90_000, None),
        Repeat(Repeat(Chars(ANY), 3, 9), 20_000, 30_000),
        Listed((), Repeat(Chars(ANY), 0, 200), 0, 4_000, Literal(b",")),
    ],
    ids=repr,
)
def test_counts_that_fit_in_no_automaton_are_refused_at_the_first_copy(node):
    nfa = Nfa(DEFAULT)
    with pytest.raises(NotATable, match=r"more than 400000 places; lower its bounds \(maxLength"):
        nfa.add(node, nfa.state())
    assert len(nfa.free) < 5_000


def test_counts_that_fit_are_built():
    nfa = Nfa(Limits(fragments=1_000))
    nfa.add(Repeat(Repeat(Chars(CharSet.among("ab")), 2, 3), 100, 120), nfa.state())
    assert 300 < len(nfa.free) < 1_000


def test_what_is_left_to_an_engine_has_no_automaton():
    with pytest.raises(NotATable, match="told from other texts"):
        Nfa(DEFAULT).add(Both(Literal(b"a"), Literal(b"a")), 0)


@pytest.mark.parametrize("on_host", [True, False])
def test_a_long_text_is_led_and_without_the_package_refused_with_limit_and_remedy(on_host):
    compiler = Compiler(glint(), timeout=60, on_host=on_host)
    try:
        found = compiler.submit(Grammar.json_schema(text(maxLength=16_000 if on_host else 2_000))).exception(60)
    finally:
        compiler.close()
    if on_host:
        assert found is None
        return
    assert isinstance(found, NotATable) and found.param == "json_schema"
    assert re.search(r"more than 16384 states; lower its bounds \(maxLength, .*\), or leave them out", str(found))
    assert str(found).endswith("or pip install 'gapless[structured]', which leads rules without a table on the host")
