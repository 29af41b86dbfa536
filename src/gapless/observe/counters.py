"""Totals since a loop began. Plain numbers that the loop adds to and anyone may read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What happened, counted. `overlapped`: launches while an earlier step was uncommitted; the two `*_during_*`:
    commits of one kind of step while one of the other kind was in flight."""

    prefill_steps: int = 0
    decode_steps: int = 0
    overlapped: int = 0
    zombies: int = 0
    preemptions: int = 0
    parked: int = 0
    tokens: int = 0
    recomputed_tokens: int = 0
    shared_prefixes: int = 0
    finished: int = 0
    failed: int = 0
    decode_committed_during_prefill: int = 0
    prefill_committed_during_decode: int = 0
