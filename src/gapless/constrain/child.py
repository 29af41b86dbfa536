"""What runs in the process that compiles grammars: one after the other, until the line to its parent is closed.

In, over a connection: the vocabulary and the limits once, then grammars. Out: for each its table, or the name, message
and argument of the error. It gives way to the rest of the machine, and leaves interrupts to its parent.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

from gapless.constrain.grammar import Grammar, compile_grammar, host_grammar
from gapless.constrain.guides import Guides
from gapless.constrain.limits import Limits
from gapless.constrain.vocabulary import Vocabulary
from gapless.errors import InvalidRequest
from gapless.token_table import TokenTable

POLITE = 5
"""Added to the process's niceness."""


def main() -> None:
    """Serve the connection whose file number is the last argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(POLITE)
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        return  # the parent has gone, or wants no more


def serve(line: Connection) -> None:
    """Say hello, hear the vocabulary, compile. Raises `EOFError` when the parent has closed the line."""
    line.send("hello")
    pieces, end, limits = line.recv()
    vocabulary, guides = Vocabulary(pieces, end), Guides(most_kept=0)
    while True:
        grammar, on_host = line.recv()
        line.send(answer(grammar, vocabulary, limits, guides if on_host else None))


def answer(
    grammar: Grammar, vocabulary: Vocabulary, limits: Limits, guides: Guides | None = None
) -> TokenTable | tuple[str, float] | tuple[str, str, str | None]:
    """A table, or with `guides`, for masks on the host, a grammar's text and the seconds it took, or an error's name,
    message and argument: an error of a grammar never ends the process."""
    try:
        if guides is not None:
            found = host_grammar(grammar, vocabulary, limits)
            guides.guide(found).mask()  # what is too large is refused here, where it can be killed
            return found.text, found.seconds
        return compile_grammar(grammar, vocabulary, limits)
    except InvalidRequest as error:
        param = grammar.kind if error.param in (None, "grammar") else error.param
        return type(error).__name__, str(error), param
    except Exception as error:  # a defect: told to those who asked, not to those who come after
        return type(error).__name__, f"compiling failed: {error!r}", grammar.kind
