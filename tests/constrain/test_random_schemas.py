"""Schemas put together at random: what their tables let a model say satisfies them, whatever they combine."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrain.walks import check_shape, glint, walk

from gapless.constrain.grammar import Grammar, compile_grammar
from gapless.constrain.limits import Limits, NotATable
from gapless.errors import InvalidRequest

jsonschema = pytest.importorskip("jsonschema")
NAMES = ["a", "b", "ab", "é"]
VALUES = [0, 1, True, False, None, "a", "ab", 2.5, -3, [], [1], {}, {"a": 1}, ""]
SMALL = Limits(states=4_000, fragments=50_000, work=2_000_000, generic_depth=2)


def random_schema(rng, depth=3):
    """Keywords of one kind, sometimes of several kinds, with schemas inside of them."""
    if depth == 0 or rng.random() < 0.08:
        return rng.choice([{}, True, {"type": "integer"}, {"type": "string", "maxLength": 3}, {"type": "boolean"}])
    kinds = [numbers, texts, arrays, objects, combined, enumerated]
    schema = {}
    for kind in rng.sample(kinds, rng.choice([1, 1, 1, 2])):
        schema |= kind(rng, depth)
    return schema


def numbers(rng, depth):
    schema = {"type": rng.choice(["integer", "number", ["number", "null"]])}
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.3:
            schema[keyword] = rng.choice([-100, -2, -0.5, 0, 0.25, 1, 1.5, 9, 10, 99, 1000])
    return schema | ({"multipleOf": rng.choice([1, 2, 3, 10])} if rng.random() < 0.2 else {})


def texts(rng, depth):
    schema = {"type": "string"}
    if rng.random() < 0.5:
        schema["maxLength"] = rng.randrange(6)
    if rng.random() < 0.4:
        schema["minLength"] = rng.randrange(4)
    if rng.random() < 0.4:
        schema["pattern"] = rng.choice(["a", "^a", "b$", "^[ab]*$", "^(a|é)+$", r"\\d", "^$", "^.b"])
    return schema


def arrays(rng, depth):
    schema = {"type": "array"} if rng.random() < 0.9 else {}
    if rng.random() < 0.4:
        schema["prefixItems"] = [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.7:
        schema["items"] = random_schema(rng, depth - 1) if rng.random() < 0.8 else False
    if rng.random() < 0.4:
        schema["minItems"] = rng.randrange(3)
    return schema | ({"maxItems": rng.randrange(4)} if rng.random() < 0.6 else {})


def objects(rng, depth):
    schema = {"type": "object"} if rng.random() < 0.9 else {}
    if rng.random() < 0.9:
        schema["properties"] = {name: random_schema(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(4))}
    if rng.random() < 0.5:
        schema["required"] = rng.sample(NAMES, rng.randrange(3))
    if rng.random() < 0.6:
        schema["additionalProperties"] = rng.choice([False, False, True, random_schema(rng, depth - 1)])
    if rng.random() < 0.2:
        schema["propertyNames"] = {"pattern": rng.choice(["^a", "b$", "^.{1,2}$"])}
    for keyword in ("minProperties", "maxProperties"):
        if rng.random() < 0.15:
            schema[keyword] = rng.randrange(3)
    return schema


def combined(rng, depth):
    keyword = rng.choice(["anyOf", "oneOf", "allOf", "$ref"])
    if keyword == "$ref":
        return {"$ref": f"#/$defs/{rng.choice(['one', 'other'])}"}
    return {keyword: [random_schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}


def enumerated(rng, depth):
    return rng.choice([{"const": rng.choice(VALUES)}, {"enum": rng.sample(VALUES, rng.randrange(1, 5))}])


def check(seed):
    """Whether it had a table."""
    rng = random.Random(seed)
    schema = {"$defs": {"one": random_schema(rng, 1), "other": random_schema(rng, 1)}, "allOf": [random_schema(rng)]}
    try:
        table = compile_grammar(Grammar.json_schema(schema), glint(), SMALL)
    except NotATable:
        return False
    except InvalidRequest as error:
        assert "no value satisfies" in str(error) or "cannot be honoured" in str(error) or "can only be" in str(error)
        return False
    check_shape(table)
    validator, draws = jsonschema.Draft202012Validator(schema), np.random.default_rng(seed)
    for budget in (1, 5, 20, 60):
        text, _ = walk(table, glint().pieces, draws, budget)
        assert validator.is_valid(json.loads(text)), f"{text} of {json.dumps(schema)}"
    return True


@settings(max_examples=6, derandomize=True, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_a_schema_combines_its_answers_satisfy_it(seed):
    check(seed)


@pytest.mark.slow
def test_many_schemas_and_most_have_tables():
    served = sum(check(seed) for seed in range(300))
    assert served > 150
