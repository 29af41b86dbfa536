"""The tail of a step: mask, sample, decode values, advance the rows, write the record.

In: logits and hidden states of a batch of rows, what is asked of each, and host masks where rows have them. Out: packed
lines of the rows that were asked; the row store has moved on (I1). The end is judged here, once (I6). A done row emits
MUTED, keeps its state and draws nothing; a row whose logits or values are not finite emits NONFINITE and is done;
neither touches another row, and a row of which nothing is asked keeps its state and its line.

Rows choose with `torch.where`; only what no row of a batch can need is left out, and that is known on the host
(`TailKind`). So the same lines run inside a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from gapless.device.grammars import DeviceGrammars
from gapless.device.packet import Asked, Count, Real
from gapless.device.rows import RowStore
from gapless.device.sampler import Draws, Params, sample_rows
from gapless.device.tables import Advance, DeviceTable
from gapless.kernels.rows import Ends
from gapless.records import POISON, Flags, Ints, RowStart, ValueHead


class TailKind(NamedTuple):
    """What some row of a batch may need. `full`: a temperature or logprobs; `spatial`: coordinates or sizes; `ruled`: a
    token table."""

    full: bool = False
    spatial: bool = False
    masked: bool = False
    """Masks were built on the host; they come with the batch."""
    adjusted: bool = False
    """Logits are changed before, and tokens counted behind it: see `device.adjust`. A tail itself does neither."""
    ruled: bool = False

    @property
    def name(self) -> str:
        """For people: greedy, full, spatial, full+spatial, with "+masked" where masks come from the host."""
        parts = [word for word in ("full", "spatial", "masked", "ruled", "adjusted") if getattr(self, word)]
        return "+".join(parts) or "greedy"


class Feeds(NamedTuple):
    """What some row of a forward may need. `adapted`: it has an adapter; `spatial`: its token may carry a value."""

    adapted: bool = False
    spatial: bool = True

    @property
    def name(self) -> str:
        """For people."""
        parts = [word for word in ("spatial", "adapted") if getattr(self, word)]
        return " ".join([*parts, "forward"])


KINDS = (
    TailKind(),
    TailKind(spatial=True),
    TailKind(full=True),
    TailKind(full=True, spatial=True),
)
RULED = (
    TailKind(ruled=True),
    TailKind(full=True, ruled=True),
    TailKind(full=True, spatial=True, ruled=True),
)
"""With token tables: where all are greedy, where none carries a value, and one that can do all."""
MASKED = TailKind(full=True, spatial=True, masked=True)
"""Rows with host masks are few and wait anyway: one kind that can do all serves them."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Where a tail of B rows reads and writes; views of memory that stays.

    `step` int64 [1], `rows` int64 [B], `asked` int64 [B] of `Asked`, `logits` float32 [B, vocab], `hidden` [B, dim],
    `masks` bool [B, vocab] (read by masked kinds alone), `lines` float64 [B, WIDTH].
    """

    step: Tensor
    rows: Tensor
    asked: Tensor
    logits: Tensor
    hidden: Tensor
    masks: Tensor
    lines: Tensor

    def first(self, lines: Tensor) -> Batch:
        """As many of its first rows as there are `lines`, which they write."""
        parts = (self.rows, self.asked, self.logits, self.hidden, self.masks)
        rows, asked, logits, hidden, masks = (part[: len(lines)] for part in parts)
        return Batch(self.step, rows, asked, logits, hidden, masks, lines)


class Heads(Protocol):
    """What a tail asks of a model, see `Model`."""

    def values(self, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `Model`."""
        ...


