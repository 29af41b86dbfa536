"""What is at a point or in a box that comes with the question: a thing, the printed text or the background.

Where things overlap, the answer is what is painted last; only points that are clearly inside or outside are asked.
"""

from __future__ import annotations

import math

import numpy as np
from recipes.glint import phrases as say
from recipes.glint import reading
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, Box, text_name
from recipes.glint.scenes import Thing, describe
from recipes.glint.shapes import distance
from recipes.glint.streams import ANSWER, Stream

INSIDE = 0.12


def _inside(box: Box, x: float, y: float, margin: float = 0.0) -> bool:
    cx, cy, w, h = box
    return abs(x - cx) <= w / 2 + margin and abs(y - cy) <= h / 2 + margin


def _depth(ask: Ask, t: Thing, x: float, y: float) -> float:
    """How far a point is inside a shape, in its radii; negative outside."""
    root = math.sqrt(ask.scene.aspect)
    own = np.asarray([(x - t.x) * root / t.r]), np.asarray([(y - t.y) / root / t.r])
    return -float(distance(np, *own, np.asarray([t.kind]))[0])


def _on_top(ask: Ask, i: int, x: float, y: float) -> bool:
    """Whether a point is clearly a thing's own: no other box holds it, or it is inside and nothing painted later is."""
    rivals = [j for j in ask.everything() if j != i and _inside(ask.box(j), x, y, 0.005)]
    if not rivals:
        return True
    if i >= ask.text or ask.text in rivals or _depth(ask, ask.things[i], x, y) < INSIDE:
        return False
    later = [ask.things[j] for j in rivals if ask.things[j].depth > ask.things[i].depth]
    return all(_depth(ask, t, x, y) < -INSIDE for t in later)


def _at(ask: Ask, i: int) -> tuple[float, ...] | None:
    """A point in a thing (or the text) where it is on top, or a box that holds no other centre."""
    rng = ask.rng
    x, y, w, h = ask.box(i)
    if rng.random() < 0.5:
        wide = i < ask.text and rng.random() < 0.4
        far = 0.45 if wide else 0.25
        px, py = x + rng.uniform(-far, far) * w, y + rng.uniform(-far, far) * h
        if wide and _depth(ask, ask.things[i], px, py) < INSIDE:  # beyond the middle of a box there may be ground
            return None
        return (px, py) if _on_top(ask, i, px, py) else None
    x, y, w, h = (
        x + rng.gauss(0, 0.05) * w,
        y + rng.gauss(0, 0.05) * h,
        w * rng.uniform(0.8, 1.25),
        h * rng.uniform(0.8, 1.25),
    )
    others = [ask.box(j) for j in ask.everything() if j != i]
    return None if any(_inside((x, y, w, h), b[0], b[1]) for b in others) else (x, y, w, h)


def _nowhere(ask: Ask) -> tuple[float, ...] | None:
    """A point, or a small box, away from everything."""
    boxes = [ask.box(i) for i in ask.everything()]
    for _ in range(6):
        w, h = (ask.rng.uniform(0.03, 0.15), ask.rng.uniform(0.03, 0.15)) if ask.rng.random() < 0.3 else (0.0, 0.0)
        x, y = ask.rng.uniform(w / 2, 1 - w / 2), ask.rng.uniform(h / 2, 1 - h / 2)
        if not any(_inside((cx, cy, bw + w, bh + h), x, y, 0.03) for cx, cy, bw, bh in boxes):
            return (x, y, w, h) if w else (x, y)
    return None


def here(ask: Ask) -> Stream | None:
    """What is at a point or in a box: a thing, the text or the background; also its colour or shape."""
    rng = ask.rng
    kind, wording = rng.choices(
        (("here", word.HERE), ("here_colour", word.HERE_COLOUR), ("here_shape", word.HERE_SHAPE)), (0.6, 0.2, 0.2)
    )[0]
    u = rng.random()
    i = ask.text if ask.scene.printed and u < 0.2 else -1 if u < 0.32 else rng.randrange(len(ask.things))
    ref = _nowhere(ask) if i < 0 else _at(ask, i)
    reply = _reply_here(ask, kind, i)
    if ref is None or reply is None:
        return None
    s = ask.stream(kind).feed(ask.v.templates["query"]["prefix"]).feed_refs(ref)
    s.feed([*ask.v.encode(ask.vary(ask.pick(wording))), *ask.v.templates["query"]["suffix"], ANSWER])
    return ask.answer(s, reply, i)


def _reply_here(ask: Ask, kind: str, i: int) -> str | None:
    """What to say of a thing, the text, or the background (-1); None when there is nothing clear to say."""
    printed = ask.scene.printed
    if i < 0:
        ground = say.GROUNDS[ask.scene.ground]
        return {"here": "the background", "here_colour": ground, "here_shape": "There is no shape."}[kind]
    if i < ask.text:
        t = ask.things[i]
        return {
            "here": say.article(describe(t)),
            "here_colour": say.COLOURS[t.colour],
            "here_shape": say.KINDS[t.kind],
        }[kind]
    if printed is None or kind == "here_shape":
        return None
    return "the " + text_name(printed) if kind == "here" else reading.ink_name(printed.rgb)
