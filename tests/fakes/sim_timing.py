"""How long things take on the simulated device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Simulated seconds. `prefill` None: as long as a decode's forward. `launch`: host time of one launch."""

    forward: float = 1.0
    sampling: float = 0.0
    copy: float = 0.0
    bookkeeping: float = 0.0
    prefill: float | None = None
    launch: float = 0.0
