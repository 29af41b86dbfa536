"""Random ways through tables, and what random values look like that may or may not satisfy a schema."""

import functools
import json
import random
from decimal import Decimal
from pathlib import Path

import numpy as np

import gapless
from gapless.constrain.grammar import Grammar, grammar_automaton
from gapless.constrain.tokens import END, NEVER, TokenWalker, token_table
from gapless.constrain.vocabulary import Vocabulary, token_bytes
from gapless.skills.tokenizer import Tokenizer

SCHEMAS = sorted((Path(__file__).parents[1] / "data" / "schemas").glob("*.json"))
LEAVES = [
    0,
    1,
    5,
    -1,
    9,
    12,
    256,
    10**6,
    0.5,
    1.25,
    -3.75,
    True,
    False,
    None,
    "",
    "a",
    "ab",
    "日é",
    '"\\\n',
    "x" * 9,
    [],
    {},
]


@functools.cache
def glint():
    """The bundled tokenizer's vocabulary: 2,048 ids."""
    folder = Path(gapless.__file__).parent / "assets" / "glint"
    return Vocabulary(token_bytes(Tokenizer.from_file(folder / "tokenizer.json"), 2048), 0)


@functools.cache
def load(path):
    """A schema, what it accepts and rejects, and whether its canonical texts are all that satisfies it."""
    return json.loads(path.read_text(encoding="utf-8"))


@functools.cache
def bytes_automaton(path):
    return grammar_automaton(Grammar.json_schema(load(path)["schema"]))


@functools.cache
def table_of(path):
    return token_table(bytes_automaton(path), glint())


def check_shape(table):
    """Every state can be reached and left, distances are those of the arrays, no class is there twice or unused."""
    following = table.following.astype(np.int64)
    allowed = following >= 0
    assert allowed.any(axis=1).all()
    assert not allowed[:, NEVER].any()
    assert (np.flatnonzero(table.distance == 0) == np.flatnonzero(allowed[:, END])).all()
    nearest = np.where(allowed, table.distance[following], 32767)
    nearest[:, END] = 32767
    unfinished = table.distance > 0
    assert (nearest.min(axis=1)[unfinished] + 1 == table.distance[unfinished]).all()
    columns = {column.tobytes() for column in np.ascontiguousarray(following.T)}
    assert len(columns) == following.shape[1]
    assert set(table.classes.tolist()) | {NEVER} == set(range(following.shape[1]))
    seen, front = {0}, {0}
    while front:
        front = {then for state in front for then in following[state].tolist() if then >= 0} - seen
        seen |= front
    assert len(seen) == table.states
    for state in np.flatnonzero(table.forced >= 0).tolist():
        assert np.flatnonzero(TokenWalker(table, state).mask()).tolist() == [table.forced[state]]


def walk(table, pieces, rng, most):
    """Random tokens of at most `most`, then straight to the end; the text and the tokens, the end among them."""
    walker, tokens = TokenWalker(table), []
    while not walker.ended:
        left = max(most - len(tokens), walker.fewest)
        choices = np.flatnonzero(walker.mask(left))
        assert len(choices), f"stuck in state {walker.state} after {tokens}"
        tokens.append(int(rng.choice(choices)))
        walker.advance(tokens[-1])
    return b"".join(pieces[token] for token in tokens[:-1]), tokens


def written(value):
    """As `spelling` says; of a number's two spellings the one without an exponent, unless it is long."""
    if isinstance(value, dict):
        return b"{%s}" % b", ".join(written(name) + b": " + written(inner) for name, inner in value.items())
    if isinstance(value, list):
        return b"[%s]" % b",".join(map(written, value))
    plain = format(Decimal(repr(value)), "f") if isinstance(value, float) else ""
    if plain and len(plain.partition(".")[2]) <= 15 and abs(value) < 1e18:
        return plain.encode()
    return json.dumps(value, ensure_ascii=False).encode()


def mutant(value, rng):
    """The value with one thing changed somewhere: another leaf, a member or element less, an element twice."""
    kind = rng.randrange(4)
    if isinstance(value, dict) and value and kind:
        name = rng.choice(list(value))
        if kind == 1:
            return {other: inner for other, inner in value.items() if other != name}
        return {other: mutant(inner, rng) if other == name else inner for other, inner in value.items()}
    if isinstance(value, list) and value and kind:
        at = rng.randrange(len(value))
        if kind == 1:
            return value[:at] + value[at + 1 :]
        changed = value[at] if kind == 2 else mutant(value[at], rng)
        return [*value[:at], changed, *value[at + (kind == 3) :]]
    if isinstance(value, bool | None):
        return rng.choice(LEAVES)
    if isinstance(value, str) and value and kind:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(["", value[at] * 2, "b", "9"]) + value[at + 1 :]
    if isinstance(value, int) and kind and abs(value) < 10**15:
        return value + rng.choice([-1, 1, 10, -value])
    return rng.choice(LEAVES)


def seeded(path):
    return random.Random(path.stem)
