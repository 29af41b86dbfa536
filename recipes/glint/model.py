"""The Moondream 2 architecture for training: packed streams behind one picture, no caches except for evaluation.

Module names are the checkpoint's tensor names, so ``state_dict`` keys with ``model.`` in front are the exported file.
Sizes come from ``config.json``. Letters in shapes: B pictures, N crops, P prefix (BOS + patches), S packed positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from recipes.glint.streams import COORD, EOS, SIZE
from torch import Tensor, nn

Config = dict[str, Any]
Cache = list[tuple[Tensor, Tensor]]


class MLP(nn.Module):
    """Two linear layers with a tanh-approximated GELU between."""

    def __init__(self, dim: int, inner: int, out: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, inner), nn.Linear(inner, out)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim] -> [..., out]``."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class Attention(nn.Module):
    """The projections of attention; the blocks decide who sees whom."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[B, T, dim]`` to three ``[B, heads, T, head_dim]``."""
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v

    def merge(self, o: Tensor) -> Tensor:
        """``[B, heads, T, head_dim]`` back to ``[B, T, dim]``, projected."""
        out: Tensor = self.proj(o.transpose(1, 2).flatten(2))
        return out


class VisionBlock(nn.Module):
    """Pre-LN block: every patch of a crop sees every other."""

    def __init__(self, dim: int, inner: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, heads), MLP(dim, inner, dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, patches, dim]``."""
        x = x + self.attn.merge(F.scaled_dot_product_attention(*self.attn.split(self.ln1(x))))
        return x + self.mlp(self.ln2(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of the first half of every head; cos and sin ``[B, 1, T, rot / 2]``."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    return torch.cat([(a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype), rest], -1)


class TextBlock(nn.Module):
    """Parallel block: attention and MLP read one LayerNorm; the sum is (x + attention) + MLP."""

    def __init__(self, dim: int, inner: int, heads: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim)
        self.attn, self.mlp = Attention(dim, heads), MLP(dim, inner, dim)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, prefix: int) -> Tensor:
        """``[B, P + S, dim]``: the prefix sees itself, the packed rest what ``mask [B, 1, S, P + S]`` allows."""
        n = self.ln(x)
        q, k, v = self.attn.split(n)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        one = F.scaled_dot_product_attention(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix])
        m = mask.to(q.dtype).expand(-1, q.shape[1], -1, -1)
        two = F.scaled_dot_product_attention(q[:, :, prefix:], k, v, attn_mask=m)
        return x + self.attn.merge(torch.cat([one, two], 2)) + self.mlp(n)

    def step(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The same with a cache: new positions ``[B, T, dim]`` see the cached ones and, by ``mask``, each other."""
        n = self.ln(x)
        q, k, v = self.attn.split(n)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        m = None if mask is None else mask.to(q.dtype)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=m)
        return x + self.attn.merge(o) + self.mlp(n), (k, v)


