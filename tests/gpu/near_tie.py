"""When two bf16 runs of one request may differ: from a near-tie on, and from nowhere else.

What flows in: a model, a request and two answers. What flows out: where they first differ and how close the choice was
there, computed anew by feeding the common beginning to the model alone, whole and token by token. Runs may differ at a
place whose two best scores are closer than 2^-6 of the score's size, or where the two ways of feeding already differ
about the best: the logits for an id, the bins of the coordinate or size head for a value.

With experts a rounding may swap the last expert that a token takes, which moves scores further than roundings do. Full
size models of random weights are therefore judged by a wider rule too (2^-4), and those beyond the narrow one counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gapless.constrain.table import Table, Walker
from gapless.models.base import RowAdapters
from gapless.models.moondream.model import Moondream
from gapless.records import Request, Token

SHARE = 2.0**-6
EXPERTS_SHARE = 2.0**-4
PAGE = 16


@dataclass(frozen=True)
class Divergence:
    """Two answers of request `id` differ first at token `place`, in an id or a value (`what`), where the two best
    scores are `gap` apart and the larger of them is `size` in magnitude."""

    id: int
    place: int
    what: str
    gap: float
    size: float

    @property
    def near(self) -> bool:
        """Whether it is a near-tie."""
        return self.gap <= SHARE * self.size

    def near_for(self, model: Moondream) -> bool:
        """The same, by the wider rule for a model with experts."""
        return self.gap <= (SHARE if model.config.text.moe is None else EXPERTS_SHARE) * self.size


def first_difference(a: Sequence[Token], b: Sequence[Token]) -> int | None:
    """The place of the first token that differs in id or values; the shorter one's end if it is a beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if (x.id, x.values) != (y.id, y.values):
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


@torch.inference_mode()
def divergence(
    model: Moondream,
    table: Table,
    request: Request,
    a: Sequence[Token],
    b: Sequence[Token],
    adapters: RowAdapters | None = None,
) -> Divergence | None:
    """How close the choice was where two greedy answers first differ; None if they are the same. `adapters`: the slot
    [1] that holds the request's adapter."""
    place = first_difference(a, b)
    if place is None:
        return None
    if place >= min(len(a), len(b)):  # equal so far, yet only one goes on: no rounding explains that
        return Divergence(request.id, place, "length", float("inf"), 0.0)
    states = [last_hidden(model, request, a[:place], adapters, single) for single in (False, True)]
    if a[place].id != b[place].id:
        scores = [_allowed(model, table, request, a[:place], hidden) for hidden in states]
        return Divergence(request.id, place, "id", *_closest(scores))
    if len(a[place].values) == 1:
        scores = [model.region.coord_decoder(hidden)[0] for hidden in states]
        return Divergence(request.id, place, "coord", *_closest(scores))
    which = 0 if a[place].values[0] != b[place].values[0] else 1
    scores = [model.region.size_decoder(hidden).view(2, -1)[which] for hidden in states]
    return Divergence(request.id, place, "size", *_closest(scores))


def last_hidden(
    model: Moondream,
    request: Request,
    said: Sequence[Token],
    adapters: RowAdapters | None = None,
    single: bool = False,
) -> Tensor:
    """Hidden state [1, dim] at the last of picture block, prompt and `said`, in a cache of its own. `single`: what was
    said is fed token by token."""
    prompt, device = request.prompt, model.device
    start = model.prefix if prompt.picture is not None else 0
    ids = [*prompt.ids, *(token.id for token in said)]
    values = torch.full((len(ids), 2), -1.0)
    for i, value in enumerate([*prompt.values, *(token.values for token in said)]):
        values[i, : len(value)] = torch.tensor(value)
    count = -(-(start + len(ids)) // PAGE)
    cache = model.new_cache(count + 1, PAGE)
    pages = torch.arange(1, count + 1, device=device)
    if prompt.picture is not None:
        crops = torch.from_numpy(prompt.picture.crops).to(device)
        model.prefill_prefix(model.encode_picture(crops, prompt.picture.tiling), cache, pages, adapters)
    x = model.embed(torch.tensor(ids, device=device), values.to(device))
    positions, fed = torch.arange(start, start + len(ids), device=device), 0
    for inset in prompt.insets:
        if fed < inset.at:
            model.forward(x[fed : inset.at], positions[fed : inset.at], pages[None], cache, adapters)
        shown = model.encode_picture(torch.from_numpy(inset.picture.crops).to(device), inset.picture.tiling)
        model.prefill_inset(shown, start + inset.at, cache, pages, adapters)
        fed = inset.at + len(shown)
    ends = [*range(len(prompt.ids), len(ids)), len(ids)] if single and said else [len(ids)]
    for end in ends:
        hidden = model.forward(x[fed:end], positions[fed:end], pages[None], cache, adapters)
        fed = end
    return hidden[-1:]


def _allowed(model: Moondream, table: Table, request: Request, said: Sequence[Token], hidden: Tensor) -> Tensor:
    """Logits of the ids that were allowed."""
    sampling = request.sampling
    walker = Walker.start(table, request.program, sampling.max_tokens, sampling.max_objects)
    walker.replay(tuple(said))
    mask = torch.from_numpy(walker.mask().copy()).to(hidden.device)
    return model.logits(hidden)[0][mask]


def _closest(ways: Sequence[Tensor]) -> tuple[float, float]:
    """The least gap of the two best scores in any way of computing them, 0 if the ways differ about the best; and the
    magnitude of the larger."""
    if ways[0].numel() < 2:
        return float("inf"), 0.0
    tops = [scores.float().topk(2) for scores in ways]
    best = [top.indices[0].item() for top in tops]
    gaps = [float(top.values[0] - top.values[1]) for top in tops]
    size = max(float(top.values.abs().max()) for top in tops)
    return (min(gaps) if len(set(best)) == 1 else 0.0), size
