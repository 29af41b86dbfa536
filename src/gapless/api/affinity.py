"""Which engine of several a request goes to: the one that has its picture, unless that one is busy.

In: the bytes of a request's body, and how many requests each engine holds. Out: engines in the order in which they are
to be tried. Pure functions without state, so that routers that know nothing of each other agree. Invariants: the same
picture prefers the same engine for as long as that is there; when an engine comes or goes, no more pictures change
theirs than those that it gains or loses; an engine that holds more than `slack` requests over the least busy one, and
more than twice as many, is not preferred.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import blake2b

SLACK = 16
"""Requests by which the engine with the picture may always be ahead of the least busy one: a GPU's step takes hardly
longer for them, and to encode a picture anew takes ten steps or more. Where all are busy it may hold twice as many as
the least busy one: that one has work enough, and would lose more by encoding others' pictures than it gains in rows."""
_PICTURE = re.compile(rb'"(?:image_url|url)"\s*:\s*"([^"\\]{32,})')
_NAME = re.compile(rb'"(?:adapter|model)"\s*:\s*"([^"\\]{1,128})"')
"""Both look at JSON without parsing it: bodies are large, and inside a JSON text a quotation mark has a backslash
before it. What they say is a hint, never a reason to refuse."""


def picture_key(body: bytes) -> str:
    """The digest of the first picture that a body shows, "" if it shows none.

    A body is JSON as the routes take it, whatever else it may be. The digest is of the picture's spelling, so that
    nothing is decoded: one file in two spellings is two pictures here, and the engine's own caches see to it then.
    """
    found = _PICTURE.search(body)
    if found is None:
        return ""
    spelled = found[1].partition(b",")[2] or found[1]  # the head of a data URL may vary
    return blake2b(spelled, digest_size=16).hexdigest()


def names_in(body: bytes) -> tuple[str, ...]:
    """What may be names of adapters in a body."""
    return tuple(dict.fromkeys(found.decode("utf-8", "replace") for found in _NAME.findall(body)))


def ranked(key: str, engines: Collection[str]) -> list[str]:
    """All engines, the one that a key prefers first (rendezvous hashing, Thaler and Ravishankar 1998): each engine
    draws a number for the key, and the largest is first."""
    return sorted(
        engines, key=lambda engine: blake2b(f"{key}\0{engine}".encode(), digest_size=8).digest(), reverse=True
    )


def order(
    key: str, loads: Mapping[str, int], slack: int = SLACK, avoid: Collection[str] = (), turn: int = 0
) -> list[str]:
    """Engines in the order in which a request is to try them.

    `loads`: requests that each engine holds; `avoid`: engines that have failed this request, which come last. Without a
    key the least busy comes first, and `turn` (any number that changes) decides between equals.
    """
    ranks = {engine: rank for rank, engine in enumerate(ranked(key or str(turn), loads))}
    least = min((load for engine, load in loads.items() if engine not in avoid), default=0)
    favourite = min((engine for engine in loads if engine not in avoid), key=ranks.__getitem__, default=None)
    kept = favourite if key and favourite is not None and loads[favourite] <= least + max(slack, least) else None
    return sorted(loads, key=lambda engine: (engine in avoid, engine != kept, loads[engine], ranks[engine]))
