"""A second Moondream, written to be read: float64, one token at a time, everything recomputed for every token.

In: a parsed config.json in which every number is given, the weights as arrays by name, crops. Out: hidden states,
logits, values, and whole greedy answers. It shares nothing with `gapless.models` or `gapless.kernels`, and knows no
cache, no pages and no batch. A sequence is a list of `Row`: an embedding, and the picture block it is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
END, ANSWER, COORD, SIZE = 0, 3, 5, 6
_erf = np.vectorize(math.erf)


@dataclass
class Row:
    """What stands at a position. Rows of one block (not None) see each other, all see what is before them."""

    x: Array
    block: int | None = None


@dataclass
class Said:
    """One token of an answer: its id, the value that rode on it, and how sure each choice was."""

    id: int
    values: tuple[float, ...] = ()
    gap: float = math.inf


def gelu_tanh(z: Array) -> Array:
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def gelu_erf(z: Array) -> Array:
    return 0.5 * z * (1 + _erf(z / math.sqrt(2)))


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()


class Naive:
    """The model."""

    def __init__(self, raw: dict[str, Any], weights: dict[str, Array]) -> None:
        self.text, self.vision, self.region = raw["text"], raw["vision"], raw["region"]
        self.second = raw["revision"].startswith("2025")
        self.w = {name: np.asarray(array, dtype=np.float64) for name, array in weights.items()}

    def linear(self, name: str, x: Array) -> Array:
        return self.w[f"{name}.weight"] @ x + self.w[f"{name}.bias"]

    def norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean()
        scaled = centred / np.sqrt((centred**2).mean() + 1e-5)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def mlp(self, name: str, x: Array) -> Array:
        return self.linear(f"{name}.fc2", gelu_tanh(self.linear(f"{name}.fc1", x)))

    # -- picture ---------------------------------------------------------------------------------------------------

    def picture(self, crops: Array, tiling: tuple[int, int]) -> list[Array]:
        """Uint8 [1 + rows * columns, side, side, 3] -> one embedding per cell of the grid, row by row."""
        grid, margin = self.vision["crop_size"] // self.vision["enc_patch_size"], self.vision["overlap_margin"]
        seen = [self.crop(crop) for crop in crops]
        step, (rows, columns) = grid - 2 * margin, tiling
        high, wide = rows * step + 2 * margin, columns * step + 2 * margin
        whole = [[seen[0][0]] * wide for _ in range(high)]
        for y in range(high):
            for x in range(wide):  # the tile whose middle this is; the outer margins belong to the outer tiles
                i = min(max((y - margin) // step, 0), rows - 1)
                j = min(max((x - margin) // step, 0), columns - 1)
                whole[y][x] = seen[1 + i * columns + j][(y - i * step) * grid + x - j * step]
        out = []
        for r in range(grid):
            for c in range(grid):
                ys = range(r * high // grid, -(-(r + 1) * high // grid))
                xs = range(c * wide // grid, -(-(c + 1) * wide // grid))
                pooled = sum(whole[y][x] for y in ys for x in xs) / (len(ys) * len(xs))
                out.append(self.mlp("vision.proj_mlp", np.concatenate((seen[0][r * grid + c], pooled))))
        return out

    def crop(self, pixels: Array) -> list[Array]:
        """One crop's patches through the encoder."""
        size, heads = self.vision["enc_patch_size"], self.vision["enc_n_heads"]
        grid = self.vision["crop_size"] // size
        xs = []
        for r in range(grid):
            for c in range(grid):
                patch = pixels[r * size : (r + 1) * size, c * size : (c + 1) * size].astype(np.float64)
                levels = (patch / 255 - 0.5) / 0.5
                flat = np.concatenate([levels[:, :, channel].ravel() for channel in range(3)])
                xs.append(self.linear("vision.patch_emb", flat) + self.w["vision.pos_emb"][0, r * grid + c])
        for layer in range(self.vision["enc_n_layers"]):
            name = f"vision.blocks.{layer}"
            qkv = [np.split(self.linear(f"{name}.attn.qkv", self.norm(f"{name}.ln1", x)), 3) for x in xs]
            for t in range(len(xs)):
                seen = attended(qkv[t][0], [k for _, k, _ in qkv], [v for _, _, v in qkv], heads)
                xs[t] = xs[t] + self.linear(f"{name}.attn.proj", seen)
            xs = [x + self.mlp(f"{name}.mlp", self.norm(f"{name}.ln2", x)) for x in xs]
        return [self.norm("vision.post_ln", x) for x in xs]

    # -- text ------------------------------------------------------------------------------------------------------

    def word(self, id: int) -> Row:
        return Row(self.w["text.wte"][id])

    def hidden(self, rows: list[Row]) -> list[Array]:
        """Of every position, before the final norm."""
        xs, heads = [row.x for row in rows], self.text["n_heads"]
        for layer in range(self.text["n_layers"]):
            name = f"text.blocks.{layer}"
            ns = [self.norm(f"{name}.ln", x) for x in xs]
            qkv = [self.qkv(name, n, position) for position, n in enumerate(ns)]
            after = []
            for t, row in enumerate(rows):
                sees = [j for j, r in enumerate(rows) if j <= t or (row.block is not None and r.block == row.block)]
                seen = attended(qkv[t][0], [qkv[j][1] for j in sees], [qkv[j][2] for j in sees], heads)
                after.append(xs[t] + self.linear(f"{name}.attn.proj", seen) + self.feed_forward(layer, ns[t]))
            xs = after
        return xs

    def qkv(self, name: str, n: Array, position: int) -> tuple[Array, Array, Array]:
        """Rotated query, rotated key, value."""
        qkv = self.linear(f"{name}.attn.qkv", n)
        q, k, v = np.split(qkv, 3)
        if self.text["tau"] != "none":
            g = {"erf": gelu_erf, "tanh": gelu_tanh}[self.text["tau"]](qkv)
            alpha, width = self.w[f"{name}.attn.tau.alpha"], self.text["dim"] // self.text["n_heads"]
            place = 1 + (1 / (1 + np.exp(-alpha * math.log(position + 1))) - 0.5)
            q = q * np.repeat(np.tanh(self.w[f"{name}.attn.tau.wq"] @ g) + place, width)
            v = v * np.repeat(np.tanh(self.w[f"{name}.attn.tau.wv"] @ g) + place, width)
        return self.turned(q, position), self.turned(k, position), v

    def turned(self, x: Array, position: int) -> Array:
        width = self.text["dim"] // self.text["n_heads"]
        rotary, out = width // 2, x.copy()
        for head in range(self.text["n_heads"]):
            for i in range(rotary // 2):
                a, b = head * width + i, head * width + i + rotary // 2
                angle = position * self.text["rope_theta"] ** (-2 * i / rotary)
                out[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
                out[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
        return out

    def feed_forward(self, layer: int, n: Array) -> Array:
        name, moe = f"text.blocks.{layer}.mlp", self.text.get("moe")
        if not moe or layer < moe["start_layer"]:
            return self.mlp(name, n)
        scores, inner = self.linear(f"{name}.router", n), moe["expert_inner_dim"]
        best = sorted(range(moe["num_experts"]), key=lambda e: -scores[e])[: moe["experts_per_token"]]
        total = np.zeros_like(n)
        for share, e in zip(softmax(scores[best]), best, strict=True):
            z = self.w[f"{name}.fc1.weight"][e] @ n
            total += share * (self.w[f"{name}.fc2.weight"][e] @ (gelu_erf(z[:inner]) * (z[inner:] + 1)))
        return total

    def logits(self, h: Array) -> Array:
        return self.linear("text.lm_head", self.norm("text.post_ln", h))

    # -- region ----------------------------------------------------------------------------------------------------

    def head(self, name: str, h: Array) -> Array:
        if self.region["heads"] == "mlp":
            return self.mlp(name, h)
        return self.linear(name, self.norm("region.ln", h) if "region.ln.weight" in self.w else h)

    def coord(self, h: Array) -> tuple[float, float]:
        """The value, and how far the second-best bin is."""
        scores = self.head("region.coord_decoder", h)
        return int(scores.argmax()) / len(scores), gap(scores)

    def size(self, h: Array) -> tuple[tuple[float, float], float]:
        halves = np.split(self.head("region.size_decoder", h), 2)
        bins, count = [int(half.argmax()) for half in halves], len(halves[0])
        if self.region["sizes"] == "linear":
            w, h_ = (b / count for b in bins)
        else:
            w, h_ = (2.0 ** (b / (count - 1) * 10 - 10) for b in bins)
        return (w, h_), min(gap(half) for half in halves)

    def place(self, *values: float) -> Row:
        """A coordinate's row (one value) or a size's (two)."""
        name = "coord" if len(values) == 1 else "size"
        phase = 2 * math.pi * np.array(values) @ self.w[f"region.{name}_features"]
        return Row(self.linear(f"region.{name}_encoder", np.concatenate((np.cos(phase), np.sin(phase)))))

    # -- answers ---------------------------------------------------------------------------------------------------

    def answer(self, program: str, rows: list[Row], max_tokens: int, max_objects: int) -> list[Said]:
        """Greedy. One `step` is one token, and recomputes all of the sequence."""
        said: list[Said] = []

        def step(allowed: Callable[[int], bool], coords: bool = True, sizes: bool = True) -> int:
            h = self.hidden([*rows])[-1]
            scores = np.array([s if allowed(i) else -math.inf for i, s in enumerate(self.logits(h))])
            one = Said(int(scores.argmax()), gap=gap(scores))
            if one.id == COORD and coords:
                value, near = self.coord(h)
                one = Said(one.id, (value,), min(one.gap, near))
            elif one.id == SIZE and sizes:
                size, near = self.size(h)
                one = Said(one.id, size, min(one.gap, near))
            said.append(one)
            rows.append(self.place(*one.values) if one.values else self.word(one.id))
            return one.id

        if program == "text":
            self._words(step, max_tokens)
        elif program == "reason":
            self._reason(step, max_tokens)
        elif program == "segment":
            ended = step(lambda i: i in (COORD, END)) == END
            for only in () if ended else (COORD, SIZE):
                step(lambda i, only=only: i == only)
            while not ended and len(said) < max_tokens:
                ended = step(lambda i: True) == END
        else:
            for n in range(max_objects):
                forced = program == "forced-point" and n == 0
                if step(lambda i, forced=forced: i == COORD or (i == END and not forced)) == END:
                    break
                for only in (COORD, SIZE) if program == "detect" else (COORD,):
                    step(lambda i, only=only: i == only)
        return said if program == "reason" else said[:max_tokens]

    def _words(self, step: Callable[..., int], max_tokens: int) -> None:
        for n in range(max_tokens):
            hushed = self.second and n > 0
            if step(lambda i, hushed=hushed: not (hushed and i == ANSWER), coords=False, sizes=False) == END:
                return

    def _reason(self, step: Callable[..., int], max_tokens: int) -> None:
        for n in range(max_tokens):
            hushed = self.second and n > 0
            if step(lambda i, hushed=hushed: not (hushed and i in (END, SIZE)), sizes=False) == ANSWER:
                break
        else:
            step(lambda i: i == ANSWER)
        self._words(step, max_tokens)


def attended(q: Array, ks: list[Array], vs: list[Array], heads: int) -> Array:
    """One query over the keys and values it sees."""
    width = len(q) // heads
    out = []
    for head in range(heads):
        own = slice(head * width, (head + 1) * width)
        weights = softmax(np.array([q[own] @ k[own] for k in ks]) / math.sqrt(width))
        out.append(sum(weight * v[own] for weight, v in zip(weights, vs, strict=True)))
    return np.concatenate(out)


def gap(scores: Array) -> float:
    """How far the best is from the second, beside the spread of all that compete."""
    finite = np.sort(scores[np.isfinite(scores)])
    if len(finite) < 2:
        return math.inf
    return float((finite[-1] - finite[-2]) / max(1.0, np.abs(finite).max()))
