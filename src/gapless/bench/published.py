"""Published figures of pipelined decoding with Moondream 2, as data for the cost model.

Milliseconds; gains as fractions. They came with predictions made from their own two periods, which the model repeats.
What was not published: the loop thread's time C. H, what a blocking step takes beside the device, stands in for it; C
cannot be more than that by much, and at depth 2 neither is the limit in any of these rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from gapless.bench.cost_model import Parts, Point, marginal_row_ms

DEPTH = 2


@dataclass(frozen=True, slots=True)
class Published:
    """One row. `blocking_ms`, `pipelined_ms`: the periods at depth 1 and 2; `tokens`: L."""

    gpu: str
    streams: int
    forward_ms: float
    sampling_ms: float
    blocking_ms: float
    pipelined_ms: float
    tokens: float
    predicted: float
    observed: float

    @property
    def point(self) -> Point:
        """The row as the model takes it."""
        chain = self.blocking_ms - self.forward_ms - self.sampling_ms
        forwards = {row.streams: row.forward_ms for row in PUBLISHED if row.gpu == self.gpu}
        parts = Parts(self.forward_ms, self.sampling_ms, chain, chain)
        return Point(self.streams, parts, self.blocking_ms, self.tokens, marginal_row_ms(forwards, self.streams))


PUBLISHED = (
    Published("3090", 1, 4.87, 0.20, 5.44, 5.10, 104, 0.057, 0.065),
    Published("3090", 8, 6.66, 0.27, 7.52, 6.97, 113, 0.076, 0.078),
    Published("3090", 32, 10.24, 0.26, 11.74, 10.52, 113, 0.111, 0.116),
    Published("B200", 1, 2.45, 0.14, 3.11, 2.63, 115, 0.172, 0.176),
    Published("B200", 8, 3.12, 0.14, 4.04, 3.30, 115, 0.222, 0.219),
    Published("B200", 32, 3.80, 0.14, 5.55, 3.98, 104, 0.391, 0.354),
)
