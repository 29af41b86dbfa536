"""A rule for an answer's text, as a caller states it, and its compilation from begin to end.

In: a list of choices, a regex, a JSON schema, or just "an object". Out: a `Grammar`, a small value that says no more
than was stated (its `digest` is what tables are cached by), and of a grammar and a vocabulary a `TokenTable`. Compiling
takes from a millisecond to seconds of pure Python; `compiler` does it elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gapless.constrain.compile import automaton, trie
from gapless.constrain.dfa import Dfa
from gapless.constrain.language import NEVER, Node
from gapless.constrain.lark import lark
from gapless.constrain.limits import DEFAULT, Limits
from gapless.constrain.regex import whole
from gapless.constrain.rules import Ruled
from gapless.constrain.schema import schema_language, schema_rules
from gapless.constrain.tokens import token_table
from gapless.constrain.vocabulary import Vocabulary
from gapless.errors import InvalidRequest, shown
from gapless.host_grammar import HostGrammar, Words
from gapless.token_table import TokenTable

Kind = Literal["choice", "regex", "json_schema", "json_object"]

DEPTH = 5
"""How deep any object may nest unless the caller says otherwise; each level more takes twice the states."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """`content`: JSON of the choices, the pattern, the schema or the depth; the order of a schema's members counts.

    `spaces`: how many spaces may stand after a comma or colon of JSON (see `spelling`).
    """

    kind: Kind
    content: str
    spaces: int = 1

    @classmethod
    def choice(cls, choices: Sequence[str]) -> Grammar:
        """One of these texts. Raises `InvalidRequest` for what is no list of texts, or an empty one."""
        if isinstance(choices, str) or not choices or not all(isinstance(text, str) for text in choices):
            raise InvalidRequest(f"choice is {shown(choices)}; it must be a list of texts", param="choice")
        return cls("choice", json.dumps(list(choices)))

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """A text that matches the pattern as a whole."""
        if not isinstance(pattern, str):
            raise InvalidRequest(f"regex is {shown(pattern)}; it must be a pattern", param="regex")
        return cls("regex", json.dumps(pattern))

    @classmethod
    def json_schema(cls, schema: object, spaces: int = 1) -> Grammar:
        """JSON that satisfies the schema. Raises `InvalidRequest` for what is no JSON itself."""
        try:
            return cls("json_schema", json.dumps(schema, allow_nan=False), spaces)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"the schema is no JSON: {error}", param="json_schema") from error

    @classmethod
    def json_object(cls, depth: int = DEPTH, spaces: int = 1) -> Grammar:
        """Any object of JSON, its arrays and objects nested at most so deep, itself among them."""
        if not 1 <= depth <= 32:
            raise InvalidRequest(f"depth is {shown(depth)}; it must be between 1 and 32", param="json_object")
        return cls("json_object", json.dumps(depth), spaces)

    @property
    def digest(self) -> str:
        """SHA-256 (hex): equal for equal rules."""
        return hashlib.sha256(f"{self.kind} {self.spaces} {self.content}".encode()).hexdigest()


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary, limits: Limits = DEFAULT) -> TokenTable:
    """The table of a grammar. Raises `InvalidRequest` for what is wrong with it, `NotATable` for what has no table."""
    began = time.perf_counter()
    table = token_table(grammar_automaton(grammar, limits), vocabulary, limits)
    return replace(table, seconds=time.perf_counter() - began)


def grammar_automaton(grammar: Grammar, limits: Limits = DEFAULT) -> Dfa:
    """The smallest automaton over bytes of a grammar. Raises as `compile_grammar` does."""
    try:
        found = automaton(_language(grammar, limits), limits)
    except InvalidRequest as error:
        error.param = error.param or grammar.kind
        raise
    except RecursionError as error:
        raise InvalidRequest(f"the {grammar.kind} nests too deep", param=grammar.kind) from error
    if found is None:
        raise InvalidRequest(f"no text satisfies the {grammar.kind}", param=grammar.kind)
    return found


def host_grammar(grammar: Grammar, words: Words, limits: Limits = DEFAULT) -> HostGrammar:
    """The same strings as a grammar for masks that are built on the host, recursive schemas too. Raises as
    `compile_grammar` does."""
    began = time.perf_counter()
    try:
        text = lark(_ruled(grammar, limits))
    except InvalidRequest as error:
        error.param = error.param or grammar.kind
        raise
    except RecursionError as error:
        raise InvalidRequest(f"the {grammar.kind} nests too deep", param=grammar.kind) from error
    return HostGrammar(text, words, time.perf_counter() - began)


def _ruled(grammar: Grammar, limits: Limits) -> Node | Ruled:
    content = json.loads(grammar.content)
    if grammar.kind == "json_object":
        return schema_rules({"type": "object"}, grammar.spaces, replace(limits, generic_depth=content))
    if grammar.kind == "json_schema":
        return schema_rules(content, grammar.spaces, limits)
    found = _language(grammar, limits)
    if found == NEVER:
        raise InvalidRequest(f"no text satisfies the {grammar.kind}", param=grammar.kind)
    return found


def _language(grammar: Grammar, limits: Limits) -> Node:
    content = json.loads(grammar.content)
    if grammar.kind == "json_object":
        return schema_language({"type": "object"}, grammar.spaces, replace(limits, generic_depth=content))
    if grammar.kind == "json_schema":
        return schema_language(content, grammar.spaces, limits)
    return whole(content, limits) if grammar.kind == "regex" else _choices(content)


def _choices(texts: list[str]) -> Node:
    try:
        return trie(tuple(texts))
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"a choice holds a lone surrogate: {error.object!a:.80}") from error
