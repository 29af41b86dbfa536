"""Losses of a packed batch, and two helpers that are thrown away after training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from recipes.glint.data import GRID
from recipes.glint.model import Glint
from recipes.glint.streams import BINS
from torch import Tensor, nn

Batch = dict[str, Tensor]


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy ``[n]`` of ``[n, vocab]``."""
    return F.cross_entropy(logits.float(), target, reduction="none")


def soft_bins(logits: Tensor, place: Tensor, sigma: Tensor) -> Tensor:
    """KL divergence ``[...]`` of bins ``[..., 1024]`` from a Gaussian around a fractional bin (0 when matched)."""
    log_p = logits.float().log_softmax(-1)
    grid = torch.arange(BINS, device=logits.device)
    w = torch.exp(-0.5 * ((grid - place[..., None]) / sigma) ** 2)
    w = w / w.sum(-1, keepdim=True)
    return (w * (torch.log(w + 1e-30) - log_p)).sum(-1)


class Helpers(nn.Module):
    """Dense look-and-offset heads on image embeddings, and a pointer from hidden states to patches."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, 4 + 9 + 9 + 2)
        self.query, self.key = nn.Linear(dim, 64), nn.Linear(dim, 64)

    def dense_loss(self, image: Tensor, looks: Tensor, boxes: Tensor, on: Tensor) -> Tensor:
        """What every patch shows (size, colour, kind or ground) and the offset to its owner's centre."""
        look, offset, front = dense_targets(looks, boxes, on)
        out, weight = self.dense(image).float(), 0.1 + front
        total = out.new_zeros(())
        for i, (a, b) in enumerate(((0, 4), (4, 13), (13, 22))):
            ce = F.cross_entropy(out[..., a:b].flatten(0, 1), look[..., i].flatten(), reduction="none")
            total = total + (ce.view_as(weight) * weight).sum() / weight.sum()
        miss = F.smooth_l1_loss(out[..., 22:], offset, reduction="none", beta=0.1).sum(-1)
        return total + 4 * (miss * front).sum() / front.sum().clamp(min=1)

    def pointer_loss(self, hidden: Tensor, image: Tensor, row: Tensor, patch: Tensor, on: Tensor) -> Tensor:
        """Hidden states ``[n, dim]`` must point at the patch of the thing they are about; sum over ``n``."""
        keys = self.key(image)
        scores = torch.einsum("nd,npd->np", self.query(hidden), keys.index_select(0, row)).float() / 8
        return (F.cross_entropy(scores, patch, reduction="none") * on).sum()


@torch.no_grad()
def dense_targets(looks: Tensor, boxes: Tensor, on: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Owner of each patch: look + 1 ``[B, patches, 3]`` (0 is ground), offset ``[B, patches, 2]``, front."""
    g = (torch.arange(GRID, device=boxes.device) + 0.5) / GRID
    centre = torch.stack([g.repeat(GRID), g.repeat_interleave(GRID)], -1)
    away = centre[None, None] - boxes[:, :, None, :2]
    reach = (away.abs() / (boxes[:, :, None, 2:] / 2).clamp(min=1e-6)).amax(-1)
    holds = away.abs().amax(-1) <= 0.5 / GRID
    reach = torch.where(holds, 0.0, reach) + 99.0 * (on < 0.5)[..., None]
    near, owner = reach.min(1)
    front = near <= 1
    index = owner[..., None]
    look = torch.where(front[..., None], looks.gather(1, index.expand(-1, -1, 3)) + 1, 0)
    centres = boxes[:, :, :2].gather(1, index.expand(-1, -1, 2))
    return look, (centres - centre) * 8, front.float()


class Losses:
    """All terms of one batch; ``compiled`` fuses the wide ones."""

    def __init__(self, compiled: bool = False) -> None:
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.token_loss, self.soft_bins = wrap(token_loss), wrap(soft_bins)

    def __call__(
        self, net: Glint, helpers: Helpers, batch: Batch, *, image: Tensor, hidden: Tensor, sigma: tuple[Tensor, Tensor]
    ) -> dict[str, Tensor]:
        """Sums per picture (divided by the batch): token, coord, size, aim; and the mean dense loss."""
        pictures, length = batch["ids"].shape
        flat = hidden.flatten(0, 1)

        def at(name: str, field: str) -> tuple[Tensor, Tensor, Tensor]:
            where = batch["at_" + name]
            return flat.index_select(0, where), batch[field].flatten(0, 1)[where], batch["on_" + name] / pictures

        h, target, on = at("token", "target")
        weight = batch["weight"].flatten()[batch["at_token"]]
        out = {"token": (self.token_loss(net.text.logits(h), target.clamp(min=0)) * weight * on).sum()}
        h, place, on = at("coord", "coord_target")
        out["coord"] = (self.soft_bins(net.region.coord_decoder(h), place, sigma[0]) * on).sum()
        h, place, on = at("size", "size_target")
        logits = net.region.size_decoder(h).unflatten(-1, (2, BINS))
        out["size"] = (self.soft_bins(logits, place, sigma[1]).sum(-1) * on).sum()
        h, patch, on = at("aim", "aim")
        out["aim"] = helpers.pointer_loss(h, image, batch["at_aim"] // length, patch.clamp(min=0), on)
        out["dense"] = helpers.dense_loss(image, batch["looks"], batch["boxes"], batch["things"][..., 7])
        return out
