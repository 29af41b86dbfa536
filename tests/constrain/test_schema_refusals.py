"""What a schema asks for and cannot have: every refusal names the keyword and its place, and recursion is no table."""

import re

import pytest

from gapless.constrain.automaton import Nfa
from gapless.constrain.grammar import Grammar, grammar_automaton
from gapless.constrain.language import Listed, Literal, Repeat
from gapless.constrain.limits import Limits, NotATable
from gapless.errors import InvalidRequest

INTEGER = {"type": "integer"}


def accepts(schema, *texts, spaces=1):
    dfa = grammar_automaton(Grammar.json_schema(schema, spaces))
    return [dfa.accepts(text.encode()) for text in texts]


@pytest.mark.parametrize(
    ("schema", "where", "why"),
    [
        ({"not": INTEGER}, "/not", "says what values are not"),
        ({"type": "object", "properties": {"a": {"if": {}}}}, "/properties/a/if", "depends on the value"),
        ({"type": "array", "items": {"contains": {}}}, "/items/contains", "one element among others"),
        (
            {"$defs": {"x": {"dependentRequired": {}}}, "$ref": "#/$defs/x"},
            "/$defs/x/dependentRequired",
            "other members",
        ),
        ({"patternProperties": {"a": {}}}, "/patternProperties", "names"),
        ({"unevaluatedProperties": False}, "/unevaluatedProperties", "use additionalProperties"),
        ({"type": "integer", "minimun": 3}, "/minimun", "no keyword"),
        ({"properties": {"a/b": {"~": 1}}}, "/properties/a~1b/~0", "no keyword"),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems", "all before it"),
        ({"type": "number", "multipleOf": 0.25}, "/multipleOf", "whole numbers"),
        ({"type": "number", "multipleOf": 1e-16}, "/multipleOf", "0.1, 0.01 and so on"),
        ({"type": "integer", "multipleOf": 10**6}, "/multipleOf", "up to 4096"),
        ({"type": "integer", "multipleOf": 0}, "/multipleOf", "whole numbers"),
        ({"type": "number", "exclusiveMinimum": 0.12345678901234567}, "/exclusiveMinimum", "digits"),
        ({"type": "number", "minimum": 1e-30, "maximum": 1e-29}, "/minimum", "digits"),
        ({"type": "integer", "minimum": 10**20}, "/minimum", "digits"),
        ({"type": "integer", "minimum": "3"}, "/minimum", "must be a number"),
        ({"type": "integer", "exclusiveMaximum": True}, "/exclusiveMaximum", "must be a number"),
        ({"type": "string", "minLength": -1}, "/minLength", "whole number"),
        ({"type": "string", "minLength": 1.5}, "/minLength", "whole number"),
        ({"type": "string", "minLength": 1e300}, "/minLength", "no answer is so long"),
        ({"type": "array", "minItems": 2**31}, "/minItems", "no answer is so long"),
        ({"type": "string", "pattern": "(?=a)b"}, "/pattern", "lookahead at position 0"),
        ({"type": "string", "pattern": 3}, "/pattern", "must be a string"),
        ({"type": "string", "format": "ipv7"}, "/format", "known are date"),
        ({"type": "text"}, "/type", "null, boolean"),
        ({"type": []}, "/type", "one or a list"),
        ({"enum": []}, "/enum", "list of values"),
        ({"anyOf": []}, "/anyOf", "list of schemas"),
        ({"anyOf": {"type": "null"}}, "/anyOf", "list of schemas"),
        ({"properties": []}, "/properties", "object of schemas"),
        ({"required": "a"}, "/required", "list of names"),
        ({"items": {"type": "integer", "allOf": [3]}}, "/items/allOf/0", "an object or a truth value"),
        ({"$ref": "other.json#/a"}, "/$ref", "of the same schema"),
        ({"$ref": "#/$defs/nowhere"}, "/$ref", "no #/$defs/nowhere"),
        ({"anyOf": [{"$ref": "#/anyOf/" + "9" * 5000}]}, "/anyOf/0/$ref", "leads nowhere"),
        ({"anyOf": [{"$ref": "#/anyOf/\u0660"}]}, "/anyOf/0/$ref", "leads nowhere"),
        ({"oneOf": [{"type": "number"}, INTEGER]}, "/oneOf", "both option 0 and option 1"),
        ({"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, "/oneOf", "both option"),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, "/oneOf", "both option"),
        (
            {"oneOf": [{"properties": {"k": {"const": 1}}}, {"properties": {"k": {"const": 2}}}]},
            "/oneOf",
            "both option",
        ),
        ({"properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 2}, "/maxProperties", "all members"),
        ({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2}, "/minProperties", "all members"),
    ],
)
def test_a_keyword_that_cannot_be_honoured_is_named_with_its_place(schema, where, why):
    with pytest.raises(InvalidRequest, match=re.escape(why)) as refusal:
        grammar_automaton(Grammar.json_schema(schema))
    assert f"#{where} " in str(refusal.value)
    assert refusal.value.param == "json_schema"
    assert refusal.value.status == 400
    assert not isinstance(refusal.value, NotATable)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"more": {"$ref": "#"}}},
        {
            "$defs": {"n": {"properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}},
            "$ref": "#/$defs/n",
        },
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "array", "items": {"type": "array", "items": {"$ref": "#/items"}}},
    ],
)
def test_a_recursive_schema_is_no_table(schema):
    with pytest.raises(NotATable, match="recursive"):
        grammar_automaton(Grammar.json_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 10**9},
        {"type": "array", "items": {"type": "string", "maxLength": 50}, "maxItems": 500},
        {"allOf": [{"anyOf": [{"const": i} for i in range(9)]}] * 4},
    ],
)
def test_a_schema_that_is_too_large_is_no_table(schema):
    with pytest.raises(NotATable):
        grammar_automaton(Grammar.json_schema(schema), Limits(fragments=5_000, states=500))


