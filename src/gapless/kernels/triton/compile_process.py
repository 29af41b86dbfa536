"""A program of its own that compiles steps' kernels in so many processes: `beforehand` starts it.

In: how many, and on standard input jobs as the caller pickled them. Out: kernels in Triton's cache on disk.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from importlib import import_module

from gapless.kernels.triton.compiling import SLOW, begin, compile_quietly


def main() -> None:
    """Compile what comes in, in as many processes as the last word says; no GPU is ever used here, so that they can be
    forked."""
    jobs = pickle.loads(sys.stdin.buffer.read())
    import_module(SLOW)
    with multiprocessing.get_context("fork").Pool(int(sys.argv[1]), begin) as pool:
        pool.map(compile_quietly, jobs, chunksize=1)
