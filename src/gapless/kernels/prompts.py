"""What a set of kernels may offer for prompts: tokens of several sequences in one matrix, layer by layer.

In: `Runs`, which says whose tokens are where, and the rooms of one layer. Out: the same rooms, filled. Nothing is
allocated and nothing is asked of the device, so a CUDA graph can hold a whole prompt; rows that fill a matrix up are no
run's, touch no page and are seen by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

RUN = 6
"""Numbers that describe a run."""


@dataclass(frozen=True, slots=True)
class Runs:
    """T tokens of R runs, pieces of sequences. `runs` int32 [R, RUN]: its first row in the matrix, how many tokens it
    has (0: there is no such run), the position of its first, `base`, `source`, and the row of its page table in
    `tables` int64 [rows, entries].

    Positions before `base` of the page in which `base` lies are in the page `source`, until `tails` has copied them to
    the table's own; a `base` of 0 says that there is none such. `of` int32 [T]: each token's run, -1 for none. `sees`
    int32 [T]: how many positions of its sequence it sees, its own at least. `tiles` int32 [N, 2]: runs cut into tiles,
    each a run, -1 for none, and how many tokens of it come before. `last` int64 [R]: the row of each run's last token,
    0 without one.
    """

    runs: Tensor
    of: Tensor
    sees: Tensor
    tiles: Tensor
    last: Tensor
    tables: Tensor


@dataclass(frozen=True, slots=True)
class Turns:
    """Cosines and signed sines float32 [positions, rotated dimensions]; with tau attention, what each token `said` of
    its heads' queries and values, before its tanh, [T, 2 H], and `levels` [positions, H]."""

    cos: Tensor
    sin: Tensor
    said: Tensor | None = None
    levels: Tensor | None = None


class PromptKernels(Protocol):
    """See the module. x [T, D], n [T, D], up [T, 3 D + FF] (queries, keys, values, and what feeds the feed-forward, if
    that is dense), inner [T, D + FF] (what attention saw, and the GELU of what is fed)."""

    tile: int
    """Tokens of a tile."""

    def fits(self, dtype: torch.dtype, dim: int, heads: int, page_size: int) -> bool:
        """Whether these kernels take decoders and pages like that."""
        ...

    def norm(self, x: Tensor, n: Tensor, ln: tuple[Tensor, Tensor], bias: Tensor | None) -> None:
        """LayerNorm of x in n; then x itself gets `bias` [D]."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """x [T, in] @ weight [out, in]^T + bias in `out` [T, out]; without a bias it is added to `out`."""
        ...

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
        """Keys, turned, and values, scaled, into their pages [pages, H, page, D / H]; the GELU of what is fed, in inner
        behind D numbers. What it leaves of keys and values in `up` is for `attend` alone. `scales` float32 [2, H] of
        pages in FP8, see `kernels.kept`."""
        ...

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
        """What the tokens see, in the first D numbers of inner. `last`: those of the last token of each run only."""
        ...

    def tails(self, keys: Tensor, values: Tensor, runs: Runs) -> None:
        """Copy to each run's own page what it read in `source`, in all layers [layers, pages, H, page, D / H]."""
        ...
