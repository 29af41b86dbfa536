"""Prompts' kernels in plain torch, for a CPU: run by run, and a set of kernels that offers them.

What flows in and out is `kernels.prompts.PromptKernels`; rows of matrices that are nobody's are left NaN, so that
whoever reads them shows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gapless.kernels import reference
from gapless.kernels.fused import Decoder
from gapless.kernels.graphed import Graphed
from gapless.kernels.kept import as_stored
from gapless.kernels.prompts import Runs, Turns
from gapless.kernels.triton.folding import pack

TILE = 8


class PlainPrompts:
    """`calls` names what was called, in order; `products` are rows and columns of what `linear` made."""

    tile = TILE

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.products: list[tuple[int, ...]] = []

    def fits(self, dtype: torch.dtype, dim: int, heads: int, page_size: int) -> bool:
        return True

    def norm(self, x: Tensor, n: Tensor, ln: tuple[Tensor, Tensor], bias: Tensor | None) -> None:
        self.calls.append("norm")
        n.copy_(reference.layer_norm(x, *ln))
        if bias is not None:
            x += bias

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        self.calls.append("linear")
        self.products.append(tuple(out.shape))
        said = F.linear(x, weight, bias)
        out.copy_(out + said if bias is None else said)

    def place(
        self,
        up: Tensor,
        keys: Tensor,
        values: Tensor,
        runs: Runs,
        turns: Turns,
        inner: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        self.calls.append("place")
        inner.fill_(torch.nan)
        heads = keys.shape[1]
        dim = heads * keys.shape[3]
        inner[:, dim : dim + up.shape[1] - 3 * dim] = reference.gelu_tanh(up[:, 3 * dim :])
        for rows, at, pages in self._runs(runs, keys):
            assert (runs.of[rows] == runs.of[rows][0]).all()
            own = pages[at]
            _, k, v = _parts(up[rows, : 3 * dim], at, turns, rows, heads)
            reference.write_kv(k, v, keys, values, (own, at % keys.shape[2]), scales)

    def attend(
        self,
        up: Tensor,
        keys: Tensor,
        values: Tensor,
        runs: Runs,
        turns: Turns,
        inner: Tensor,
        last: bool,
        scales: Tensor | None = None,
    ) -> None:
        self.calls.append("attend")
        heads, page = keys.shape[1], keys.shape[2]
        dim = heads * keys.shape[3]
        for number, (rows, at, pages) in enumerate(self._runs(runs, keys)):
            q, _, _ = _parts(up[rows, : 3 * dim], at, turns, rows, heads)
            every = torch.arange(len(pages))
            k, v = (part.to(q.dtype) for part in reference.read_kv(keys, values, (pages, every % page), scales))
            scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
            hidden = every >= runs.sees[rows, None]
            seen = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
            said = torch.einsum("hqk,khd->qhd", seen, torch.where(hidden.all(0)[:, None, None], 0.0, v)).flatten(1)
            assert not runs.tiles[runs.tiles[:, 0] == number].numel() or len(rows) <= TILE * len(
                runs.tiles[runs.tiles[:, 0] == number]
            )
            wanted = rows[-1:] if last else rows
            inner[wanted, :dim] = said[-len(wanted) :]

    def tails(self, keys: Tensor, values: Tensor, runs: Runs) -> None:
        self.calls.append("tails")
        page = keys.shape[3]
        for _, count, _, base, source, row in runs.runs.tolist():
            if count and base % page:
                target = int(runs.tables[row, base // page])
                for cache in map(as_stored, (keys, values)):
                    cache[:, target, :, : base % page] = cache[:, source, :, : base % page]

    def _runs(self, runs: Runs, keys: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each run: its rows, their positions, and the pages of all positions to its end."""
        found = []
        for first, count, position, base, source, row in runs.runs.tolist():
            if not count:
                continue
            page, at = keys.shape[2], torch.arange(position + count)
            lead = (at < base) & (at >= base // page * page)
            pages = torch.where(lead, source, runs.tables[row, at // page])
            found.append((torch.arange(first, first + count), at[position:], pages))
        return found


def _parts(qkv: Tensor, at: Tensor, turns: Turns, rows: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys, turned, and values, [count, H, D]."""
    q, k, v = qkv.view(len(at), 3, heads, -1).unbind(1)
    if turns.said is not None and turns.levels is not None:
        of_q, of_v = turns.said[rows].tanh().view(len(at), 2, -1).unbind(1)
        q, v = q * (of_q + turns.levels[at])[..., None], v * (of_v + turns.levels[at])[..., None]
    graphed = Graphed()
    return graphed.rope(q, turns.cos[at], turns.sin[at]), graphed.rope(k, turns.cos[at], turns.sin[at]), v


class _Laid:
    """Weights laid out as for fused steps, and no step."""

    def __init__(self, decoder: Decoder) -> None:
        self.weights = pack(decoder).decoder

    def fits(self, rows: int, keys: Tensor) -> bool:
        return False

    def logits(self, hidden: Tensor) -> Tensor:
        norm, head = self.weights.ln, self.weights.head
        return F.linear(reference.layer_norm(hidden, norm.weight, norm.bias), head.weight, head.bias).float()


class Packing(Graphed):
    """Graphed kernels that lay weights out and offer prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = PlainPrompts()
        self.prompts = self.plain

    def fuse(self, decoder: Decoder) -> _Laid:
        return _Laid(decoder)
