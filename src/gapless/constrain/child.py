"""What runs in the process that compiles grammars: one after the other, until the line to its parent is closed.

In, over a connection: the vocabulary and the limits once, then grammars. Out: for each its table, or the name, message
and argument of the error. It gives way to the rest of the machine, and leaves interrupts to its parent.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

from gapless.constrain.grammar import Grammar, compile_grammar
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
    vocabulary = Vocabulary(pieces, end)
    while True:
        line.send(answer(line.recv(), vocabulary, limits))


def answer(grammar: Grammar, vocabulary: Vocabulary, limits: Limits) -> TokenTable | tuple[str, str, str | None]:
    """A table, or an error's name, message and argument: an error of a grammar never ends the process."""
    try:
        return compile_grammar(grammar, vocabulary, limits)
    except InvalidRequest as error:
        return type(error).__name__, str(error), error.param
    except Exception as error:  # a defect: told to those who asked, not to those who come after
        return type(error).__name__, f"compiling failed: {error!r}", grammar.kind
