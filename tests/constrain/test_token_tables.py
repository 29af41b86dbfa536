"""From automata to tokens: bytes of ids, smallest automata, budgets, forced tokens, what a vocabulary cannot spell."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.constrain.walks import SCHEMAS, bytes_automaton, check_shape, glint, walk
from tests.fakes.starmie import VOCAB, standin

from gapless.constrain.compile import automaton, trie
from gapless.constrain.dfa import Dfa, difference, intersection, trimmed
from gapless.constrain.grammar import Grammar, compile_grammar, grammar_automaton
from gapless.constrain.limits import DEFAULT, Limits, NotATable
from gapless.constrain.minimal import minimized
from gapless.constrain.regex import whole
from gapless.constrain.tokens import END, NEVER, TokenWalker, token_table
from gapless.constrain.vocabulary import Vocabulary, token_bytes
from gapless.errors import InvalidRequest
from gapless.skills.tokenizer import Tokenizer

QUICK = settings(max_examples=25, derandomize=True, deadline=None)
SMALL = Vocabulary([None, b"a", b"b", b"ab", b"abab", b"c", b"ba", b"", b"\xc3", b"\xa9", b"\xc3\xa9", b"a"], 0)


def table(pattern, vocabulary=SMALL, limits=DEFAULT):
    return compile_grammar(Grammar.regex(pattern), vocabulary, limits)


def allowed(walker, left=None):
    return np.flatnonzero(walker.mask(left)).tolist()


def test_the_bytes_of_every_id_are_those_that_its_tokenizer_writes():
    vocabulary = glint()
    assert [i for i, piece in enumerate(vocabulary.pieces) if piece is None] == list(range(21))
    assert {bytes([b]) for b in range(256)} <= set(vocabulary.pieces)
    for id in range(0, 2048, 37):
        start = vocabulary.begins[id]
        assert vocabulary.data[start : start + vocabulary.lengths[id]].tobytes() == (vocabulary.pieces[id] or b"")


def test_the_end_and_ids_beyond_the_tokenizer_stand_for_no_text():
    class Pieces:
        def piece(self, token_id):
            return b"x" if token_id < 3 else b""

    assert token_bytes(Pieces(), 5) == [b"x", b"x", b"x", None, None]
    vocabulary = Vocabulary([b"x", b"end", None], 1)
    assert vocabulary.lengths.tolist() == [1, 0, 0]
    assert vocabulary.digest != Vocabulary([b"x", b"end", None], 0).digest
    assert vocabulary.digest != Vocabulary([b"x", b"end", b"y"], 1).digest
    assert vocabulary.digest == Vocabulary([b"x", b"another end", None], 1).digest
    with pytest.raises(ValueError, match="end id 3"):
        Vocabulary([b"x"], 3)


def test_a_small_table_in_full():
    found = table("(ab)*c?")
    check_shape(found)
    walker = TokenWalker(found)
    assert allowed(walker) == [0, 1, 3, 4, 5, 11]  # the end, a, ab, abab, c, and the other a
    assert found.classes[1] == found.classes[11]
    assert found.classes[3] == found.classes[4]  # from anywhere both come back to where they began
    assert found.classes[[2, 6, 7, 8, 9, 10]].tolist()[2:] == [NEVER] * 4
    assert not walker.advance(1)
    assert (allowed(walker), walker.complete, walker.fewest) == ([2, 6], False, 2)
    walker.advance(2)
    walker.advance(5)
    assert (allowed(walker), walker.complete) == ([0], True)
    assert found.forced[walker.state] == 0
    assert walker.advance(0) and walker.ended
    assert not walker.allows(0)
    with pytest.raises(ValueError, match="token 2 is not allowed"):
        TokenWalker(found).advance(2)


def test_the_end_may_be_any_id_and_its_bytes_are_no_text():
    end_last = Vocabulary([b"a", b"b", b"x", b"a"], 3)
    walker = TokenWalker(table("xa?", end_last))
    assert allowed(walker) == [2] and not walker.advance(2)
    assert allowed(walker) == [0, 3] and walker.advance(3)


def test_a_token_may_end_within_a_character():
    walker = TokenWalker(table("é+"))
    assert allowed(walker) == [8, 10]
    walker.advance(8)
    assert allowed(walker) == [9]
    assert walker.table.forced[walker.state] == 9
    assert table("a").forced.tolist() == [-1, 0]  # two ids are an a
    check_shape(table("a|é"))


def test_ways_that_the_vocabulary_cannot_finish_are_not_begun():
    """There is no token for x, so nothing that must hold one is allowed."""
    found = table("a(x|b)|cx|bax|b(ax|b)")
    check_shape(found)
    walker = TokenWalker(found)
    assert allowed(walker) == [1, 2, 3, 11]
    assert found.classes[[4, 5, 6]].tolist() == [NEVER] * 3
    assert found.states == 4
    with pytest.raises(NotATable, match="no text"):
        table("cx")


@pytest.mark.parametrize("pattern", ["(ab){5}", "(ab|c){0,9}", "a*b{3}", "(abab)*c", "é{2,4}"])
def test_an_answer_ends_within_its_budget_if_that_is_possible(pattern):
    found, rng = table(pattern), np.random.default_rng(7)
    for budget in range(1, 14, 2):
        for _ in range(4):
            text, tokens = walk(found, SMALL.pieces, rng, budget)
            assert grammar_automaton(Grammar.regex(pattern)).accepts(text)
            assert len(tokens) <= max(budget, found.fewest)
            assert tokens[-1] == SMALL.end


def test_a_budget_takes_away_only_what_leads_too_far():
    """Whatever is still allowed with `left` tokens can be finished with them, whatever is not cannot."""
    found = table("(ab|c){2,4}|ba{3,7}")
    for state in range(found.states):
        walker = TokenWalker(found, state)
        for left in range(walker.fewest, 9):
            for token in allowed(walker):
                then = TokenWalker(found, state)
                then.advance(token)
                assert (token in allowed(walker, left)) == (then.fewest <= left - 1)
        assert allowed(walker, walker.fewest - 1) == allowed(walker)


def test_choices_share_begins_and_ends():
    texts = ["yes", "yessir", "no", "nessir", "", "日本"]
    dfa = grammar_automaton(Grammar.choice([*texts, "no"]))
    for text in texts:
        assert dfa.accepts(text.encode())
    for text in ("y", "ye", "yesn", "noo", "日"):
        assert not dfa.accepts(text.encode())
    assert dfa.states == 15
    for wrong in ([], "yes", ["a", 3], None):
        with pytest.raises(InvalidRequest, match="list of texts"):
            Grammar.choice(wrong)
    with pytest.raises(InvalidRequest, match="lone surrogate") as refusal:
        grammar_automaton(Grammar.choice(["\ud800"]))
    assert refusal.value.param == "choice"
    with pytest.raises(InvalidRequest, match="no text satisfies the regex"):
        grammar_automaton(Grammar.regex(r"[^\d\D]"))


@pytest.mark.parametrize(
    "limits",
    [Limits(states=20), Limits(scratch_bytes=5_000), Limits(table_bytes=5_000), Limits(work=100), Limits(fragments=30)],
)
def test_a_table_beyond_any_limit_is_no_table(limits):
    with pytest.raises(NotATable, match="too large") as refusal:
        table("[a-z]{1,9}(ab|c){20}", glint(), limits)
    assert refusal.value.param == "regex" or "bytes" in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize("path", SCHEMAS[::5], ids=lambda path: path.stem)
def test_a_vocabulary_of_fifty_thousand(path):
    vocabulary = Vocabulary(token_bytes(Tokenizer(standin().to_str()), VOCAB), 0)
    found, dfa, rng = token_table(bytes_automaton(path), vocabulary), bytes_automaton(path), np.random.default_rng(3)
    assert found.classes.shape == (VOCAB,)
    for _ in range(8):
        text, _ = walk(found, vocabulary.pieces, rng, 40)
        assert dfa.accepts(text)


# Smallest automata


def random_dfa(rng, states, kinds):
    classes = np.arange(256, dtype=np.uint8) % kinds
    following = rng.integers(-1, states, (states, kinds)).astype(np.int32)
    return trimmed(classes, following, rng.random(states) < 0.4) or Dfa(
        classes, following[:1] * 0, np.ones(1, np.bool_)
    )


def residuals(dfa):
    """How many states an automaton must have: those reached that differ in what they accept. The slow way."""
    reach, todo = {0}, [0]
    while todo:
        for then in dfa.following[todo.pop()].tolist():
            if then >= 0 and then not in reach:
                reach.add(then)
                todo.append(then)
    kind = {state: bool(dfa.accepting[state]) for state in reach} | {-1: False}
    while True:
        signs = {s: (kind[s], *(kind[t] for t in dfa.following[s].tolist())) for s in reach}
        signs[-1] = (kind[-1], *(kind[-1],) * dfa.following.shape[1])
        numbers = {sign: i for i, sign in enumerate(dict.fromkeys(signs.values()))}
        if len(numbers) == len(set(kind.values())):
            return len(numbers) - 1
        kind = {s: numbers[sign] for s, sign in signs.items()}


@QUICK
@given(st.integers(0, 2**32), st.integers(1, 14), st.integers(1, 3))
def test_a_minimized_automaton_has_no_state_too_many_and_accepts_the_same(seed, states, kinds):
    rng = np.random.default_rng(seed)
    dfa = random_dfa(rng, states, kinds)
    small = minimized(dfa)
    assert small.states == residuals(dfa)
    for _ in range(30):
        text = rng.integers(0, kinds, rng.integers(0, 9)).astype(np.uint8).tobytes()
        assert small.accepts(text) == dfa.accepts(text)


@QUICK
@given(st.integers(0, 2**32))
def test_products_are_and_and_and_not(seed):
    rng = np.random.default_rng(seed)
    one, other = random_dfa(rng, 5, 2), random_dfa(rng, 4, 3)
    met, left = intersection(one, other, DEFAULT), difference(one, other, DEFAULT)
    for number in range(60):
        text = bytes(random.Random(f"{seed} {number}").choices(range(6), k=number % 7))
        assert (met is not None and met.accepts(text)) == (one.accepts(text) and other.accepts(text))
        assert (left is not None and left.accepts(text)) == (one.accepts(text) and not other.accepts(text))


def test_an_automaton_is_the_same_as_a_part_of_a_tree():
    dfa = automaton(whole("(ab|[c-f])*é?"), DEFAULT)
    again = automaton(dfa.machine(), DEFAULT)
    assert again.states == dfa.states
    assert token_table(again, SMALL).nbytes == token_table(dfa, SMALL).nbytes
    assert automaton(trie(()), DEFAULT) is None
    assert END == 1
