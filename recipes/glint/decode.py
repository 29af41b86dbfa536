"""Greedy decoding of many requests at once, with a cache: the evaluation's small stand-in for an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from recipes.glint.model import Cache, Glint
from recipes.glint.streams import ANSWER, BINS, COORD, EOS, SIZE, THINK, Stream
from torch import Tensor

HIDDEN = -1e4


@dataclass
class Reply:
    """What was generated: ids (without the final 0) and the values decoded at ids 5 and 6."""

    ids: list[int] = field(default_factory=list)
    coords: list[float] = field(default_factory=list)
    sizes: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Prompts:
    """Left-padded prompts of R rows, ``[R, T]`` and ``[R, T, 2]``; ``real`` marks what is not padding."""

    ids: Tensor
    coord: Tensor
    size: Tensor
    position: Tensor
    real: Tensor
    picture: Tensor


def pad_prompts(streams: Sequence[Stream], prefix: int, device: torch.device) -> Prompts:
    """The prompt parts of streams."""
    longest = max(s.prompt_length for s in streams)
    rows = len(streams)
    ids, coord = torch.zeros(rows, longest, dtype=torch.long), torch.zeros(rows, longest)
    size, real = torch.zeros(rows, longest, 2), torch.zeros(rows, longest, dtype=torch.bool)
    position = torch.zeros(rows, longest, dtype=torch.long)
    for r, s in enumerate(streams):
        n = s.prompt_length
        span = slice(longest - n, longest)
        ids[r, span], coord[r, span] = torch.tensor(s.ids[:n]), torch.tensor(s.coord[:n])
        size[r, span], real[r, span] = torch.tensor(s.size[:n]), True
        position[r, span] = torch.arange(n) + (prefix if s.picture else 0)
    picture = torch.tensor([s.picture for s in streams])
    return Prompts(*(t.to(device) for t in (ids, coord, size, position, real, picture)))


def choose(logits: Tensor, step: int, skills: Sequence[str], thinking: Tensor) -> Tensor:
    """Next ids ``[R]``: point and detect follow their pattern, reasoning may not end early."""
    cycle = {"point": (None, COORD), "detect": (None, COORD, SIZE)}.get(skills[0])
    if cycle is not None:
        forced = cycle[step % len(cycle)]
        if forced is not None:
            return torch.full_like(thinking, forced, dtype=torch.long)
        return torch.where(logits[:, COORD] > logits[:, EOS], COORD, EOS)
    if step:
        logits = logits.clone()
        logits[:, EOS] -= thinking * 1e4
        logits[:, SIZE] -= thinking * 1e4
    return logits.argmax(-1)


@torch.no_grad()
def greedy(net: Glint, image: Tensor, row: Sequence[int], streams: Sequence[Stream], limit: int) -> list[Reply]:
    """Replies to R requests of one skill; ``image [B, patches, dim]``, ``row`` says which picture each asks about."""
    device, prefix = image.device, image.shape[1] + 1
    p = pad_prompts(streams, prefix, device)
    where = torch.tensor(row, device=device)
    _, base = net.extend(net.prefix(image), torch.arange(prefix, device=device).expand(image.shape[0], -1), None, None)
    cache: Cache = [(k[where], v[where]) for k, v in base]
    rows, longest = p.ids.shape
    seen = torch.cat([p.picture[:, None].expand(-1, prefix), p.real], 1)
    causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
    allowed = torch.cat([seen[:, None, :prefix].expand(-1, longest, -1), causal & p.real[:, None, :]], -1)
    x = net.embed(p.ids, p.coord, p.size).to(net.text.wte.dtype)
    hidden, cache = net.extend(x, p.position, torch.where(allowed, 0.0, HIDDEN)[:, None], cache)
    last, position = hidden[:, -1], p.position[:, -1]
    replies = [Reply() for _ in streams]
    done = torch.zeros(rows, dtype=torch.bool, device=device)
    thinking = torch.tensor([s.ids[s.prompt_length - 1] == THINK for s in streams], device=device)
    skills = [s.skill for s in streams]
    for step in range(limit):
        token = choose(net.text.logits(last).float(), step, skills, thinking)
        done = done | (token == EOS)
        if bool(done.all()):
            break
        token = torch.where(done, EOS, token)
        value = net.region.coord_decoder(last).argmax(-1).float() / BINS
        bins = net.region.size_decoder(last).unflatten(-1, (2, BINS)).argmax(-1).float()
        extent = torch.exp2(bins / (BINS - 1) * 10 - 10)
        record(replies, token.tolist(), value.tolist(), extent.tolist(), done.tolist())
        thinking = thinking & (token != ANSWER)
        seen = torch.cat([seen, ~done[:, None]], 1)
        position = position + 1
        x = net.embed(token[:, None], value[:, None], extent[:, None]).to(net.text.wte.dtype)
        visible = seen.clone()
        visible[:, -1] = True
        mask = torch.where(visible, 0.0, HIDDEN)[:, None, None]
        hidden, cache = net.extend(x, position[:, None], mask, cache)
        last = hidden[:, -1]
    return replies


def record(
    replies: list[Reply], tokens: list[int], values: list[float], extents: list[list[float]], done: list[bool]
) -> None:
    """Append one step's choices to the rows that still run."""
    for reply, token, value, extent, stop in zip(replies, tokens, values, extents, done, strict=True):
        if stop:
            continue
        reply.ids.append(token)
        if token == COORD:
            reply.coords.append(value)
        elif token == SIZE:
            reply.sizes.append((extent[0], extent[1]))