@pytest.mark.parametrize(
    ("huge", "shape"),
    [
        ({"maxLength": 1e300}, {"type": "string"}),
        ({"maxItems": 2**31}, {"type": "array", "items": INTEGER}),
        ({"maxProperties": 10**18}, {"type": "object", "additionalProperties": INTEGER}),
    ],
)
def test_an_upper_bound_beyond_every_answer_bounds_nothing(huge, shape):
    bounded, free = (grammar_automaton(Grammar.json_schema(schema)) for schema in (shape | huge, shape))
    assert bounded.machine() == free.machine()


@pytest.mark.parametrize("least", [0, 10**9])
@pytest.mark.parametrize("kind", ["repeated", "listed"])
def test_a_huge_count_is_refused_before_anything_is_built(least, kind):
    part = Literal(b"a")
    node = Repeat(part, least, 10**9) if kind == "repeated" else Listed((), part, least, 10**9, Literal(b","))
    nfa = Nfa(Limits())
    with pytest.raises(NotATable, match="places"):
        nfa.add(node, nfa.state())
    assert len(nfa.free) < 5


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 3},
        {"type": "string", "minLength": 3, "maxLength": 2},
        {"type": "string", "pattern": "^a$", "minLength": 2},
        {"type": "string", "format": "email", "minLength": 270},
        {"type": "string", "format": "date", "maxLength": 9},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {}, "required": ["a"], "additionalProperties": False},
        {"type": "array", "items": False, "minItems": 1},
        {"allOf": [{"type": "string"}, INTEGER]},
        {"enum": [1, 2], "type": "string"},
        {"properties": {"a": {}}, "additionalProperties": False, "minProperties": 2},
        {"properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1},
    ],
)
def test_what_nothing_satisfies_is_said_to_be_so(schema):
    with pytest.raises(InvalidRequest, match="no value satisfies the schema"):
        grammar_automaton(Grammar.json_schema(schema))


def test_nests_too_deep_is_an_error_of_the_request():
    value = 1
    for _ in range(400):
        value = [value]
    with pytest.raises(InvalidRequest, match="deep"):
        grammar_automaton(Grammar.json_schema({"const": value}))
    schema = INTEGER
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    with pytest.raises(NotATable, match="nests more than"):
        grammar_automaton(Grammar.json_schema(schema))


def test_the_older_and_openapi_spellings():
    assert accepts({"type": "string", "nullable": True}, "null", '"a"', "1") == [True, True, False]
    assert accepts({"enum": ["a"], "nullable": True}, "null", '"a"') == [False, True]
    assert accepts({"allOf": [False], "nullable": True}, "null", "1") == [True, False]
    older = {"type": "array", "items": [INTEGER, {"type": "null"}], "additionalItems": False}
    assert accepts(older, "[]", "[1]", "[1,null]", "[1,null,1]", "[null]") == [True, True, True, False, False]


