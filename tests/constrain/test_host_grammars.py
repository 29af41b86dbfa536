"""Masks on the host are those of the tables, token by token; what has no table is satisfied by what they allow."""

import json
import random
import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrain.test_random_schemas import SMALL, random_schema
from tests.constrain.test_regex_language import random_pattern
from tests.constrain.walks import SCHEMAS, glint, load, table_of

from gapless.constrain import guides as guides_module
from gapless.constrain.grammar import Grammar, compile_grammar, host_grammar
from gapless.constrain.guides import Guides
from gapless.constrain.limits import Limits, NotATable
from gapless.constrain.tokens import TokenWalker
from gapless.errors import InvalidRequest, RequestFailed
from gapless.records import HostGrammar

pytest.importorskip("llguidance")
GUIDES = Guides()
FEW = Limits(states=2_000, work=2_000_000)
QUICK = settings(max_examples=15, derandomize=True, deadline=None)
NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
    "required": ["name", "children"],
}
INTEGER = {"type": "integer"}
LEAF = {"type": "object", "properties": {"kind": {"const": "leaf"}, "v": INTEGER}, "required": ["kind", "v"]}
BRANCH = {
    "type": "object",
    "properties": {"kind": {"const": "list"}, "of": {"type": "array", "items": {"$ref": "#/$defs/any"}, "minItems": 1}},
    "required": ["kind", "of"],
}
BASE = {"type": "object", "properties": {"child": {"$ref": "#/$defs/base"}}}
MORE = {"properties": {"n": {"type": "integer"}, "child": {"$ref": "#/$defs/more"}}, "required": ["n"]}
SCALARS = {"type": ["null", "boolean", "number", "string"]}
LISTS = {"type": "array", "items": {"$ref": "#/$defs/value"}}
OBJECTS = {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}}
ENDLESS = {"type": "object", "properties": {"again": {"$ref": "#/$defs/endless"}}, "required": ["again"]}
RECURSIVE = {
    "tree": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "linked list": {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "required": ["value", "next"],
    },
    "kinds": {"$defs": {"any": {"oneOf": [LEAF, BRANCH]}}, "$ref": "#/$defs/any"},
    "all of JSON": {"$defs": {"value": {"anyOf": [SCALARS, LISTS, OBJECTS]}}, "$ref": "#/$defs/value"},
    "one member": {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"type": "null"}}, "minProperties": 1},
    "each other": {
        "$defs": {
            "one": {"type": "object", "properties": {"other": {"$ref": "#/$defs/other"}}},
            "other": {"type": "array", "items": {"$ref": "#/$defs/one"}, "maxItems": 3},
        },
        "$ref": "#/$defs/one",
    },
    "both": {"$defs": {"base": BASE, "more": {"allOf": [{"$ref": "#/$defs/base"}, MORE]}}, "$ref": "#/$defs/more"},
    "a way without end": {
        "$defs": {"endless": ENDLESS},
        "type": "object",
        "properties": {"a": {"type": "integer"}, "x": {"$ref": "#/$defs/endless"}},
        "required": ["a"],
    },
}
LARGE = {
    "a long string": {"type": "string", "maxLength": 20_000},
    "a long list": {
        "type": "array",
        "items": {"type": "object", "properties": {k: {"type": "string"} for k in "abcd"}, "required": ["a"]},
        "maxItems": 2_000,
    },
}


def check_same(grammar, table, seed, walks=2, most=25):
    """Random answers, each token chosen by the table: before each of them both masks are equal."""
    host, rng = host_grammar(grammar, glint()), np.random.default_rng(seed)
    for _ in range(walks):
        walker, guide, said = TokenWalker(table), GUIDES.guide(host), []
        while not walker.ended:
            mine, its = walker.mask(), guide.mask()
            differing = [glint().pieces[id] for id in np.flatnonzero(mine != its)[:5]]
            assert not differing, f"behind {said} of {grammar.content}: {differing}"
            said.append(int(rng.choice(np.flatnonzero(walker.mask(max(most - len(said), walker.fewest))))))
            if not walker.advance(said[-1]):
                guide.consume(said[-1:])


def say(guide, rng, most=60, longest=600):
    """A random answer; from `most` tokens on it ends where it may and closes what it can."""
    said, pieces, end = [], glint().pieces, glint().end
    while len(said) < longest:
        mask = guide.mask()
        choices = np.flatnonzero(mask)
        assert len(choices), f"stuck behind {said}"
        if len(said) > most:
            closing = [id for id in choices.tolist() if id == end or pieces[id][-1:] in b'"]}0,']
            choices = [end] if mask[end] else closing or choices
        id = int(rng.choice(choices))
        if id == end:
            return b"".join(pieces[id] for id in said)
        said.append(id)
        guide.consume([id])
    return None


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_has_the_same_masks_on_the_host(path):
    check_same(Grammar.json_schema(load(path)["schema"]), table_of(path), 1, walks=1)


