"""Totals since a loop began. Plain numbers that the loop adds to and anyone may read."""

from __future__ import annotations

from dataclasses import dataclass

from gapless.records import StepKind


@dataclass(slots=True)
class Counters:
    """What happened, counted.

    `overlapped`: launches while an earlier step held a slot (rows that are parked hold none); `zombies`: rides of a row
    after its last token (a row that waits for a host mask is closed instead and does not count); the two `*_during_*`:
    commits of one kind of step while one of the other kind was in flight. At depth 1 all four are 0.
    """

    prefill_steps: int = 0
    decode_steps: int = 0
    overlapped: int = 0
    zombies: int = 0
    preemptions: int = 0
    retried: int = 0
    """Requests prefilled again by themselves because a prefill step with several failed."""
    prompt_parts: int = 0
    """Parts of prompts that were cut, the last of each left out."""
    long_steps: int = 0
    """Steps that take longer than `max_step_ms`, by the device's costs: with a part that cannot be cut."""
    parked: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    """Of requests that have said their first token: picture block and prompt."""
    pictures: int = 0
    """Requests with a picture that have said their first token; `shared_pictures`: of these, those whose picture's
    block was there already."""
    shared_pictures: int = 0
    cached_tokens: int = 0
    """Of `prompt_tokens`, those that were there already."""
    prefix_hits: int = 0
    """Prefills, those of preempted requests among them, that found a beginning of theirs computed already, or about to
    be; `prefix_misses`: all others."""
    prefix_misses: int = 0
    prefix_evictions: int = 0
    """Entries of the prefix cache (a page, or a picture's block) that made room."""
    prefix_copies: int = 0
    """Prefills that copied the partly filled last page of a picture's block."""
    host_hits: int = 0
    """Pictures whose embeddings were brought from host memory, so that vision was skipped; `host_evictions`: those that
    made room there."""
    host_evictions: int = 0
    recomputed_tokens: int = 0
    """Tokens of preempted requests that had been said and were computed again."""
    finished: int = 0
    failed: int = 0
    decode_committed_during_prefill: int = 0
    prefill_committed_during_decode: int = 0

    def began(self, prompt_tokens: int, picture: bool, cached_tokens: int) -> None:
        """Count a request that has said its first token."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self.pictures += picture
        self.shared_pictures += picture and cached_tokens > 0

    def launched(self, kind: StepKind, overlaps: bool) -> None:
        """Count a launch; `overlaps`: another step held a slot."""
        self.prefill_steps += kind is StepKind.PREFILL
        self.decode_steps += kind is StepKind.DECODE
        self.overlapped += overlaps

    def committed(self, kind: StepKind, in_flight: set[StepKind]) -> None:
        """Count a commit beside the kinds of steps that are in flight with it."""
        self.decode_committed_during_prefill += kind is StepKind.DECODE and StepKind.PREFILL in in_flight
        self.prefill_committed_during_decode += kind is StepKind.PREFILL and StepKind.DECODE in in_flight
