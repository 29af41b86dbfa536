"""Token tables on the device: an arena of slots at fixed addresses, so that a graph may read them.

In: tables on their way (`GrammarLoad`), and per step where rows stand. Out: which ids each may take, and where the one
it took leads. Row for row the same as `constrain.tokens.TokenWalker`, which is the specification; no Python branch
depends on a tensor's content. Who has which slot, and that nobody writes one which a step in flight reads, is the
engine's to see to (I5). A state that a slot's table does not have counts as its last one, so that a row whose table
never came reads nothing that is not there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gapless.device.packet import Count
from gapless.device.tables import DeviceTable
from gapless.kernels.rows import Grammars
from gapless.models.footprint import SPAN, SPARE
from gapless.records import DeviceLimits, GrammarLoad
from gapless.token_table import END

_WORDS = SPAN * 8 // 2
"""Int16 of a span: where a slot's numbers begin, how many classes a state has, and how many states there are."""
FAR = 2**30
"""More tokens than any answer has."""
BITS = 0xFFFF
"""Of a class: it is unsigned, though its tensor is not."""


def packed(load: GrammarLoad) -> npt.NDArray[np.int16]:
    """All of a table in one piece, as `DeviceGrammars.load` takes it: span, classes, following states, distances."""
    table = load.table
    span = np.array([load.first, table.following.shape[1], table.states], dtype=np.int64)
    parts = (span.view(np.int16), table.classes.view(np.int16), table.following.reshape(-1), table.distance)
    return np.concatenate(parts)


class DeviceGrammars:
    """The slots of one device; only the compute stream touches them. Slot 0 is empty: rows without a table have it."""

    def __init__(self, limits: DeviceLimits, table: DeviceTable, device: torch.device) -> None:
        slots, self._vocab = limits.grammars + 1, limits.vocab
        numbers = limits.grammar_numbers + SPARE  # a row whose table never came may read behind those of the last one
        self.all = Grammars(
            classes=torch.zeros((slots, limits.vocab), dtype=torch.int16, device=device),
            numbers=torch.empty(numbers, dtype=torch.int16, device=device),  # touched when used
            spans=torch.zeros((slots, SPAN), dtype=torch.int64, device=device),
            answers=table.answers,
        )

    @torch.inference_mode()
    def load(self, slot: int, first: int, packed: Tensor) -> None:
        """Put a table, int16 [n] as `packed` makes it, into a slot, its numbers from `first` on. In stream order."""
        span, classes, numbers = torch.split(packed, [_WORDS, self._vocab, len(packed) - _WORDS - self._vocab])
        self.all.classes[slot].copy_(classes)
        self.all.numbers[first : first + len(numbers)].copy_(numbers)
        self.all.spans[slot].copy_(span.view(torch.int64))

    def ruled(self, counts: Tensor) -> Tensor:
        """Counts int64 [B, ...] of rows -> bool [B]: whose next token a table says."""
        return (counts[:, Count.GRAMMAR] != 0) & self.all.answers[counts[:, Count.STATE]]

    def masks(self, counts: Tensor, others: Tensor) -> Tensor:
        """Bool [B, vocab], True where the next token may be: of rows that a table rules what it allows and leaves room
        to finish, if there was enough; for all other rows `others`."""
        of, ruled = self.all, self.ruled(counts)
        slot, state, left = (counts[:, column] for column in (Count.GRAMMAR, Count.GRAMMAR_STATE, Count.LEFT))
        first, width, states = of.spans[slot].unbind(1)
        distances, last = first + states * width, (states - 1).clamp(min=0)
        state = torch.minimum(state, last)
        classes = of.classes[slot].long() & BITS
        to = of.numbers[(first + state * width)[:, None] + classes].long()
        to = torch.where(ruled[:, None], to, -1)
        left = torch.where(of.numbers[distances + state] + 1 <= left, left, FAR)
        after = of.numbers[distances[:, None] + torch.minimum(to.clamp(min=0), last[:, None])].long()
        return torch.where(ruled[:, None], (to >= 0) & ((classes == END) | (after + 2 <= left[:, None])), others)

    def advance(self, counts: Tensor, token: Tensor) -> Tensor:
        """The states of rows behind `token` int64 [B], one that each may take."""
        of, state = self.all, counts[:, Count.GRAMMAR_STATE]
        first, width, states = of.spans[counts[:, Count.GRAMMAR]].unbind(1)
        last = (states - 1).clamp(min=0)
        cls = of.classes[counts[:, Count.GRAMMAR], token].long() & BITS
        to = of.numbers[first + torch.minimum(state, last) * width + cls].long()
        return torch.where(self.ruled(counts), torch.minimum(to.clamp(min=0), last), state)
