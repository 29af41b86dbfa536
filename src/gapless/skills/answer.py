"""An answer in words while it grows: characters, stop strings, whole words, and what each token weighed.

In: the committed tokens of an answer. Out: pieces of text, and the tokens' logprobs as plain JSON. Invariants: the
pieces joined do not depend on how the tokens were handed over; a token is listed with the text in which it begins, and
so the tokens listed are those of the text that was given out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gapless.records import Token
from gapless.skills.detokenize import Characters, Words
from gapless.skills.stopping import StopFilter
from gapless.skills.tokenizer import Tokenizer

LEAST = -9999.0
"""Stands for all logprobs below it, impossible tokens' too: JSON has no infinity."""


class AnswerText:
    """One answer. `stops`: it ends before the first of these. `scored`: its tokens are kept with their logprobs."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), *, scored: bool = False) -> None:
        self.stoppable = bool(stops)
        """It may be over before the engine knows."""
        self._tokenizer = tokenizer
        self._characters = Characters(tokenizer)
        self._filter = StopFilter(stops)
        self._words = Words()
        self._pieces: list[str] = []
        self._length = 0
        self._seen = 0
        """Characters that came in; `_length` of them went out."""
        self._tokens: list[tuple[int, Token]] | None = [] if scored else None
        """Each with the place of the first character that its bytes belong to."""

    @property
    def over(self) -> bool:
        """A stop string was found: whatever follows changes nothing."""
        return self._filter.found

    @property
    def text(self) -> str:
        """What was given out so far."""
        return "".join(self._pieces)

    def feed(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Take tokens in order; return what may be shown now."""
        if self.over:
            return ()
        if self._tokens is None:
            grown = self._characters.feed(token.id for token in tokens)
        else:
            grown = "".join([self._note(token, self._tokens) for token in tokens])
        ready = self._words.feed(self._filter.feed(grown))
        return self._keep(ready + self._words.finish() if self.over else ready)

    def finish(self) -> tuple[str, ...]:
        """Say that no token follows; return what is left."""
        if self.over:
            return ()
        left = self._filter.feed(self._characters.finish()) + self._filter.finish()
        return self._keep(self._words.feed(left) + self._words.finish())

    def scores(self) -> dict[str, Any]:
        """`{"logprobs": [...]}` of the text that was given out; nothing unless they were asked for."""
        return {} if self._tokens is None else {"logprobs": self.scores_from(0, self._length)}

    def scores_from(self, first: int, end: int) -> list[dict[str, Any]]:
        """From the `first` token on, those that begin before character `end`.

        Each is {"token", "bytes", "logprob", "top_logprobs": [{"token", "bytes", "logprob"}]}; see `Token.logprob`.
        """
        return [
            self._score(token.id, token.logprob)
            | {"top_logprobs": [self._score(other, logprob) for other, logprob in token.top]}
            for start, token in (self._tokens or [])[first:]
            if start < end
        ]

    def _note(self, token: Token, tokens: list[tuple[int, Token]]) -> str:
        if piece := self._tokenizer.piece(token.id):  # the end token and its like stand for no text
            tokens.append((self._seen + self._characters.broken_by(piece), token))
        grown = self._characters.feed((token.id,))
        self._seen += len(grown)
        return grown

    def _score(self, token_id: int, logprob: float) -> dict[str, Any]:
        piece = self._tokenizer.piece(token_id)
        return {
            "token": piece.decode("utf-8", "replace") if piece else f"<|{token_id}|>",
            "bytes": list(piece) if piece else None,
            "logprob": logprob if logprob > LEAST else LEAST,
        }

    def _keep(self, text: str) -> tuple[str, ...]:
        if not text:
            return ()
        self._pieces.append(text)
        self._length += len(text)
        return (text,)