class Vision(nn.Module):
    """Patch encoder and the projection of global and stitched local features."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.patch, self.grid, self.margin = (
            c["enc_patch_size"],
            c["crop_size"] // c["enc_patch_size"],
            c["overlap_margin"],
        )
        dim = c["enc_dim"]
        self.patch_emb = nn.Linear(c["in_channels"] * self.patch**2, dim)
        self.pos_emb = nn.Parameter(torch.randn(1, self.grid**2, dim) * 0.02)
        self.blocks = nn.ModuleList(
            VisionBlock(dim, c["enc_ff_dim"], c["enc_n_heads"]) for _ in range(c["enc_n_layers"])
        )
        self.post_ln = nn.LayerNorm(dim)
        self.proj_mlp = MLP(2 * dim, c["proj_inner_dim"], c["proj_out_dim"])

    def encode(self, crops: Tensor) -> Tensor:
        """Crops ``[N, 3, side, side]`` in -1..1 to ``[N, grid, grid, dim]``."""
        n, g, p = crops.shape[0], self.grid, self.patch
        x = crops.view(n, 3, g, p, g, p).permute(0, 2, 4, 1, 3, 5).reshape(n, g * g, 3 * p * p)
        x = self.patch_emb(x) + self.pos_emb
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.post_ln(x)
        return out.view(n, g, g, -1)

    def stitch(self, local: Tensor, rows: int, cols: int) -> Tensor:
        """Local features ``[n * rows * cols, grid, grid, dim]`` to the pooled ``[n, grid, grid, dim]``."""
        g, m = self.grid, self.margin
        tiles = local.view(-1, rows, cols, g, g, local.shape[-1])

        def span(i: int, count: int) -> slice:
            return slice(0 if i == 0 else m, g if i == count - 1 else g - m)

        bands = [torch.cat([tiles[:, i, j, span(i, rows), span(j, cols)] for j in range(cols)], 2) for i in range(rows)]
        whole = torch.cat(bands, 1)
        ph, pw = (pooling(size, g).to(whole) for size in whole.shape[1:3])
        return torch.einsum("rh,nhwd,cw->nrcd", ph, whole, pw)

    def project(self, whole: Tensor, pooled: Tensor) -> Tensor:
        """Global and pooled local features ``[B, grid, grid, dim]`` to image embeddings ``[B, patches, text dim]``."""
        out: Tensor = self.proj_mlp(torch.cat([whole, pooled], -1).flatten(1, 2))
        return out


def pooling(size: int, out: int) -> Tensor:
    """Adaptive average pooling as a matrix ``[out, size]``."""
    m = torch.zeros(out, size)
    for r in range(out):
        lo, hi = r * size // out, -((-(r + 1) * size) // out)
        m[r, lo:hi] = 1 / (hi - lo)
    return m


class Text(nn.Module):
    """Embeddings, decoder blocks and the head."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.prefix, dim = c["prefix_attn"], c["dim"]
        self.rotary = dim // (2 * c["n_heads"])
        self.wte = nn.Parameter(torch.randn(c["vocab_size"], dim) * 0.3)
        self.blocks = nn.ModuleList(TextBlock(dim, c["ff_dim"], c["n_heads"]) for _ in range(c["n_layers"]))
        self.post_ln, self.lm_head = nn.LayerNorm(dim), nn.Linear(dim, c["vocab_size"])

    def logits(self, hidden: Tensor) -> Tensor:
        """``[..., dim] -> [..., vocab]``."""
        out: Tensor = self.lm_head(self.post_ln(hidden))
        return out

    def angles(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin ``[B, 1, T, rotary / 2]`` for positions ``[B, T]``."""
        inverse = 1e4 ** (-torch.arange(self.rotary // 2, device=position.device) / (self.rotary // 2))
        angle = position[:, None, :, None].float() * inverse
        return angle.cos(), angle.sin()


class Region(nn.Module):
    """Fourier encoders and decoders of coordinates and sizes."""

    def __init__(self, c: Config, std: float = 2.5) -> None:
        super().__init__()
        self.coord_features = nn.Parameter(torch.randn(1, c["coord_feat_dim"] // 2) * std, requires_grad=False)
        self.size_features = nn.Parameter(torch.randn(2, c["size_feat_dim"] // 2) * std, requires_grad=False)
        self.coord_encoder = nn.Linear(c["coord_feat_dim"], c["dim"])
        self.size_encoder = nn.Linear(c["size_feat_dim"], c["dim"])
        self.coord_decoder = MLP(c["dim"], c["inner_dim"], c["coord_out_dim"])
        self.size_decoder = MLP(c["dim"], c["inner_dim"], c["size_out_dim"])

    @staticmethod
    def features(x: Tensor, frequencies: Tensor, low: Tensor | None = None) -> Tensor:
        """Fourier features ``[..., 2n]``, cosine first; rows where ``low`` is set follow bf16's order of rounding."""
        with torch.autocast(x.device.type, enabled=False):
            x, w, b = x.float(), frequencies.float(), torch.bfloat16
            rounded = ((2 * math.pi * x.to(b)).to(b) @ w.to(b)).to(b).float()
            phase = rounded if frequencies.dtype == b else (2 * math.pi * x) @ w
            if low is not None:
                phase = torch.where(low, rounded, phase)
            return torch.cat([phase.cos(), phase.sin()], -1).to(frequencies.dtype)

    def coord(self, x: Tensor, low: Tensor | None = None) -> Tensor:
        """Coordinates ``[...]`` to embeddings ``[..., dim]``."""
        out: Tensor = self.coord_encoder(self.features(x[..., None], self.coord_features, low))
        return out

    def size(self, wh: Tensor, low: Tensor | None = None) -> Tensor:
        """Sizes ``[..., 2]`` to embeddings ``[..., dim]``."""
        out: Tensor = self.size_encoder(self.features(wh, self.size_features, low))
        return out


class Glint(nn.Module):
    """The whole model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vision, self.text = Vision(config["vision"]), Text(config["text"])
        self.region = Region(config["region"])
        depth = 2 * config["text"]["n_layers"]
        for name, p in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            elif name.endswith(("attn.proj.weight", "mlp.fc2.weight")) and "proj_mlp" not in name:
                nn.init.normal_(p, std=0.6 / math.sqrt(p.shape[1] * depth))

    def embed(self, ids: Tensor, coord: Tensor, size: Tensor, low: Tensor | None = None) -> Tensor:
        """Ids ``[B, T]``, values ``[B, T]`` and ``[B, T, 2]`` where they are 5 and 6, to embeddings ``[B, T, dim]``."""
        e = F.embedding(ids, self.text.wte)
        e = torch.where((ids == COORD)[..., None], self.region.coord(coord, low).to(e.dtype), e)
        return torch.where((ids == SIZE)[..., None], self.region.size(size, low).to(e.dtype), e)

    def features(self, crops: Tensor, tilings: Sequence[tuple[int, int, int]]) -> Tensor:
        """Image embeddings ``[B, patches, dim]``.

        ``tilings`` lists (pictures, rows, cols) in the order of the pictures; ``crops`` holds the B global crops, then
        the local crops of the pictures with more than one tile. One tile means that local and global crop agree.
        """
        x = self.vision.encode(crops)
        total = sum(n for n, _, _ in tilings)
        whole, at, row, pooled = x[:total], total, 0, []
        for n, rows, cols in tilings:
            if rows * cols == 1:
                pooled.append(whole[row : row + n])
            else:
                pooled.append(self.vision.stitch(x[at : at + n * rows * cols], rows, cols))
                at += n * rows * cols
            row += n
        return self.vision.project(whole, torch.cat(pooled))

    def prefix(self, image: Tensor) -> Tensor:
        """BOS and image embeddings ``[B, P, dim]``."""
        bos = self.text.wte[EOS].expand(image.shape[0], 1, -1)
        return torch.cat([bos, image.to(bos.dtype)], 1)

    def packed(self, image: Tensor, embeddings: Tensor, position: Tensor, mask: Tensor) -> Tensor:
        """Hidden states ``[B, S, dim]`` of packed streams (before the final LayerNorm)."""
        x = torch.cat([self.prefix(image), embeddings.to(self.text.wte.dtype)], 1)
        p = x.shape[1] - embeddings.shape[1]
        first = torch.arange(p, device=x.device).expand(x.shape[0], -1)
        cos, sin = self.text.angles(torch.cat([first, position], 1))
        for block in self.text.blocks:
            x = block(x, cos, sin, mask, p)
        return x[:, p:]

    def extend(self, x: Tensor, position: Tensor, mask: Tensor | None, past: Cache | None) -> tuple[Tensor, Cache]:
        """New positions ``[B, T, dim]`` after a cache; mask is additive ``[B, 1, T, past + T]`` or None (all seen)."""
        cos, sin = self.text.angles(position)
        out: Cache = []
        for i, block in enumerate(self.text.blocks):
            x, kv = block.step(x, cos, sin, mask, past[i] if past else None)
            out.append(kv)
        return x, out


def packed_mask(slot: Tensor, picture: Tensor, prefix: int) -> Tensor:
    """Additive mask ``[B, 1, S, P + S]``: own slot causally, and the prefix for streams that have the picture."""
    s = slot.shape[1]
    own = (slot[:, :, None] == slot[:, None, :]) & torch.tril(slot.new_ones(s, s, dtype=torch.bool))
    allowed = torch.cat([picture[:, :, None].expand(-1, -1, prefix), own], -1)
    return torch.where(allowed, 0.0, -1e4).to(torch.bfloat16)[:, None]
