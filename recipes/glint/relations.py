"""Where things are among other things: sides, neighbours, extremes, places.

Only clear questions are asked: centres that differ by at least 0.04 on the axis in question, radii by a quarter, the
nearest thing by a quarter of its distance (in the picture as it is and squeezed to a square).
"""

from __future__ import annotations

import math

from recipes.glint import phrases as say
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, Look, edge_margin, place
from recipes.glint.scenes import Thing, describe
from recipes.glint.streams import Stream

CLEAR = 0.04
RATIO = 1.25


def beyond(side: str, anchor: tuple[float, float], x: float, y: float) -> float:
    """How far a point lies on that side of the anchor (negative on the other side)."""
    ax, ay = anchor
    return {"left": ax - x, "right": x - ax, "above": ay - y, "below": y - ay}[side]


def absent_look(ask: Ask) -> Look | None:
    """A description that nothing fits."""
    for _ in range(3):
        look = ask.look()
        if (look.stranger or look.kind >= 0 or look.colour >= 0) and not ask.matching(look):
            return look
    return None


def anchor_look(ask: Ask) -> tuple[int, Look] | None:
    """A thing and what it is called; the index is -1 (one time in ten) when there is no such thing."""
    if ask.rng.random() < 0.1:
        look = absent_look(ask)
        return (-1, look) if look else None
    return ask.unique()


def relative_parts(ask: Ask) -> tuple[str, bool, int, Look, int, Look] | None:
    """Question, truth, and the two things with their descriptions."""
    for _ in range(4):
        one, other = ask.unique(), ask.unique()
        if one is None or other is None or one[0] == other[0]:
            continue
        a, b = ask.things[one[0]], ask.things[other[0]]
        side = ask.rng.choice(tuple(say.RELATIONS))
        gap = beyond(side, (b.x, b.y), a.x, a.y)
        if abs(gap) < CLEAR:
            continue
        return relative_question(ask, side, one[1], other[1]), gap > 0, one[0], one[1], other[0], other[1]
    return None


def relative_question(ask: Ask, side: str, one: Look, other: Look) -> str:
    """``"Is the star left of the red circle?"``."""
    return ask.pick(word.RELATIVE).format(
        one=one.phrase(),
        a_one=say.article(one.phrase()),
        relation=ask.rng.choice(say.RELATIONS[side]),
        other=other.phrase(),
    )


def relative(ask: Ask) -> Stream | None:
    """Is one thing left of (right of, above, below) another; "no" when one of them is not there."""
    if ask.rng.random() < 0.06:
        one, other = ask.unique(), absent_look(ask)
        if one is None or other is None:
            return None
        looks = (one[1], other) if ask.rng.random() < 0.5 else (other, one[1])
        question = relative_question(ask, ask.rng.choice(tuple(say.RELATIONS)), *looks)
        return ask.answer(ask.query("relative", question), "no")
    parts = relative_parts(ask)
    return parts and ask.answer(ask.query("relative", parts[0]), "yes" if parts[1] else "no")


def on_side(ask: Ask, side: str, anchor: int, *, text: bool) -> list[int] | None:
    """What is clearly on one side of a thing, things from the left and then the text; None when it is not clear."""
    t = ask.things[anchor]
    found = []
    for i, other in enumerate(ask.things):
        gap = beyond(side, (t.x, t.y), other.x, other.y)
        if i != anchor and abs(gap) < CLEAR:
            return None
        if i != anchor and gap > 0:
            found.append(i)
    if text and ask.scene.printed:
        x, y, w, h = ask.box(ask.text)
        gap = beyond(side, (t.x, t.y), x, y)
        if abs(gap) < max(CLEAR, (w if side in ("left", "right") else h) / 2):
            return None
        found += [ask.text] if gap > 0 else []
    return found


def side_parts(ask: Ask) -> tuple[str, str, int, Look, list[int]] | None:
    """Question, side, the anchor (-1: absent) with its description, and what is on that side."""
    for _ in range(3):
        named = anchor_look(ask)
        if named is None:
            continue
        i, look = named
        side = ask.rng.choice(tuple(say.RELATIONS))
        text = ask.rng.random() < 0.65
        found = [] if i < 0 else on_side(ask, side, i, text=text)
        if found is None:
            continue
        words = ask.rng.choice(say.RELATIONS[side])
        question = ask.pick(word.SIDE if text else word.SIDE_SHAPES).format(relation=words, one=look.phrase())
        return question, side, i, look, found
    return None


def listing(ask: Ask, s: Stream, found: list[int]) -> Stream:
    """``a large red circle and a small blue star``, or ``nothing``."""
    return ask.mention(s, found).end(0.5) if found else ask.answer(s, "nothing")


def side(ask: Ask) -> Stream | None:
    """What is left of (right of, above, below) a thing."""
    parts = side_parts(ask)
    if parts is None:
        return None
    question, _, i, look, found = parts
    s = ask.query("side", question)
    return ask.answer(s, f"There is no {look.phrase()}.") if i < 0 else listing(ask, s, found)


def count_side(ask: Ask) -> Stream | None:
    """How many things of some description are on one side of a thing."""
    named = ask.unique()
    if named is None:
        return None
    side = ask.rng.choice(tuple(say.RELATIONS))
    found = on_side(ask, side, named[0], text=False)
    if found is None:
        return None
    look = ask.look(size=0.05, colour=0.4, kind=0.5, strange=0.0)
    question = ask.pick(word.COUNT_SIDE).format(
        many=look.phrase(many=True), relation=ask.rng.choice(say.RELATIONS[side]), one=named[1].phrase()
    )
    n = sum(look.matches(ask.things[i]) for i in found)
    return ask.answer(ask.query("count_side", question), str(n))


