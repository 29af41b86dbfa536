"""The names by which Triton finds steps' kernels in its cache on disk, the same in every process.

A kernel's name there is a hash of its text, of what it calls, and of the constants of modules that either uses. Triton
(3.6) adds the constants of what is called only if that was hashed before: so the name depends on what a process
launched first, and what one compiled another would not find. Hashed once from the leaves up, it does not.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

from triton.runtime.jit import JITFunction

from gapless.kernels.triton import (
    adapters_jit,
    cut_jit,
    experts_jit,
    kept_jit,
    lone_jit,
    narrow_jit,
    parts_jit,
    sparse_jit,
    step_jit,
)

MODULES = (parts_jit, experts_jit, kept_jit, adapters_jit, step_jit, cut_jit, sparse_jit, lone_jit, narrow_jit)
"""Each behind those that it imports."""


@cache
def settle() -> None:
    """Hash all that steps launch. To be called before the first of them is launched or compiled."""
    for module in MODULES:
        for function in functions_of(module):
            function.cache_key  # noqa: B018 - which is worked out and kept


def functions_of(module: ModuleType) -> list[JITFunction]:
    """Those of a module, as they stand there: each behind those that it calls. None where Triton interprets."""
    found = {id(of): of for of in vars(module).values() if isinstance(of, JITFunction)}.values()
    own = [of for of in found if of.fn.__module__ == module.__name__]
    return sorted(own, key=lambda of: of.fn.__code__.co_firstlineno)