@pytest.mark.slow
@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_has_the_same_masks_on_the_host_many_times(path):
    check_same(Grammar.json_schema(load(path)["schema"]), table_of(path), 2, walks=20, most=120)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.choice(["a cat", "a cat and a dog", "cats", "é日😀"]),
        Grammar.regex(r"(\d{1,3}\.){3}\d{1,3}|none"),
        Grammar.regex("(a|ab)(c|bcd)*"),
        Grammar.regex(".*[aeé]"),
        Grammar.json_object(depth=3),
        Grammar.json_schema({"type": "integer", "multipleOf": 7, "minimum": 3}, spaces=0),
        Grammar.json_schema({"type": "array", "items": {"type": "integer"}}, spaces=3),
        Grammar.json_schema({"enum": [{"a": [1, {"b": None}]}, "x", 3, [True]], "maxProperties": 1}),
    ],
    ids=lambda grammar: grammar.content[:30],
)
def test_any_other_rule_has_too(grammar):
    check_same(grammar, compile_grammar(grammar, glint()), 3)


def check_random_schema(seed):
    rng = random.Random(seed)
    schema = {"$defs": {"one": random_schema(rng, 1), "other": random_schema(rng, 1)}, "allOf": [random_schema(rng)]}
    check_random(Grammar.json_schema(schema), seed)


def check_random(grammar, seed):
    try:
        table = compile_grammar(grammar, glint(), SMALL)
    except NotATable:
        return
    except InvalidRequest as refusal:
        with pytest.raises(type(refusal)) as other:
            host_grammar(grammar, glint())
        assert str(other.value) == str(refusal)
        return
    check_same(grammar, table, seed)


@QUICK
@given(st.integers(0, 2**32))
def test_whatever_a_schema_combines_its_masks_are_the_same(seed):
    check_random_schema(seed)


@QUICK
@given(st.integers(0, 2**32))
def test_whatever_a_regex_says_its_masks_are_the_same(seed):
    check_random(Grammar.regex(random_pattern(random.Random(seed))), seed)


@pytest.mark.slow
def test_many_schemas_and_regexes_have_the_same_masks():
    for seed in range(250):
        check_random_schema(seed)
        check_random(Grammar.regex(random_pattern(random.Random(seed))), seed)


@pytest.mark.parametrize("name", [*RECURSIVE, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_what_has_no_table_is_satisfied_all_the_same(name):
    schema = (RECURSIVE | LARGE)[name]
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema)
    grammar = Grammar.json_schema(schema)
    with pytest.raises(NotATable):
        compile_grammar(grammar, glint(), FEW)
    host, rng, lengths = host_grammar(grammar, glint()), np.random.default_rng(4), []
    for _ in range(8):
        text = say(GUIDES.guide(host), rng)
        if text is not None:
            validator.validate(json.loads(text))
            lengths.append(len(text))
    assert len(lengths) > 4


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "#"}, "leads to itself again"),
        (ENDLESS | {"$defs": {"endless": ENDLESS}}, "no value satisfies"),
        ({"properties": {"a": {"$ref": "#"}, "b": {"not": {}}}}, r'"not" at #/properties/b/not'),
        ({"oneOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, {}]}, '"oneOf" at'),
    ],
)
def test_what_is_wrong_is_refused_by_name_there_too(schema, why):
    with pytest.raises(InvalidRequest, match=why) as refusal:
        host_grammar(Grammar.json_schema(schema), glint())
    assert refusal.value.param == "json_schema"


def test_a_grammar_that_is_too_long_is_refused():
    wide = {"enum": [f"{i} {'x' * 990}" for i in range(1_100)], "default": {"$ref": "#"}}
    with pytest.raises(NotATable, match="characters"):
        host_grammar(Grammar.json_schema(wide), glint())


def chained(i):
    """Its own kind in a list, the next kind, and forty members more."""
    few = {f"k{n}": {"const": 1} for n in range(40)}
    own, following = {"type": "array", "items": {"$ref": f"#/$defs/d{i}"}}, {"$ref": f"#/$defs/d{(i + 1) % 12}"}
    return {"type": "object", "properties": {**few, "own": own, "next": following}, "additionalProperties": False}


DEEP = (
    {"required": [f"k{i}" for i in range(900)]},
    {"properties": {f"k{i}": {"const": 1} for i in range(300)}, "additionalProperties": {"$ref": "#"}},
    {"type": "array", "prefixItems": [{"type": "null"}] * 2_000},
    {"$defs": {f"d{i}": chained(i) for i in range(12)}, "$ref": "#/$defs/d0"},
)


@pytest.mark.parametrize("schema", DEEP, ids=["required", "optional", "items", "references"])
def test_a_grammar_that_is_too_deep_for_a_stack_is_refused(schema):
    """Reading it would end the process, which no error can tell of."""
    with pytest.raises(NotATable, match="parts of it lie within one another, and 400 may"):
        host_grammar(Grammar.json_schema(schema), glint())


