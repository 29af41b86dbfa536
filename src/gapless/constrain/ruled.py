"""Answers that are ruled twice: by a program's states, which say when the answer begins, and in it by a token table.

The table begins with the answer's first token, behind the reasoning where there is one, and says alone what may come
in the answer: its end is the program's end.
"""

from __future__ import annotations

from collections.abc import Iterable

from gapless.constrain.table import Table, Walker
from gapless.constrain.tokens import TokenWalker
from gapless.errors import InvariantBroken
from gapless.records import Request, Token


def state_after(request: Request, table: Table, tokens: Iterable[Token]) -> int:
    """The state of the request's token table behind `tokens`, of which the first is the request's first. Raises
    `InvariantBroken` for a token that was not allowed."""
    assert request.grammar is not None
    s, rule = request.sampling, TokenWalker(request.grammar)
    walker = Walker.start(table, request.program, s.max_tokens, s.max_objects)
    for token in tokens:
        if walker.answers:
            if not rule.allows(token.id):
                raise InvariantBroken(f"request {request.id} said token {token.id}, which its rule does not allow")
            rule.advance(token.id)
        walker.advance(token.id)
    return rule.state
