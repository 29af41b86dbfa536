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
    parked: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    """Of requests that have said their first token: picture block and prompt."""
    pictures: int = 0
    """Requests with a picture that have said their first token; `shared_pictures`: of these, those that used the block
    of another live request on the same picture."""
    shared_pictures: int = 0
    recomputed_tokens: int = 0
    finished: int = 0
    failed: int = 0
    decode_committed_during_prefill: int = 0
    prefill_committed_during_decode: int = 0

    def began(self, prompt_tokens: int, picture: bool, shared: bool) -> None:
        """Count a request that has said its first token."""
        self.prompt_tokens += prompt_tokens
        self.pictures += picture
        self.shared_pictures += picture and shared

    def launched(self, kind: StepKind, overlaps: bool) -> None:
        """Count a launch; `overlaps`: another step held a slot."""
        self.prefill_steps += kind is StepKind.PREFILL
        self.decode_steps += kind is StepKind.DECODE
        self.overlapped += overlaps

    def committed(self, kind: StepKind, in_flight: set[StepKind]) -> None:
        """Count a commit beside the kinds of steps that are in flight with it."""
        self.decode_committed_during_prefill += kind is StepKind.DECODE and StepKind.PREFILL in in_flight
        self.prefill_committed_during_decode += kind is StepKind.PREFILL and StepKind.DECODE in in_flight
