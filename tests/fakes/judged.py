"""Where a referee's word is the last."""

from __future__ import annotations

from dataclasses import dataclass

from tests.fakes.referee import Referee

from gapless.errors import InvariantBroken


@dataclass
class Judged:
    """A broken invariant in here ends the device: nothing may be launched after it."""

    referee: Referee

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, InvariantBroken):
            self.referee.lost()
