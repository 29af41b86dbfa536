"""The tail of a step: mask, sample, decode values, advance the rows, write the record.

In: logits and hidden states of some rows, and host masks where rows have them. Out: packed lines, one per row; the row
store has moved on (I1). The end is judged here, once (I6). A done row emits MUTED and keeps its state; a row whose
logits or values are not finite emits NONFINITE and is done; neither touches another row.

Which rows need random draws, logprobs or value heads follows from their `RowStart`s, known on the host, so nothing
here asks a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gapless.device.record import muted_lines, pack_lines
from gapless.device.rows import Count, Real, RowStore
from gapless.device.sampler import Params, sample_rows
from gapless.device.tables import Advance, DeviceTable
from gapless.models.base import Model
from gapless.records import POISON, Flags, RowRef, RowStart, ValueHead


class Tail:
    """Samples rows of one store with one model's value heads and automata."""

    def __init__(self, model: Model, table: DeviceTable, rows: RowStore) -> None:
        self._model = model
        self._table = table
        self._rows = rows
        self._starts: dict[int, RowStart] = {}

    def begin(self, start: RowStart) -> None:
        """Remember how a row samples; called in stream order with the row's start."""
        self._starts[start.ref.row] = start

    def run(
        self, step: int, refs: Sequence[RowRef], logits: Tensor, hidden: Tensor, masks: Tensor | None = None
    ) -> Tensor:
        """Sample and advance `refs`: logits float32 [n, vocab], hidden [n, dim], masks bool [n, vocab] or None for the
        table's own. Returns lines float64 [n, WIDTH]."""
        rows = self._index(refs)
        counts = self._rows.counts[rows]
        state, live = counts[:, Count.STATE], counts[:, Count.DONE] == 0
        draws = sample_rows(logits, self._table.masks(state) if masks is None else masks, self._params(refs, rows))
        at = self._table.advance(
            state, counts[:, Count.LEFT], counts[:, Count.LEFT_NEXT], counts[:, Count.OBJECTS_LEFT], draws.token
        )
        values = self._values(refs, at.head, hidden)
        moves = live & draws.finite & torch.isfinite(values).all(dim=1)
        self._rows.advance(rows, moves, _moved(at, draws.token), values)
        flags = torch.where(moves, at.flags, torch.where(live, int(Flags.NONFINITE), int(Flags.MUTED)))
        self._rows.end(rows, flags != 0)
        where = torch.stack([rows, counts[:, Count.EPOCH]], dim=1)
        return pack_lines(step, where, flags, torch.where(moves, draws.token, POISON), values, draws)

    def close(self, step: int, refs: Sequence[RowRef]) -> Tensor:
        """End `refs` without a token (I7). Returns lines float64 [n, WIDTH]."""
        rows = self._index(refs)
        self._rows.end(rows, torch.ones_like(rows, dtype=torch.bool))
        return muted_lines(step, torch.stack([rows, self._rows.column(Count.EPOCH, rows)], dim=1))

    def _index(self, refs: Sequence[RowRef]) -> Tensor:
        return torch.tensor([ref.row for ref in refs], device=self._rows.counts.device)

    def _params(self, refs: Sequence[RowRef], rows: Tensor) -> Params:
        starts = [self._starts[ref.row] for ref in refs]
        drawn = [i for i, s in enumerate(starts) if s.temperature > 0]
        return Params(
            temperature=self._rows.real(Real.TEMPERATURE, rows),
            top_p=self._rows.real(Real.TOP_P, rows),
            seed=self._rows.column(Count.SEED, rows),
            position=self._rows.column(Count.POSITION, rows) + 1,
            drawn=drawn,
            nucleus=[i for i in drawn if starts[i].top_p < 1],
            scored=[(i, s.top_logprobs) for i, s in enumerate(starts) if s.top_logprobs >= 0],
        )

    def _values(self, refs: Sequence[RowRef], head: Tensor, hidden: Tensor) -> Tensor:
        """The values that ride on the sampled tokens, float64 [n, 2], POISON where there are none."""
        values = torch.full((len(refs), 2), float(POISON), dtype=torch.float64, device=head.device)
        reach = [self._table.heads_from(self._starts[ref.row].state) for ref in refs]
        for kind, decode in ((ValueHead.COORD, self._model.coord_value), (ValueHead.SIZE, self._model.size_value)):
            needing = [i for i, heads in enumerate(reach) if kind in heads]
            if not needing:
                continue
            index = torch.tensor(needing, device=head.device)
            decoded = decode(hidden[index]).double().reshape(len(needing), -1)
            width = decoded.shape[1]
            chosen = (head[index] == kind)[:, None]
            values[index, :width] = torch.where(chosen, decoded, values[index, :width])
        return values


def _moved(at: Advance, token: Tensor) -> dict[Count, Tensor]:
    return {
        Count.TOKEN: token,
        Count.STATE: at.state,
        Count.LEFT: at.left,
        Count.OBJECTS_LEFT: at.objects_left,
    }