def test_what_is_nearly_too_deep_is_read_on_a_small_stack():
    shallow = {"properties": {f"k{i}": {"const": 1} for i in range(180)}, "additionalProperties": {"$ref": "#"}}
    hosts = [host_grammar(Grammar.json_schema({"required": [f"k{i}" for i in range(350)]}), glint())]
    hosts.append(host_grammar(Grammar.json_schema(shallow), glint()))
    before, masks = threading.stack_size(2 * 2**20), []
    try:
        reader = threading.Thread(target=lambda: masks.extend(Guides().guide(host).mask() for host in hosts))
        reader.start()
    finally:
        threading.stack_size(before)
    reader.join()
    assert [mask.any() for mask in masks] == [True, True]


@pytest.mark.parametrize("length", [20, 5_000])
def test_a_grammar_counts_all_that_it_holds_for_itself(length):
    """Its model's words, which it shares with others, are not its own."""
    texts = [f"start: {i:0{length}}" for i in range(300)]
    HostGrammar("start: T", glint())  # from now on the words are there
    tracemalloc.start()
    try:
        kept = [HostGrammar("".join(list(text)), glint()) for text in texts]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counted = sum(grammar.nbytes for grammar in kept)
    assert length * len(kept) < counted < held < 1.2 * counted + 10_000


def test_what_is_kept_of_grammars_is_bounded():
    guides, few = Guides(most_kept=3, most_characters=10_000), Limits()
    for i in range(8):
        guides.guide(host_grammar(Grammar.choice([f"choice {i}", "x" * 50]), glint(), few))
        assert len(guides) <= 3
    guides.guide(HostGrammar('start: "' + "y" * 9_950 + '"', glint()))
    assert len(guides) == 1 and guides.characters <= 10_000
    guides.guide(HostGrammar('start: "' + "z" * 11_000 + '"', glint()))
    assert len(guides) == 1


@pytest.mark.parametrize("pattern", [".*a.{20}", "(a|aa){0,10000}", "((x{1,99}){1,99}){1,99}", "((.*a)*b.{9}){20}"])
def test_what_explodes_as_a_table_is_followed_step_by_step(pattern):
    with pytest.raises(NotATable):
        compile_grammar(Grammar.regex(pattern), glint(), Limits(work=50_000, fragments=5_000, states=500))
    host, said = host_grammar(Grammar.regex(pattern), glint()), []
    guide, rng = GUIDES.guide(host), np.random.default_rng(5)
    for _ in range(30):
        choices = [id for id in np.flatnonzero(guide.mask()).tolist() if id != glint().end]
        said.append(int(rng.choice(choices)))
        guide.consume(said[-1:])
    with pytest.raises(RequestFailed, match="does not allow token 1"):
        guide.consume([1])


def test_a_grammar_that_cannot_be_read_is_refused():
    with pytest.raises(InvalidRequest, match="too large to be followed"):
        GUIDES.guide(HostGrammar("start: " + "(" * 5 + "T1" + ")" * 5, glint()))


def test_answers_go_on_when_others_have_used_up_what_their_grammar_may_take(monkeypatch):
    monkeypatch.setitem(guides_module.LIMITS, "max_lexer_states", 2_000)
    guides, host, rng = Guides(), host_grammar(Grammar.regex(".*a.{20}"), glint()), random.Random(6)
    letters = [id for id, piece in enumerate(glint().pieces) if piece and set(piece) <= set(b"abde ")]
    renewed = 0
    for _ in range(40):
        guide = guides.guide(host)
        for _ in range(60):
            guide.mask()
            guide.consume([rng.choice(letters)])
        renewed += guide._own
    assert 1 < renewed < 20
    guide = guides.guide(host)
    with pytest.raises(InvalidRequest, match=r"too large to be followed .*too many states"):
        for _ in range(500):
            guide.mask()
            guide.consume([rng.choice(letters)])


def leading_on(schema, rng, below=False):
    """A random schema, some of whose members and elements lead to places of the whole."""
    if not isinstance(schema, dict):
        return schema
    if below and rng.random() < 0.4:
        return {"$ref": f"#/$defs/{rng.choice(['one', 'other'])}"}
    found = dict(schema)
    for keyword, value in schema.items():
        if keyword == "properties":
            found[keyword] = {name: leading_on(inner, rng, below=True) for name, inner in value.items()}
        elif keyword in ("items", "additionalProperties"):
            found[keyword] = leading_on(value, rng, below=True)
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            found[keyword] = [leading_on(inner, rng, keyword == "prefixItems") for inner in value]
    return found


@pytest.mark.slow
def test_random_recursive_schemas_are_satisfied():
    jsonschema, served = pytest.importorskip("jsonschema"), 0
    for seed in range(300):
        rng = random.Random(seed)
        places = {name: leading_on(random_schema(rng, 2), rng) for name in ("one", "other")}
        schema = {"$defs": places, "allOf": [leading_on(random_schema(rng), rng)]}
        if "$ref" not in json.dumps(places):
            continue
        try:
            host = host_grammar(Grammar.json_schema(schema), glint(), SMALL)
        except InvalidRequest:
            continue
        validator, draws = jsonschema.Draft202012Validator(schema), np.random.default_rng(seed)
        for _ in range(3):
            text = say(GUIDES.guide(host), draws, most=25, longest=300)
            assert text is None or validator.is_valid(json.loads(text)), f"{text} of {json.dumps(schema)}"
        served += 1
    assert served > 30