def test_of_limits_that_all_hold_the_tighter_ones_count():
    bounds = [
        {"minimum": 3, "maximum": 90},
        {"exclusiveMinimum": 3, "maximum": 20},
        {"multipleOf": 4},
        {"multipleOf": 6},
    ]
    wanted = {"12": True, "3": False, "24": False, "8": False, "0": False}
    assert accepts({"type": "integer", "allOf": bounds}, *wanted) == list(wanted.values())
    lengths = [{"minLength": 1, "maxLength": 3}, {"minLength": 2, "maxLength": 9}]
    assert accepts({"type": "string", "allOf": lengths}, '"a"', '"ab"', '"abcd"') == [False, True, False]
    items = [{"minItems": 1, "items": {"minimum": 2}}, {"maxItems": 2, "items": INTEGER}]
    assert accepts({"type": "array", "allOf": items}, "[]", "[2]", "[1]", "[3,4,5]") == [False, True, False, False]
    enums = [{"enum": [1, True, "a"]}, {"enum": [True, 1.5, "a", "b"]}]
    assert accepts({"allOf": enums}, "true", "1", '"a"', '"b"') == [True, False, True, False]
    closed = {"properties": {"a": INTEGER}, "additionalProperties": False}
    both = [closed, {"properties": {"a": {"minimum": 5}, "b": INTEGER}}]
    assert accepts({"allOf": both}, '{"a":5}', '{"a":4}', '{"a":5,"b":1}') == [True, False, False]


def test_bounds_that_doubles_round_are_those_that_readers_compare_with():
    """123456789012345696 prints as 1.234567890123457e+17, which is more."""
    bound = 123456789012345696.0
    texts = ["123456789012345696", "123456789012345697", "123456789012345700"]
    assert accepts({"type": "integer", "maximum": bound}, *texts) == [True, False, False]
    assert accepts({"type": "integer", "minimum": 10**17, "maximum": 10**17 + 1}, str(10**17 + 1)) == [True]


def test_values_of_an_enum_are_measured_as_what_they_are():
    values = [1e30, 0.12345678901234568, -4, 6, "ab", "abc", True, [1], [1, 2], None]
    schema = {
        "enum": values,
        "minimum": 0,
        "multipleOf": 2,
        "maxLength": 2,
        "maxItems": 1,
        "type": ["number", "string", "array"],
    }
    texts = ["1e+30", "0.12345678901234568", "-4", "6", '"ab"', '"abc"', "true", "[1]", "[1,2]", "null"]
    assert accepts(schema, *texts) == [True, False, False, True, True, False, False, True, False, False]
    del schema["multipleOf"]
    assert accepts(schema, *texts[:4]) == [True, True, False, True]


def test_spaces_are_those_that_were_asked_for():
    schema = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
    texts = ['{"a":1,"b":2}', '{"a": 1, "b": 2}', '{"a":  1,"b":2}', '{ "a":1,"b":2}']
    assert accepts(schema, *texts, spaces=0) == [True, False, False, False]
    assert accepts(schema, *texts) == [True, True, False, False]
    assert accepts(schema, *texts, spaces=2) == [True, True, True, False]
    with pytest.raises(InvalidRequest, match="between 0 and 8"):
        accepts(schema, spaces=9)


def test_values_of_which_nothing_is_known_nest_three_deep():
    assert accepts({}, '{"a":[{"b":1}]}', '{"a":[{"b":[]}]}', '"x"') == [True, False, True]
    assert accepts({"type": "object"}, '{"a":{"b":[1]}}', '{"a":{"b":[[]]}}', "{}", "[]") == [True, False, True, False]
    assert accepts({"type": "array"}, "[[[1]]]", "[[[[]]]]", "{}") == [True, False, False]


def test_members_of_any_name_are_counted():
    schema = {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2}
    assert accepts(schema, "{}", '{"a":1}', '{"a":1,"b":2}', '{"a":1,"b":2,"c":3}') == [False, True, True, False]
    assert accepts({"type": "object", "maxProperties": 0}, "{}", '{"a":1}') == [True, False]


def test_any_object_nests_as_deep_as_was_asked_for():
    dfa = grammar_automaton(Grammar.json_object(depth=2))
    texts = ["{}", '{"a":{"b":1}}', '{"a":{"b":{}}}', "[]", "1", '{"a":[1,"x"]}']
    assert [dfa.accepts(text.encode()) for text in texts] == [True, True, False, False, False, True]
    for depth in (0, 33):
        with pytest.raises(InvalidRequest, match="between 1 and 32"):
            Grammar.json_object(depth)


