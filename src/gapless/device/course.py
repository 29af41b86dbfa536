"""How a step goes on the device, kept because the next one nearly always goes the same way.

In: steps, as they are launched. Out: `Course`s: which of the graphs serve them. It enqueues nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gapless.device.graphs import Graphs
from gapless.device.packet import ready_of
from gapless.device.tables import DeviceTable
from gapless.device.tail import Feeds, Needs, TailKind
from gapless.records import Rows, Step, StepKind


@dataclass(slots=True)
class Course:
    """How steps of `rows` go, of which `last` was the last: their batch and page tables, what a forward and a tail must
    do for them (None: nobody is sampled)."""

    rows: Rows
    last: int
    bucket: int
    width: int
    feeds: Feeds
    kind: TailKind | None

    def goes_on(self, step: Step) -> bool:
        """Whether all that the device must know for `step` is there, as it was all there for the last one."""
        again = step.id == self.last + 1 and step.rows is self.rows and step.kind is StepKind.DECODE
        return again and not (step.unsampled or step.grants or step.freed)


class Chart:
    """What the host knows of the rows on a device: how far their page tables reach, and what their tokens may need."""

    def __init__(self, graphs: Graphs, table: DeviceTable, rows: int) -> None:
        self._graphs = graphs
        self._needs = Needs(table, rows)
        self._entries = np.zeros(rows, dtype=np.int64)  # of each row's page table

    def course(self, step: Step) -> Course:
        """Take what a step brings, and say how it goes."""
        for prefill in step.prefills:
            self._needs.begin(prefill.start)
            self._entries[prefill.start.ref.row] = len(prefill.pages)
        for grant in step.grants:
            self._entries[grant.row] = grant.first + len(grant.pages)
        numbers, ready = step.rows.numbers, ready_of(step)
        bucket, width = self._graphs.bucket(len(numbers)), self._graphs.width(int(self._entries[numbers].max()))
        kind = self._needs.kind(ready) if len(ready) else None
        return Course(step.rows, step.id, bucket, width, self._needs.feeds(numbers), kind)

    def masked(self, step: Step) -> TailKind:
        """What a tail must do for rows of a step whose masks come from the host."""
        return self._needs.masked(step.rows.numbers)