def nearest(ask: Ask, anchor: int) -> list[int] | None:
    """The thing that is clearly closest to another (none when it is alone); None when it is not clear."""
    t = ask.things[anchor]
    choices = []
    for aspect in (ask.scene.aspect, 1.0):
        root = math.sqrt(aspect)
        away = [math.hypot((o.x - t.x) * root, (o.y - t.y) / root) for o in ask.things]
        away[anchor] = math.inf
        order = sorted(range(len(away)), key=away.__getitem__)
        choices.append(order[0])
        rivals = [away[order[1]]] if len(order) > 2 else []
        if ask.scene.printed:
            x, y, w, h = ask.box(ask.text)
            dx, dy = max(0.0, abs(x - t.x) - w / 2), max(0.0, abs(y - t.y) - h / 2)
            rivals.append(math.hypot(dx * root, dy / root))
        if any(rival < RATIO * min(away[order[0]], 1.0) for rival in rivals):
            return None
    if len(ask.things) == 1:
        return None if ask.scene.printed else []
    return choices[:1] if choices[0] == choices[1] else None


def next_parts(ask: Ask) -> tuple[str, int, Look, list[int]] | None:
    """Question, the anchor (-1: absent) with its description, and its nearest neighbour."""
    for _ in range(3):
        named = anchor_look(ask)
        if named is None:
            continue
        found = [] if named[0] < 0 else nearest(ask, named[0])
        if found is not None:
            return ask.pick(word.NEXT).format(one=named[1].phrase()), *named, found
    return None


def next_to(ask: Ask) -> Stream | None:
    """What is closest to a thing."""
    parts = next_parts(ask)
    if parts is None:
        return None
    question, i, look, found = parts
    s = ask.query("next", question)
    return ask.answer(s, f"There is no {look.phrase()}.") if i < 0 else listing(ask, s, found)


def extreme_rank(way: str, t: Thing) -> float:
    """Smaller is more extreme; sizes are compared by the logarithm of the radius."""
    return {"large": -math.log(t.r), "small": math.log(t.r), "left": t.x, "right": -t.x, "top": t.y, "bottom": -t.y}[
        way
    ]


def extreme_look(ask: Ask) -> Look:
    """A class to pick from: all things, a colour, a kind, or both; sometimes one that is empty."""
    rng = ask.rng
    if rng.random() < 0.35:
        return Look(noun=ask.noun())
    if rng.random() < 0.08:
        return Look(colour=rng.randrange(8) if rng.random() < 0.4 else -1, kind=rng.randrange(8))
    common = [t for t in ask.things if sum(o.kind == t.kind or o.colour == t.colour for o in ask.things) > 1]
    t = rng.choice(common or ask.things)
    return rng.choice((Look(kind=t.kind), Look(colour=t.colour, noun=ask.noun()), Look(colour=t.colour, kind=t.kind)))


def extreme_parts(ask: Ask) -> tuple[str, Look, list[int]] | None:
    """``"largest"``, the class, and its most extreme thing (none when the class is empty); None when not clear."""
    for _ in range(3):
        look = extreme_look(ask)
        found = ask.matching(look)
        way = ask.rng.choice(tuple(say.EXTREMES))
        order = sorted((extreme_rank(way, ask.things[i]), i) for i in found)
        least = math.log(RATIO) if way in ("large", "small") else CLEAR
        if len(order) < 2 or order[1][0] - order[0][0] >= least:
            return ask.rng.choice(say.EXTREMES[way]), look, [i for _, i in order[:1]]
    return None


def extreme(ask: Ask) -> Stream | None:
    """What, what colour, shape or size, or where the largest, leftmost, ... of a class is."""
    parts = extreme_parts(ask)
    if parts is None:
        return None
    extreme, look, found = parts
    one = f"{extreme} {look.phrase()}"
    wordings = [word.EXTREME, word.EXTREME, word.COLOUR, word.WHERE]
    wordings += [word.EXTREME_SHAPE] if look.kind < 0 else [word.SIZE]
    asked = ask.rng.choice(wordings)
    question = ask.pick(asked).format(one=one, a_one="the " + one, noun=look.phrase(), extreme=extreme)
    s = ask.query("extreme", question)
    if not found:
        return ask.answer(s, f"There is no {look.phrase()}.")
    t = ask.things[found[0]]
    if asked is word.WHERE and edge_margin(t.x, t.y) < 0.02:
        return None
    reply = say.KINDS[t.kind]
    if asked is word.EXTREME:
        reply = say.article(describe(t))
    elif asked is word.COLOUR:
        reply = say.COLOURS[t.colour]
    elif asked is word.SIZE:
        reply = say.SIZES[t.size]
    elif asked is word.WHERE:
        reply = f"At the {place(t.x, t.y)}."
    return ask.answer(s, reply, found[0])


def at_place(ask: Ask) -> Stream | None:
    """What is in one ninth of the picture."""
    centres = [ask.box(i)[:2] for i in ask.everything()]
    if min(edge_margin(*c) for c in centres) < 0.012:
        return None
    asked = place(*ask.rng.choice(centres)) if ask.rng.random() < 0.8 else ask.rng.choice(say.PLACES)
    there = [i for i, c in enumerate(centres) if place(*c) == asked]
    return listing(ask, ask.query("at_place", ask.pick(word.AT_PLACE).format(one=asked)), there)
