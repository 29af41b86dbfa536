"""60 schemas as tables: what is written satisfies them, what satisfies them can be written, and nobody gets stuck."""

import json

import numpy as np
import pytest
from tests.constrain.walks import (
    SCHEMAS,
    bytes_automaton,
    check_shape,
    glint,
    load,
    mutant,
    seeded,
    table_of,
    walk,
    written,
)

from gapless.constrain.tokens import TokenWalker

QUICK, LONG = 2, 60
LARGE = {"receipt", "invoice", "additional_anything", "caption_tags", "detections", "form", "formats_more"}
EACH = [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LARGE)) for path in SCHEMAS]


def validator(schema):
    jsonschema = pytest.importorskip("jsonschema")
    return jsonschema.Draft202012Validator(schema)


def test_there_are_sixty():
    assert len(SCHEMAS) == 60


def check_walks(path, count, most):
    """Whole answers satisfy the schema, end within their budget where that is possible, and are what bytes accept."""
    table, vocabulary, case = table_of(path), glint(), load(path)
    schema, dfa, rng = validator(case["schema"]), bytes_automaton(path), seeded(path)
    numpy_rng = np.random.default_rng(rng.randrange(2**32))
    for _ in range(count):
        budget = rng.randrange(1, most)
        text, tokens = walk(table, vocabulary.pieces, numpy_rng, budget)
        assert len(tokens) <= max(budget, table.fewest)
        assert dfa.accepts(text)
        value = json.loads(text)
        schema.validate(value)
        for _ in range(4):
            value = mutant(value, rng)
            valid, accepted = schema.is_valid(value), dfa.accepts(written(value))
            assert valid or not accepted, f"{value} is accepted"
            assert accepted or not valid or not case["exact"], f"{value} is not accepted"


@pytest.mark.parametrize("path", EACH)
def test_a_schema_in_examples_and_random_answers(path):
    dfa, case = bytes_automaton(path), load(path)
    schema = validator(case["schema"])
    for text in case["accepted"]:
        assert dfa.accepts(text.encode()), text
        assert schema.is_valid(json.loads(text)), f"{text}: the example itself is wrong"
    for text in case["rejected"]:
        assert not dfa.accepts(text.encode()), text
    check_walks(path, QUICK, 60)


@pytest.mark.slow
@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_many_random_answers_satisfy_their_schema(path):
    check_walks(path, LONG, 300)


@pytest.mark.parametrize("path", EACH)
def test_no_state_is_a_dead_end_and_no_class_is_there_twice(path):
    check_shape(table_of(path))


@pytest.mark.parametrize("path", EACH[::6])
def test_a_table_allows_exactly_the_tokens_whose_bytes_lead_on(path):
    """The slow way: from a dozen states, each token's bytes one by one."""
    dfa, table, vocabulary = bytes_automaton(path), table_of(path), glint()
    where, todo = {0: 0}, [0]  # a table's state to the automaton's
    while todo:
        state = todo.pop()
        walker = TokenWalker(table, state)
        mask = walker.mask()
        for id in range(0, vocabulary.size, 1 if state == 0 else 7):
            at, piece = where[state], vocabulary.pieces[id]
            for byte in piece or b"":
                at = int(dfa.following[at, dfa.classes[byte]]) if at >= 0 else at
            leads = dfa.accepting[where[state]] if id == vocabulary.end else piece is not None and at >= 0
            assert mask[id] == leads, (state, id)
            then = int(table.following[state, table.classes[id]])
            if piece and mask[id] and then not in where and len(where) < 12:
                where[then] = at
                todo.append(then)
