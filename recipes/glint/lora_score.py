"""Is a request answered rightly, without and with an adapter: about the new shape, and about all that was known.

Every request counts as right or wrong as a whole: the same tokens as the truth, every coordinate within 0.03, every
box overlapping by half.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from recipes.glint.ask import Ask
from recipes.glint.decode import Reply, greedy
from recipes.glint.model import Glint
from recipes.glint.new_word import Cast, Stage
from recipes.glint.progress import NEAR, boxes_of, iou, truth
from recipes.glint.prompts import SKILLS
from recipes.glint.streams import Stream
from torch import Tensor

OVERLAP, CHUNK = 0.5, 48


class Seen(Protocol):
    """A cast with the embeddings of its picture ``[patches, dim]``."""

    @property
    def cast(self) -> Cast:
        """Who plays what."""

    @property
    def image(self) -> Tensor:
        """Image embeddings."""


def right(got: Reply, s: Stream) -> bool:
    """Whether a reply is what the stream teaches."""
    want = truth(s)
    if got.ids != want.ids or any(abs(a - b) > NEAR for a, b in zip(got.coords, want.coords, strict=True)):
        return False
    boxes = zip(boxes_of(got), boxes_of(want), strict=True)
    return not want.sizes or all(iou(a, b) >= OVERLAP for a, b in boxes)


def requests(stage: Stage, seen: Sequence[Seen], seed: int, times: int) -> dict[str, list[tuple[int, Stream]]]:
    """Requests by skill, as (index of the picture, stream): ``times`` of every maker for every picture."""
    out: dict[str, list[tuple[int, Stream]]] = {}
    for i, one in enumerate(seen):
        rng = random.Random(seed * 100_003 + i)
        for maker in [*SKILLS] * times:
            made = maker(Ask(one.cast.scene, rng, stage.words(one.cast)))
            if made is not None:
                out.setdefault(made.skill, []).append((i, stage.corrected(one.cast, made)))
    return dict(sorted(out.items()))


def about(stage: Stage, asked: dict[str, list[tuple[int, Stream]]]) -> dict[str, list[tuple[int, Stream]]]:
    """Those requests in whose question or answer the new word occurs."""
    v, shape = stage.vocabulary, stage.shape
    ways = [way(w) for w in (shape.word, shape.plural) for way in (str.lower, str.capitalize, str.upper)]
    marks = [",".join(map(str, v.encode(lead + w))) for w in ways for lead in ("", " ")]

    def mentions(s: Stream) -> bool:
        text = "," + ",".join(map(str, s.ids)) + ","
        return any(f",{mark}," in text for mark in marks)

    kept = {skill: [(i, s) for i, s in rows if mentions(s)] for skill, rows in asked.items()}
    return {skill: rows for skill, rows in kept.items() if rows}


def verdicts(net: Glint, seen: Sequence[Seen], rows: Sequence[tuple[int, Stream]]) -> Iterator[bool]:
    """Whether each request of one skill is answered rightly."""
    device = next(net.parameters()).device
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        used = sorted({i for i, _ in part})
        image = torch.stack([seen[i].image for i in used]).float().to(device)
        limit = max(len(s) - s.prompt_length for _, s in part) + 8
        replies = greedy(net, image, [used.index(i) for i, _ in part], [s for _, s in part], limit)
        yield from (right(r, s) for r, (_, s) in zip(replies, part, strict=True))


Scores = dict[str, dict[str, dict[str, float]]]


def compare(nets: dict[str, Glint], stage: Stage, seen: dict[str, list[Seen]], seed: int) -> Scores:
    """Shares of right answers: ``{"new" | "old": {skill | "all": {"n": ..., name of the net: ...}}}``."""
    out: Scores = {}
    for kind, some in seen.items():
        asked = requests(stage, some, seed, 2 if kind == "new" else 1)
        asked = about(stage, asked) if kind == "new" else asked
        total = sum(map(len, asked.values()))
        table: dict[str, dict[str, float]] = {skill: {"n": len(rows)} for skill, rows in asked.items()}
        table["all"] = {"n": total}
        for name, net in nets.items():
            good = {skill: sum(verdicts(net, some, rows)) for skill, rows in asked.items()}
            for skill, rows in asked.items():
                table[skill][name] = round(good[skill] / len(rows), 4)
            table["all"][name] = round(sum(good.values()) / total, 4)
        out[kind] = table
    return out


def show(scores: Scores) -> str:
    """One line per skill."""
    lines = []
    for kind, table in scores.items():
        lines.append({"new": "about the new shape", "old": "pictures without it"}[kind])
        for skill, row in table.items():
            numbers = "  ".join(f"{name} {x:.3f}" for name, x in row.items() if name != "n")
            lines.append(f"  {skill:16s} n {int(row['n']):4d}  {numbers}")
    return "\n".join(lines)
