"""When two bf16 runs of one request may differ: from a near-tie on, and from nowhere else.

What flows in: a model, a request and two answers. What flows out: where they first differ and how close the choice was
there, computed anew by feeding the common beginning to the model alone, whole and token by token. Runs may differ at a
place whose two best scores are closer than 2^-6 of the score's size, or where the two ways of feeding already differ
about the best: the logits for an id, the bins of the coordinate or size head for a value.

With experts a rounding may swap the last expert that a token takes, which moves scores further than roundings do. Full
size models of random weights are therefore judged by a wider rule too, and those beyond the narrow one counted: 2^-4 of
the size, or, where the same model in float32 is at hand, what bf16 is seen to do to the best scores at this very place.
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
ERRORS = 4.0
"""Two scores are both wrong, in both runs: how many errors a gap may be."""
PAGE = 16


@dataclass(frozen=True)
class Divergence:
    """Two answers of request `id` differ first at token `place`, in an id or a value (`what`), where the two best
    scores are `gap` apart and the larger of them is `size` in magnitude. `error`: how wrong the best are there, if
    measured."""

    id: int
    place: int
    what: str
    gap: float
    size: float
    error: float = 0.0

    @property
    def near(self) -> bool:
        """Whether it is a near-tie."""
        return self.gap <= SHARE * self.size

    def near_for(self, model: Moondream) -> bool:
        """The same, by the wider rule for a model with experts."""
        if model.config.text.moe is None:
            return self.near
        return self.gap <= max(EXPERTS_SHARE * self.size, ERRORS * self.error)


def first_difference(a: Sequence[Token], b: Sequence[Token]) -> int | None:
    """The place of the first token that differs in id or values; the shorter one's end if it is a beginning."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if (x.id, x.values) != (y.id, y.values):
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


@dataclass(frozen=True)
class Reader:
    """A model, and where an answer's adapter lies in its slots: [1]."""

    model: Moondream
    adapters: RowAdapters | None = None


@torch.inference_mode()
def divergence(
    reader: Reader, table: Table, request: Request, a: Sequence[Token], b: Sequence[Token], exact: Reader | None = None
) -> Divergence | None:
    """How close the choice was where two greedy answers first differ; None if they are the same. `exact`: the model in
    float32, to measure by how much the scores are wrong."""
    place = first_difference(a, b)
    if place is None:
        return None
    if place >= min(len(a), len(b)):  # equal so far, yet only one goes on: no rounding explains that
        return Divergence(request.id, place, "length", float("inf"), 0.0)
    what = "id" if a[place].id != b[place].id else "coord" if len(a[place].values) == 1 else "size"
    which = int(what == "size" and a[place].values[0] == b[place].values[0])
    ways = [_scores(reader, table, request, a[:place], what, which, single) for single in (False, True)]
    error = 0.0
    if exact is not None:
        error = _error(ways, _scores(exact, table, request, a[:place], what, which, False))
    return Divergence(request.id, place, what, *_closest(ways), error)


def _scores(
    reader: Reader, table: Table, request: Request, said: Sequence[Token], what: str, which: int, single: bool
) -> Tensor:
    """What the next id or value is chosen from: float32 [n]. `which` of a size's two."""
    model, hidden = reader.model, last_hidden(reader.model, request, said, reader.adapters, single)
    if what == "id":
        return _allowed(model, table, request, said, hidden).float()
    if what == "coord":
        return model.region.coord_scores(hidden)[0].float()
    return model.region.size_scores(hidden)[0, which].float()


def _error(ways: Sequence[Tensor], exact: Tensor) -> float:
    """The most by which the two best scores of any way are wrong."""
    best = torch.cat([way.topk(min(2, len(way))).indices for way in (*ways, exact)])
    return max(float((way - exact)[best].abs().max()) for way in ways)


def last_hidden(
    model: Moondream,
    request: Request,
    said: Sequence[Token],
    adapters: RowAdapters | None = None,
    single: bool = False,
) -> Tensor:
    """Hidden state [1, dim] at the last of picture block, prompt and `said`, in a cache of its own. `single`: what was
    said is fed token by token."""
    return last_fed(model, request, said, adapters, single)[-1:]


def last_fed(
    model: Moondream,
    request: Request,
    said: Sequence[Token],
    adapters: RowAdapters | None = None,
    single: bool = False,
) -> Tensor:
    """The same of all that was fed last [n, dim]: behind the pictures, unless `single`, the rest of the prompt too."""
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
        crops = torch.tensor(prompt.picture.crops, device=device)
        model.prefill_prefix(model.encode_picture(crops, prompt.picture.tiling), cache, pages, adapters)
    x = model.embed(torch.tensor(ids, device=device), values.to(device))
    positions, fed = torch.arange(start, start + len(ids), device=device), 0
    for inset in prompt.insets:
        if fed < inset.at:
            model.forward(x[fed : inset.at], positions[fed : inset.at], pages[None], cache, adapters)
        shown = model.encode_picture(torch.tensor(inset.picture.crops, device=device), inset.picture.tiling)
        model.prefill_inset(shown, start + inset.at, cache, pages, adapters)
        fed = inset.at + len(shown)
    ends = [*range(len(prompt.ids), len(ids)), len(ids)] if single and said else [len(ids)]
    for end in ends:
        hidden = model.forward(x[fed:end], positions[fed:end], pages[None], cache, adapters)
        fed = end
    return hidden


def _allowed(model: Moondream, table: Table, request: Request, said: Sequence[Token], hidden: Tensor) -> Tensor:
    """Logits of the ids that were allowed."""
    sampling = request.sampling
    walker = Walker.start(table, request.program, sampling.max_tokens, sampling.max_objects)
    for token in said:
        walker.advance(token.id)
    mask = torch.from_numpy(walker.mask().copy()).to(hidden.device)
    return model.logits(hidden)[0][mask]


def _closest(ways: Sequence[Tensor]) -> tuple[float, float]:
    """The least gap of the two best scores in any way of computing them, 0 if the ways differ about the best; and the
    magnitude of the larger."""
    if ways[0].numel() < 2:
        return float("inf"), 0.0
    tops = [scores.topk(2) for scores in ways]
    best = [top.indices[0].item() for top in tops]
    gaps = [float(top.values[0] - top.values[1]) for top in tops]
    size = max(float(top.values.abs().max()) for top in tops)
    return (min(gaps) if len(set(best)) == 1 else 0.0), size
