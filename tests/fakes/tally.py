"""What a referee counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """What the referee saw."""

    launches: int = 0
    overlapped: int = 0
    zombies: int = 0
    parked: int = 0
    closed: int = 0
    shared_blocks: int = 0
    """Prefills that computed no block though they stand behind one, or behind other pages that were there."""
    cached: int = 0
    """Positions that were there before a prefill; `copies`: partly filled pages that one copied."""
    copies: int = 0
    resumed: int = 0
    resumed_in_object: int = 0
    decode_committed_during_prefill: int = 0
    prefill_committed_during_decode: int = 0
    most_refs: int = 0
    most_rows: int = 0
    adapters: int = 0
    """How many were brought to a slot; `grammars`: token tables; `resumed_in_rule`: rows that go on within one."""
    grammars: int = 0
    resumed_in_rule: int = 0
    parts: int = 0
    """Parts of prompts that left some of theirs to later steps; `looks`: those with crops of a picture that comes
    later; `looked`: pictures that were encoded by several steps."""
    looks: int = 0
    looked: int = 0
