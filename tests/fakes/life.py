"""What a referee knows of a row's life and of a step in flight, by what it was shown."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.ruled_walk import RuledWalk

from gapless.constrain.table import Walker
from gapless.constrain.tokens import TokenWalker
from gapless.records import RowRef, RowStart, Step


@dataclass
class Life:
    """One life of a row. `forwards`, `sampled`, `committed` count steps; `base` is where its first own token goes.

    `closed_at`: the step (counted from 0) that was closed without a mask; `ended`: its end was committed.
    """

    ref: RowRef
    walker: Walker
    base: int
    host_masked: bool
    resumed: bool
    forwards: int = 0
    sampled: int = 0
    committed: int = 0
    waiting: bool = False
    closed_at: int | None = None
    ended: bool = False
    lost: bool = False
    adapter: int = 0
    fed: bool = True
    """Its prompt is launched to its end; `start`: what it began with, None before anything of it was fed; `rides`: of
    steps in flight, those that bring it no token."""
    start: RowStart | None = None
    rides: int = 0
    rule: TokenWalker | None = None

    @property
    def walk(self) -> RuledWalk:
        """Both its rules."""
        return RuledWalk(self.walker, self.rule)

    @property
    def refs(self) -> int:
        """Launched steps that contain the row."""
        return self.forwards - self.committed + self.rides


@dataclass
class InFlight:
    """A launched step that was not waited for. `waiting` rows are unsampled, `ready` sampled or closed, in order."""

    step: Step
    waiting: set[RowRef]
    ready: list[RowRef]
