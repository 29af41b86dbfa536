"""Command lines of this package's own processes: Python code on this interpreter, with this process's import path.

In: a program, or a module with a `main`, and words for it. Out: what `subprocess` takes. Invariant: such a process
imports what its parent would. The folder that the caller happens to stand in is no part of that (`-P`), nor is anything
imported before the path is set: a file of his called `json.py` would be taken for Python's.
"""

from __future__ import annotations

import sys


def command(program: str, *words: str) -> list[str]:
    """Run `program`, lines of Python, with `words` behind its `sys.argv[0]`."""
    return [sys.executable, "-P", "-c", f"import sys\nsys.path[:] = {sys.path!a}\n{program}", *words]


def main_of(module: str, *words: str) -> list[str]:
    """Run a module's `main()`."""
    return command(f"from {module} import main\nmain()", *words)
