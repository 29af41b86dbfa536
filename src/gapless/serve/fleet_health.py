"""Whether an engine generates: asked for a token, or seen at it.

In: how to ask, and how many tokens there were. Out: nothing, or an error. A probe waits for a row like everybody, and
an engine whose rows are all taken for long is busy, not ill: it is healthy if tokens came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Probe = Callable[[], Awaitable[tuple[int, bytes]]]


async def check_generates(probe: Probe, tokens: Callable[[], Awaitable[int]], patience: float) -> None:
    """Ask. `probe`: status and body of /health/generate; `tokens`: generated since the start; `patience`: seconds.
    Raises `RuntimeError` for an engine that does not generate."""
    before = await tokens()
    try:
        async with asyncio.timeout(patience):
            status, body = await probe()
    except TimeoutError as error:
        if await tokens() > before:
            return
        raise RuntimeError(f"no token was generated within {patience:g} seconds") from error
    if status != 200:
        raise RuntimeError(f"a token was asked for, and the answer is {status}: {body[:500]!r}")
