"""Memory of pictures goes back to the system once they are answered.

The C library keeps what a thread has freed, for that thread, and learns from the first large block to keep such blocks
too: after a few large pictures in a few threads a process holds a gigabyte of nothing. With a fixed limit, blocks over
it come from the system and go back to it at once.
"""

from __future__ import annotations

import ctypes
import sys

KEPT = 8 * 2**20
"""Bytes: larger blocks are given back. Pillow's are 16 MiB, a picture's pixels more than that where it matters."""
_MMAP_THRESHOLD = -3
"""glibc's name for the limit, in malloc.h."""


def give_back_large_blocks() -> bool:
    """From now on, for the whole process. Returns whether this C library can; others need it less."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(_MMAP_THRESHOLD, KEPT) == 1