def test_one_of_is_served_where_its_options_are_proven_apart():
    kinds = [{"properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in ("a", "b")]
    assert accepts({"oneOf": kinds}, '{"kind":"a"}', '{"kind":"b"}', '{"kind":"c"}') == [True, True, False]
    closed = [{"properties": {name: INTEGER}, "required": [name], "additionalProperties": False} for name in "ab"]
    assert accepts({"type": "object", "oneOf": closed}, '{"a":1}', '{"b":1}', "{}") == [True, True, False]
    lengths = [{"type": "array", "items": INTEGER, "maxItems": 1}, {"type": "array", "items": INTEGER, "minItems": 3}]
    assert accepts({"oneOf": lengths}, "[1]", "[1,2]", "[1,2,3]") == [True, False, True]
    texts = [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}, {"enum": ["c", 1]}]
    assert accepts({"oneOf": texts}, '"ax"', '"bx"', '"c"', "1", '"d"') == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("schema", "there", "not_there"),
    [
        ({"minimum": 0, "maximum": 1000}, ["0", "9.9", "9.90", "0.07", "1000.00"], ["9.999", "1e1", "-1", "1000.01"]),
        ({}, ["-12.34", "123456789012345678.5"], ["0.123", "1e-1"]),
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.03}, ["0.01", "0.02"], ["0", "0.00", "0.03", "0.015"]),
        ({"exclusiveMinimum": 0.005}, ["0.01", "7"], ["0", "0.00"]),
        ({"allOf": [{"multipleOf": 0.1}]}, ["0.5", "-3"], ["0.05"]),
        ({"allOf": [{"multipleOf": 5}]}, ["15"], ["0.5", "12"]),
        ({"enum": [0.5, 0.125, 3, 12345678901234567]}, ["0.5", "3", "12345678901234567"], ["0.125"]),
    ],
)
def test_multiples_of_a_hundredth_have_two_places(schema, there, not_there):
    found = accepts({"type": "number", "multipleOf": 0.01} | schema, *there, *not_there)
    assert found == [True] * len(there) + [False] * len(not_there)


def test_a_range_without_multiples_of_a_hundredth_is_empty():
    with pytest.raises(InvalidRequest):
        grammar_automaton(
            Grammar.json_schema({"type": "number", "multipleOf": 0.01, "minimum": 0.001, "maximum": 0.009})
        )


NAMES = {"type": "object", "additionalProperties": {"type": "boolean"}, "propertyNames": {"enum": ["a", "b"]}}


@pytest.mark.parametrize(
    ("more", "there", "not_there"),
    [
        ({}, ["{}", '{"b":true}', '{"a":true,"b":false}'], ['{"a":true,"a":true}', '{"c":true}', '{"a":1}']),
        ({"minProperties": 1}, ['{"b":true}'], ["{}"]),
        ({"minProperties": 2, "maxProperties": 2}, ['{"a":true,"b":true}'], ["{}", '{"b":true}']),
        ({"maxProperties": 1}, ['{"b":true}', "{}"], ['{"a":true,"b":true}']),
        ({"maxProperties": 0}, ["{}"], ['{"b":true}']),
        ({"required": ["b"]}, ['{"b":true}', '{"a":true,"b":true}'], ["{}", '{"a":true}']),
        (
            {"propertyNames": {"enum": [f"n{i}" for i in range(99)]}},
            ['{"n9":true,"n3":true,"n9":true}'],
            ['{"n99":true}'],
        ),
        ({"propertyNames": {"enum": ["a", "bb"], "maxLength": 1}}, ['{"a":true}'], ['{"bb":true}']),
        ({"properties": {"c": {}}}, ["{}", '{"a":true}'], ['{"c":1}']),
        ({"properties": {"b": {"type": "null"}}}, ['{"b":null,"a":true}'], ['{"a":true,"b":null}', '{"b":true}']),
        ({"propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": ["x", 3]}}}, ['{"x":true}'], ['{"3":true}']),
    ],
)
def test_names_that_are_listed_come_once_each(more, there, not_there):
    assert accepts(NAMES | more, *there, *not_there) == [True] * len(there) + [False] * len(not_there)
