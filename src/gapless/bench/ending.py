"""A model whose answers end when the engine does not expect it.

In: a model, and between which positions answers end. Out: the same model, but its end token is never likely until a
drawn position, and certain from there on, whether tokens are drawn or the likeliest taken. The engine cannot know that
position (the token limit is far away), so every end is a surprise, as with real answers, and makes zombies at depth 2.

The position is drawn per page: a row is known by the page that holds its first own position after the picture block,
which no other row has. The forward stamps the first hidden number of a token that stands at its end, the head reads the
stamp. All of it is elementwise on the device: no sync, the same lines inside a CUDA graph; it adds four small kernels
to a step, one of them behind the head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gapless.models.base import AdapterBank, KVCache, Model, PictureTower, Prompts, RowAdapters

STAMP = 32768.0
"""A hidden number no finite model gets near; exact in bfloat16."""
MIDDLE = STAMP / 2
"""The end's logit is the first hidden number less this: then it is certain with a stamp, and never likely without."""


class EndingModel:
    """See the module. `low`, `high`: the token that follows position p is the end for the first p in low..high - 1
    that the row's page drew."""

    def __init__(self, model: Model, end: int, low: int, high: int, seed: int = 0) -> None:
        self._model = model
        self._end = end
        self._between = (low, high)
        self._seed = seed
        self._ends = torch.zeros(0, dtype=torch.int64, device=model.device)
        self._column = 0
        self.vocab = model.vocab
        self.prefix = model.prefix
        self.max_context = model.max_context
        self.device = model.device
        self.dtype = model.dtype

    @torch.inference_mode()
    def redraw(self, low: int, high: int, seed: int) -> None:
        """Let answers end between other positions from now on. Only while nothing is in flight."""
        self._between, self._seed = (low, high), seed
        self._ends.copy_(self._drawn(len(self._ends)))  # in place: graphs that were captured read it
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _drawn(self, pages: int) -> Tensor:
        """Each page's end, on the host."""
        ends = torch.randint(*self._between, (pages,), generator=torch.Generator().manual_seed(self._seed))
        ends[0] = self.max_context  # the scrap page's rows are done, and write nothing
        return ends

    def page_bytes(self, page_size: int) -> int:
        """See `Model`."""
        return self._model.page_bytes(page_size)

    @property
    def picture_bytes(self) -> int:
        """See `Model`."""
        return self._model.picture_bytes

    def new_cache(self, pages: int, page_size: int) -> KVCache:
        """See `Model`. Draws every page's end. One cache at a time."""
        self._ends = self._drawn(pages).to(self.device)
        self._column = self.prefix // page_size
        return self._model.new_cache(pages, page_size)

    def new_prompts(self, page_size: int, most: int, runs: int) -> Prompts | None:
        """See `Model`. Their hidden states have no stamps: no prompt ends an answer before its first token."""
        return self._model.new_prompts(page_size, most, runs)

    @property
    def tower(self) -> PictureTower | None:
        """See `Model`."""
        return self._model.tower

    def encode_picture(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """See `Model`."""
        return self._model.encode_picture(crops, tiling)

    def adapter_bytes(self, rank: int) -> int:
        """See `Model`."""
        return self._model.adapter_bytes(rank)

    def new_adapters(self, slots: int, rank: int) -> AdapterBank:
        """See `Model`."""
        return self._model.new_adapters(slots, rank)

    def prefill_prefix(
        self, picture: Tensor, cache: KVCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """See `Model`."""
        self._model.prefill_prefix(picture, cache, pages, adapters)

    def prefill_inset(
        self, picture: Tensor, start: int, cache: KVCache, pages: Tensor, adapters: RowAdapters | None = None
    ) -> None:
        """See `Model`."""
        self._model.prefill_inset(picture, start, cache, pages, adapters)

    def embed(self, ids: Tensor, values: Tensor | None) -> Tensor:
        """See `Model`."""
        return self._model.embed(ids, values)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        tables: Tensor,
        cache: KVCache,
        adapters: RowAdapters | None = None,
    ) -> Tensor:
        """See `Model`; the first hidden number of a token at or after its row's end is `STAMP`."""
        hidden = self._model.forward(x, positions, tables, cache, adapters)
        over = positions >= self._ends.index_select(0, tables[:, self._column])
        hidden[:, 0].masked_fill_(over, STAMP)
        return hidden

    def any_width(self, rows: int, cache: KVCache, adapters: AdapterBank | None = None) -> bool:
        """See `Model`."""
        return self._model.any_width(rows, cache, adapters)

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Model`; the end is certain after a stamp and never likely without one."""
        scores = self._model.logits(hidden)
        torch.sub(hidden[:, 0], MIDDLE, out=scores[:, self._end])
        return scores

    def values(self, hidden: Tensor, wanted: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `Model`."""
        return self._model.values(hidden, wanted)

    def coord_value(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        return self._model.coord_value(hidden)

    def size_value(self, hidden: Tensor) -> Tensor:
        """See `Model`."""
        return self._model.size_value(hidden)


class BlindEndingModel(EndingModel):
    """The same, and pictures are not looked at: each has the same made-up embedding, so that a measurement of the
    decoder does not wait for the tower. Every picture still has keys and values of its own."""

    @property
    def tower(self) -> PictureTower | None:
        """None: see the class."""
        return None

    def encode_picture(self, crops: Tensor, tiling: tuple[int, int]) -> Tensor:
        """See `Model`: the embeddings of ordinary words."""
        ids = torch.arange(self.prefix - 1, device=self.device) % (self.vocab // 2) + 10
        return self.embed(ids, None)
