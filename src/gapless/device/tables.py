"""Constraint tables as tensors: a batch of rows moves over its sampled tokens at once.

In: a `constrain.table.Table` (built once per model), and per step the states, counters and tokens of the rows. Out:
their new states, counters, value heads and end flags. Row for row the same as `constrain.table.Walker.advance`, which
is the specification; no Python branch depends on a tensor's content, so the same lines run inside a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gapless.constrain.table import Table, TokenClass
from gapless.kernels.rows import Automata
from gapless.records import Flags, ValueHead


@dataclass(frozen=True, slots=True)
class Advance:
    """Where B rows stand after one token each; all int64 [B]. `head` holds `ValueHead`s, `flags` `Flags`."""

    state: Tensor
    left: Tensor
    objects_left: Tensor
    head: Tensor
    flags: Tensor


class DeviceTable:
    """One model's automata on the device. Immutable after construction."""

    def __init__(self, table: Table, device: torch.device) -> None:
        def put(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.array(array)).to(device=device, dtype=dtype)

        self.automata = Automata(
            masks=put(table.masks, torch.bool),
            mask=put(table.mask, torch.int64),
            classes=put(table.classes, torch.int64),
            following=put(table.following, torch.int64),
            head=put(table.head, torch.int64),
            ends=put(table.ends, torch.bool),
            counts=put(table.counts, torch.bool),
            resets=put(table.resets, torch.bool),
            on_limit=put(table.on_limit, torch.int64),
        )
        self.end = int(np.flatnonzero(table.classes == TokenClass.END)[0])
        self.answers = put(table.answers, torch.bool)
        self.may = put(_may(table), torch.int32)
        self._heads_from = _heads_from(table)

    def masks(self, state: Tensor) -> Tensor:
        """State int64 [B] -> bool [B, vocab], True where the next token may be."""
        return self.automata.masks[self.automata.mask[state]]

    def heads_from(self, state: int) -> frozenset[ValueHead]:
        """Which value heads a row that begins in `state` can ever need; known on the host, so no tensor is asked."""
        return self._heads_from[state]

    def advance(self, state: Tensor, left: Tensor, left_next: Tensor, objects_left: Tensor, token: Tensor) -> Advance:
        """Move B rows over one token each. All arguments int64 [B]; `token` must hold legal ids everywhere."""
        of = self.automata
        cls = of.classes[token]
        counts, resets = of.counts[state, cls], of.resets[state, cls]
        objects_left = objects_left - counts.long()
        left = torch.where(resets, left_next, left - 1)
        stop = of.ends[state, cls]
        served = counts & (objects_left <= 0) & ~stop
        spent = (left <= 0) & ~stop & ~served
        on_limit = of.on_limit[state]
        diverted = spent & (on_limit >= 0) & ~resets
        ended = served | (spent & ~diverted)
        return Advance(
            state=torch.where(diverted, on_limit, of.following[state, cls]),
            left=torch.where(diverted, 1, left),
            objects_left=objects_left,
            head=of.head[state, cls],
            flags=stop.long() * int(Flags.STOP) + ended.long() * int(Flags.LENGTH),
        )


def _may(table: Table) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """For every state, which values its next token may carry, as `Model.values` is told."""
    classes = table.head.shape[1]
    allowed = [np.bincount(table.classes[mask], minlength=classes) > 0 for mask in table.masks]
    can = np.stack(allowed)[table.mask]
    coord, size = (((table.head == int(head)) & can).any(axis=1) for head in (ValueHead.COORD, ValueHead.SIZE))
    return np.asarray(coord + 2 * size)


def _heads_from(table: Table) -> list[frozenset[ValueHead]]:
    """For every state the value heads on any way that leads on from it."""
    states = len(table.mask)
    heads = []
    for first in range(states):
        seen, ahead = {first}, [first]
        while ahead:
            at = ahead.pop()
            ways = {int(s) for s in table.following[at]} | ({int(table.on_limit[at])} - {-1})
            ahead.extend(ways - seen)
            seen |= ways
        heads.append(frozenset(ValueHead(int(h)) for h in np.unique(table.head[sorted(seen)])) - {ValueHead.NONE})
    return heads
