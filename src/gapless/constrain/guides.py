"""A grammar engine at work: `llguidance`, which reads a grammar and says which ids may come next.

In: `HostGrammar`s. Out: `Guide`s, one for each answer. Everything here may take milliseconds and runs on threads of its
own; what counts runs in native code, without the interpreter's lock. The package is imported when the first grammar
comes: nothing else needs it.

Invariants: a grammar is read once, as long as it is among those asked for last, and each answer follows a copy; so many
grammars are kept, of so many characters in all; how large one may become while it is followed is bounded, and what
other answers learned of it never ends one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from gapless.errors import InvalidRequest, RequestFailed
from gapless.host_grammar import HostGrammar, Words
from gapless.locks import Lock
from gapless.records import Mask

INSTALL = "pip install 'gapless[structured]'"
MOST_KEPT = 32
MOST_CHARACTERS = 4 * 2**20
"""Of all grammars that are kept. What is read of one takes about thirty bytes for each of its characters."""
MOST_TOKENIZERS = 2
LIMITS = {
    "initial_lexer_fuel": 4_000_000,
    "step_lexer_fuel": 1_000_000,
    "step_max_items": 200_000,
    "max_items_in_row": 4_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 1_000_000,
    "verbose_errors": False,
}
"""Work and memory of one grammar: some hundred milliseconds for its reading and for any step at worst, and ten to
twenty megabytes for all states of its lexer."""

STUCK = (
    "no token that the model may say goes on with the answer as its rule demands; the rule asks for characters that "
    "the model cannot write"
)

Bits = npt.NDArray[np.uint32]
"""[vocab / 32, rounded up]: bit i of word w is id 32 w + i."""


def installed() -> bool:
    """Whether the package is there."""
    return find_spec("llguidance") is not None


class _Wrapped:
    """What `llguidance.TokenizerWrapper` is to know. Ids without a text are special: no grammar names them."""

    def __init__(self, words: Words) -> None:
        self.eos_token_id = words.end
        self.bos_token_id = None
        self.special_token_ids = [id for id, piece in enumerate(words.pieces) if not piece or id == words.end]
        special = set(self.special_token_ids)
        self.tokens = [b"\xff[%d]" % id if id in special else piece for id, piece in enumerate(words.pieces)]

    def __call__(self, text: bytes) -> list[int]:
        raise AssertionError("nobody cuts texts into tokens here")


class Guide:
    """One answer's place in its grammar. One thread at a time.

    Copies of a matcher share what they learn of its lexer, and the room for that: if others have used it up, the answer
    goes on with a matcher of its own.
    """

    def __init__(self, guides: Guides, grammar: HostGrammar) -> None:
        self._guides, self._grammar = guides, grammar
        self._matcher, self._own = guides.matcher(grammar), False
        self._consumed: list[int] = []

    def consume(self, tokens: Iterable[int]) -> None:
        """Move over tokens. Raises `RequestFailed` for one that is not allowed, `InvalidRequest` beyond the limits."""
        for token in tokens:
            self._consumed.append(token)
            if not self._matcher.consume_token(token):
                if "doesn't satisfy" in self._matcher.get_error():
                    raise RequestFailed(f"the answer's rule does not allow token {token}, which was said")
                self._renew()

    def _renew(self) -> None:
        """Begin again with a matcher that nobody shares. Raises `InvalidRequest` if that does not help."""
        if self._own or "too many states" not in self._matcher.get_error():
            raise self._failed()
        self._matcher, self._own = self._guides.fresh(self._grammar), True
        for token in self._consumed:
            if not self._matcher.consume_token(token):
                raise self._failed()

    def mask(self) -> Mask:
        """Bool [vocab], True where the next token may be; the end where the text may end here. Raises `InvalidRequest`
        beyond the limits, or if no token may be."""
        vocab = len(self._grammar.words.pieces)
        bits: Bits = np.zeros((vocab + 31) // 32, dtype=np.uint32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error():
            self._renew()
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if self._matcher.is_error():
                raise self._failed()
        found: Mask = np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab].view(np.bool_)
        return found

    def _failed(self) -> InvalidRequest:
        first = str(self._matcher.get_error()).partition("\n")[0]
        if first.startswith("NoExtension"):
            return InvalidRequest(STUCK, param="grammar")
        return InvalidRequest(f"the rule became too large to be followed ({first}); lower its bounds", param="grammar")


class Guides:
    """Guides for any number of answers, from any thread."""

    def __init__(self, most_kept: int = MOST_KEPT, most_characters: int = MOST_CHARACTERS) -> None:
        self._most_kept, self._most_characters = most_kept, most_characters
        self._lock = Lock()
        self._tokenizers: OrderedDict[str, Any] = OrderedDict()
        self._matchers: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self.characters = 0
        """Of the grammars that are kept."""

    def __len__(self) -> int:
        return len(self._matchers)

    def knows(self, grammar: HostGrammar) -> bool:
        """Whether a guide would be made at once."""
        return grammar.digest in self._matchers

    def guide(self, grammar: HostGrammar) -> Guide:
        """At the begin of a grammar. Raises `InvalidRequest` for one that is too large, `RequestFailed` without the
        package."""
        return Guide(self, grammar)

    def matcher(self, grammar: HostGrammar) -> Any:
        """A copy of a matcher that is kept, or will be."""
        with self._lock:
            found = self._matchers.get(grammar.digest)
            if found is not None:
                self._matchers.move_to_end(grammar.digest)
        matcher = found[0] if found is not None else self._read(grammar)
        return matcher.deep_copy()

    def fresh(self, grammar: HostGrammar) -> Any:
        """A matcher that shares nothing, since the one that was kept is used up: the next answer has it read again."""
        with self._lock:
            _, gone = self._matchers.pop(grammar.digest, (None, 0))
            self.characters -= gone
        return self._read(grammar, keep=False)

    def _read(self, grammar: HostGrammar, *, keep: bool = True) -> Any:
        llguidance = engine()
        tokenizer, limits = self._tokenizer(grammar.words), llguidance.LLParserLimits(**LIMITS)
        text = llguidance.LLMatcher.grammar_from_lark(grammar.text)
        matcher = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            first = matcher.get_error().partition("\n")[0]
            why = f"the rule is too large to be followed on the host ({first}); lower its bounds"
            raise InvalidRequest(why, param="grammar")
        if keep:
            with self._lock:
                self._keep(grammar, matcher)
        return matcher

    def _keep(self, grammar: HostGrammar, matcher: Any) -> None:
        size = len(grammar.text)
        if grammar.digest in self._matchers or size > self._most_characters:
            return
        self._matchers[grammar.digest] = matcher, size
        self.characters += size
        while len(self._matchers) > self._most_kept or self.characters > self._most_characters:
            _, (_, gone) = self._matchers.popitem(last=False)
            self.characters -= gone

    def _tokenizer(self, words: Words) -> Any:
        with self._lock:
            found = self._tokenizers.get(words.digest)
        if found is not None:
            return found
        llguidance = engine()
        wrapped = llguidance.TokenizerWrapper(_Wrapped(words))
        found = llguidance.LLTokenizer(wrapped, n_vocab=len(words.pieces), eos_token=words.end, slices=[])
        with self._lock:
            self._tokenizers[words.digest] = found
            while len(self._tokenizers) > MOST_TOKENIZERS:
                self._tokenizers.popitem(last=False)
        return found


def engine() -> Any:
    """The package. Raises `RequestFailed` if it is not installed."""
    try:
        import llguidance
    except ImportError as error:
        raise RequestFailed(f"a rule without a table needs llguidance ({error}); {INSTALL}") from error
    return llguidance