class Tail:
    """Samples rows of one store with one model's value heads and automata."""

    def __init__(
        self, model: Heads, table: DeviceTable, rows: RowStore, grammars: DeviceGrammars | None = None
    ) -> None:
        """`grammars`: for ruled kinds."""
        self._model = model
        self._table = table
        self._rows = rows
        self._grammars = grammars

    def run(self, batch: Batch, kind: TailKind) -> None:
        """Sample, close or leave alone each row of the batch."""
        kernels = self._rows.kernels
        if kernels is not None:
            end = kernels.likeliest if kind.ruled else kernels.greedy
            end = kernels.full if kind.full or kind.masked else end
            end(self._rows.all, self._table.automata, self._ends(batch, kind))
            return
        rows, asked = batch.rows, batch.asked != Asked.NOTHING
        counts, reals = self._rows.counts[rows], self._rows.reals[rows]
        state = counts[:, Count.STATE]
        live = (counts[:, Count.DONE] == 0) & (batch.asked == Asked.SAMPLE)
        params = Params(
            temperature=torch.where(live, reals[:, Real.TEMPERATURE], 0.0),
            top_p=reals[:, Real.TOP_P],
            seed=counts[:, Count.SEED],
            position=counts[:, Count.POSITION] + 1,
            top_logprobs=torch.where(live, counts[:, Count.TOP_LOGPROBS], -1),
            drawn=kind.full,
            scored=kind.full,
        )
        draws = sample_rows(batch.logits, self._masks(batch, counts, kind), params)
        at = self._table.advance(
            state, counts[:, Count.LEFT], counts[:, Count.LEFT_NEXT], counts[:, Count.OBJECTS_LEFT], draws.token
        )
        values = self._values(at.head, batch.hidden, kind)
        moves = live & draws.finite & torch.isfinite(values).all(dim=1)
        moved = _moved(at, draws.token)
        if kind.ruled:
            assert self._grammars is not None
            moved[Count.GRAMMAR_STATE] = self._grammars.advance(counts, draws.token)
        self._rows.advance(rows, moves, moved, values)
        flags = torch.where(moves, at.flags, torch.where(live, int(Flags.NONFINITE), int(Flags.MUTED)))
        self._rows.end(rows, asked & (flags != 0))
        where = torch.stack([batch.step.expand(len(rows)), rows, counts[:, Count.EPOCH], flags], dim=1)
        lines = _pack_lines(where, torch.where(moves, draws.token, POISON), values, draws)
        batch.lines.copy_(torch.where(asked[:, None], lines, batch.lines))

    def _ends(self, batch: Batch, kind: TailKind) -> Ends:
        """What a kernel needs of the batch."""
        values = None
        if kind.spatial:
            assert self._rows.kernels is not None
            wanted = self._rows.kernels.wishes(self._rows.all, batch.rows, self._table.may)
            values = self._model.values(batch.hidden, wanted)
        masks = batch.masks if kind.masked else None
        grammars = self._grammars.all if kind.ruled and self._grammars is not None else None
        return Ends(batch.step, batch.rows, batch.asked, batch.logits, batch.lines, values, masks, grammars)

    def _masks(self, batch: Batch, counts: Tensor, kind: TailKind) -> Tensor:
        """Bool [B, vocab], True where each row's next token may be."""
        if kind.masked:
            return batch.masks
        masks = self._table.masks(counts[:, Count.STATE])
        if not kind.ruled:
            return masks
        assert self._grammars is not None
        return self._grammars.masks(counts, masks)

    def _values(self, head: Tensor, hidden: Tensor, kind: TailKind) -> Tensor:
        """The values that ride on the sampled tokens, float64 [B, 2], POISON where there are none."""
        values = torch.full((len(head), 2), float(POISON), dtype=torch.float64, device=head.device)
        if not kind.spatial:
            return values
        first, size = self._model.values(hidden)
        coord = torch.cat([first.double()[:, None], values[:, :1]], dim=1)
        values = torch.where((head == ValueHead.COORD)[:, None], coord, values)
        return torch.where((head == ValueHead.SIZE)[:, None], size.double(), values)


class Needs:
    """The host's note of what each row's steps may need: known from how the row began, so no tensor is asked.

    What many rows need together is worked out when another array of rows comes; the same one asks again and again.
    """

    def __init__(self, table: DeviceTable, rows: int) -> None:
        self._table = table
        self._full = np.zeros(rows, dtype=np.bool_)
        self._spatial = np.zeros(rows, dtype=np.bool_)
        self._adapted = np.zeros(rows, dtype=np.bool_)
        self._adjusted = np.zeros(rows, dtype=np.bool_)
        self._ruled = np.zeros(rows, dtype=np.bool_)
        self._fed: tuple[Ints | None, Feeds] = (None, Feeds())
        self._sampled: tuple[Ints | None, TailKind] = (None, TailKind())

    def begin(self, start: RowStart) -> None:
        """A row begins."""
        self._full[start.ref.row] = start.temperature > 0 or start.top_logprobs >= 0
        self._spatial[start.ref.row] = bool(self._table.heads_from(start.state))
        self._adapted[start.ref.row] = start.adapter != 0
        self._adjusted[start.ref.row] = start.adjustment is not None
        self._ruled[start.ref.row] = start.grammar != 0
        self._fed, self._sampled = (None, Feeds()), (None, TailKind())

    def kind(self, rows: Ints) -> TailKind:
        """What a batch of these rows, int64 [n], may need."""
        if rows is not self._sampled[0]:
            full, spatial, adjusted = (bool(own[rows].any()) for own in (self._full, self._spatial, self._adjusted))
            ruled = bool(self._ruled[rows].any())
            kind = RULED[2 if spatial else full] if ruled else TailKind(full, spatial)
            self._sampled = rows, kind._replace(adjusted=adjusted)
        return self._sampled[1]

    def masked(self, rows: Ints) -> TailKind:
        """The same where masks come from the host."""
        return MASKED._replace(adjusted=bool(self._adjusted[rows].any()))

    def feeds(self, rows: Ints) -> Feeds:
        """What a forward of these rows, int64 [n], may need."""
        if rows is not self._fed[0]:
            self._fed = rows, Feeds(bool(self._adapted[rows].any()), bool(self._spatial[rows].any()))
        return self._fed[1]


def _pack_lines(where: Tensor, token: Tensor, values: Tensor, draws: Draws) -> Tensor:
    """Lines (see `device.record`) float64 [B, WIDTH] from `where` int64 [B, 4] (step, row, epoch, flags), `token` int64
    [B], `values` float64 [B, 2] and the draws."""
    reals = [values, draws.logprob[:, None], draws.top_ids.double(), draws.top_logprobs]
    return torch.cat([where.double(), token.double()[:, None], *reals], dim=1)


def _moved(at: Advance, token: Tensor) -> dict[Count, Tensor]:
    return {
        Count.TOKEN: token,
        Count.STATE: at.state,
        Count.LEFT: at.left,
        Count.OBJECTS_LEFT: at.objects_left,
    }
