"""From a scene to requests: the exact streams that answer them.

Every function ``<skill>(ask)`` returns a :class:`~recipes.glint.streams.Stream`, or None when the scene has no clear
question of that kind. The grammar of the answers is in ``README.md``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from recipes.glint import phrases as say
from recipes.glint import questions
from recipes.glint.ask import Ask, Look, place
from recipes.glint.scenes import Scene, describe
from recipes.glint.shapes import contour
from recipes.glint.streams import ANSWER, GROUND, UNGROUND, Stream, Vocabulary

OUTLINES = [contour(kind) for kind in range(len(say.KINDS))]


def _object_text(ask: Ask, look: Look) -> str:
    """The object as people type it: singular or plural, an article, capitals, a stop, or only its adjective."""
    text = look.phrase(many=ask.rng.random() < 0.4)
    if look.kind < 0 and look.adjectives() and not look.stranger and ask.rng.random() < 0.15:
        text = look.adjectives()
    u = ask.rng.random()
    if u < 0.06:
        return "the " + text
    if u < 0.12:
        return text.capitalize()
    if u < 0.14:
        return text.upper()
    if u < 0.16:
        return text + "."
    if u < 0.20:
        return ask.rng.choice(("all ", "every ", "all the ", "all of the ")) + text
    return text


def _target(ask: Ask) -> tuple[str, list[int]]:
    """An object to find and the things it means: mostly a description, sometimes an extreme or everything."""
    u = ask.rng.random()
    if u < 0.06:
        found = questions.extreme_thing(ask)
        if found:
            return f"{found[1]} {ask.noun()[0]}", [found[0]]
    if u > 0.98:
        return ask.rng.choice(("everything", "all", "all shapes", "every object")), list(range(len(ask.things)))
    look = ask.look()
    return _object_text(ask, look), ask.matching(look)


def point(ask: Ask) -> Stream:
    """Points of all matching things."""
    text, found = _target(ask)
    s = ask.stream("point").feed(ask.v.prompt("point", ask.v.encode(" " + text)))
    for i in found:
        s.point(ask.things[i].x, ask.things[i].y, i)
    return s.end()


def detect(ask: Ask) -> Stream:
    """Boxes of all matching things."""
    text, found = _target(ask)
    s = ask.stream("detect").feed(ask.v.prompt("detect", ask.v.encode(" " + text)))
    for i in found:
        x, y, w, h = ask.scene.box(ask.things[i])
        s.point(x, y, i).extent(w, h)
    return s.end()


def outline_text(kind: int) -> list[str]:
    """Pieces of an outline's path: ``M x y L x y ... Z``, one token each."""
    first, *rest = OUTLINES[kind]
    return ["M", *map(str, first), "L", *[str(n) for pair in rest for n in pair], "Z"]


def segment(ask: Ask) -> Stream:
    """Box and outline of the leftmost matching thing, or nothing."""
    look = ask.look(size=0.25, colour=0.8, kind=0.85)
    s = ask.stream("segment").feed(ask.v.prompt("segment", ask.v.encode(_object_text(ask, look))))
    found = ask.matching(look)
    if found:
        t = ask.things[found[0]]
        x, y, w, h = ask.scene.box(t)
        s.point(x, y, found[0]).extent(w, h)
        s.say([i for piece in outline_text(t.kind) for i in ask.v.encode(piece)], 0.25)
    return s.end()


def short_caption(scene: Scene) -> str:
    """``"3 shapes on a navy background."``; ``"3 stars ..."`` when all are; one thing is named with its colour."""
    ground = f" on {say.article(say.GROUNDS[scene.ground])} background."
    first, n = scene.things[0], len(scene.things)
    if n == 1:
        noun = f"{say.COLOURS[first.colour]} {say.KINDS[first.kind]}"
        return say.article(noun).capitalize() + ground
    same = all(t.kind == first.kind for t in scene.things)
    return f"{n} {say.PLURALS[first.kind] if same else 'shapes'}" + ground


def ground_phrase(scene: Scene) -> str:
    """``"a plain white background"``."""
    return f"{say.article(say.PATTERNS[scene.pattern])} {say.GROUNDS[scene.ground]} background"


def normal_caption(scene: Scene) -> str:
    """``"A large red circle, a small blue star and a medium green ring."``, left to right."""
    text = say.join_list(["a " + describe(t) for t in scene.things])
    return text[0].upper() + text[1:] + "."


def long_caption(scene: Scene) -> str:
    """How many shapes on which ground, then every shape with the ninth of the picture it is in."""
    n = len(scene.things)
    text = say.join_list([f"a {describe(t)} at the {place(t)}" for t in scene.things])
    many = f"are {n} shapes" if n > 1 else "is 1 shape"
    return f"There {many} on {ground_phrase(scene)}. {text[0].upper() + text[1:]}."


def _listing(ask: Ask, s: Stream, places: bool) -> Stream:
    """All things from the left; at every article the stream notes which thing follows."""
    for i, t in enumerate(ask.things):
        last = i == len(ask.things) - 1
        lead = (" and a" if last else ", a") if i else (" A" if places else "A")
        s.say(ask.v.encode(lead))
        s.look_at(i).say(ask.v.encode(" " + describe(t)))
        if places:
            s.say(ask.v.encode(" at the " + place(t)), 0.7)
    return s.say(ask.v.encode("."), 0.3).end(0.3)


def caption(ask: Ask) -> Stream:
    """One of the three captions."""
    length = ask.rng.choices(("short", "normal", "long"), (0.35, 0.45, 0.2))[0]
    s = ask.stream("caption_" + length).feed(ask.v.templates["caption"][length])
    if length == "short":
        return s.say(ask.v.encode(short_caption(ask.scene))).end(0.3)
    if length == "long":
        s.say(ask.v.encode(long_caption(ask.scene).split(". ")[0] + "."))
    return _listing(ask, s, places=length == "long")


def overview(ask: Ask) -> Stream:
    """What is in the picture: the normal caption as an answer."""
    return _listing(ask, ask.query("overview", ask.rng.choice(say.LOOK + say.MORE_LOOK)), places=False)


def _outside(ask: Ask) -> tuple[float, float] | None:
    for _ in range(6):
        x, y = ask.rng.random(), ask.rng.random()
        boxes = [ask.scene.box(t) for t in ask.things]
        if all(abs(x - cx) > w / 2 + 0.03 or abs(y - cy) > h / 2 + 0.03 for cx, cy, w, h in boxes):
            return x, y
    return None


def here(ask: Ask) -> Stream:
    """What is at a point or in a box."""
    rng = ask.rng
    i = rng.randrange(len(ask.things))
    t = ask.things[i]
    x, y, w, h = ask.scene.box(t)
    kind, question, reply = rng.choices(
        (
            ("here", rng.choice(say.HERE), say.article(describe(t))),
            ("here_colour", rng.choice(say.HERE_COLOUR), say.COLOURS[t.colour]),
            ("here_shape", rng.choice(say.HERE_SHAPE), say.KINDS[t.kind]),
        ),
        (0.6, 0.2, 0.2),
    )[0]
    outside = _outside(ask) if rng.random() < 0.1 else None
    ref: tuple[float, ...]
    if outside:
        ref, kind, question, reply, i = outside, "here", rng.choice(say.HERE), "the background", -1
    elif rng.random() < 0.5:
        ref = (x + rng.uniform(-0.25, 0.25) * w, y + rng.uniform(-0.25, 0.25) * h)
    else:
        ref = (x + rng.gauss(0, 0.05) * w, y + rng.gauss(0, 0.05) * h, w * rng.uniform(0.8, 1.25),
               h * rng.uniform(0.8, 1.25))  # fmt: skip
    s = ask.stream(kind).feed(ask.v.templates["query"]["prefix"]).feed_refs(ref)
    s.feed([*ask.v.encode(ask.vary(question)), *ask.v.templates["query"]["suffix"], ANSWER])
    return ask.answer(s, reply, i)


def _grounded(ask: Ask, s: Stream, text: str, found: Sequence[int]) -> Stream:
    """``<7> text (x y)* <9>``: a phrase and the points it rests on."""
    s.say([GROUND]).say(ask.v.encode(text))
    for i in found:
        s.point(ask.things[i].x, ask.things[i].y, i)
    return s.say([UNGROUND])


def _conclude(ask: Ask, s: Stream, reply: str) -> Stream:
    """The answer after the reasoning: exactly one id 3 between them."""
    s.say([ANSWER])
    return ask.answer(s, reply)


def reason(ask: Ask) -> Stream | None:
    """A query with reasoning: point first, then say, then answer."""
    kind = ask.rng.choices(("count", "exists", "colour", "shape", "relative"), (5, 1, 1, 1, 1))[0]
    if kind == "count":
        look, question = questions.count_parts(ask)
        found = ask.matching(look)
        s = ask.query("reason_count", question, think=True)
        if found:
            _grounded(ask, s, f"Each {look.phrase()}", found).say(ask.v.encode(f": {len(found)} in total."))
        else:
            s.say(ask.v.encode(f"I find no {look.phrase(many=True)}."))
        return _conclude(ask, s, str(len(found)))
    if kind == "exists":
        look, question = questions.exists_parts(ask)
        found = ask.matching(look)
        s = ask.query("reason_exists", question, think=True)
        if found:
            _grounded(ask, s, say.article(look.phrase()).capitalize(), found[:1]).say(ask.v.encode(" is there."))
        else:
            s.say(ask.v.encode(f"I find no {look.phrase(many=True)}."))
        return _conclude(ask, s, "yes" if found else "no")
    if kind == "relative":
        related = questions.relative_parts(ask)
        if related is None:
            return None
        question, holds, i, one, j, other = related
        s = ask.query("reason_relative", question, think=True)
        _grounded(ask, s, f"The {one.phrase()}", [i]).say(ask.v.encode(" and"))
        _grounded(ask, s, f" the {other.phrase()}", [j]).say(ask.v.encode("."))
        return _conclude(ask, s, "yes" if holds else "no")
    parts = questions.colour_parts(ask) if kind == "colour" else questions.shape_parts(ask)
    return _reason_attribute(ask, kind, *parts) if parts else None


def _reason_attribute(ask: Ask, kind: str, look: Look, found: list[int]) -> Stream:
    template = ask.rng.choice(say.COLOUR if kind == "colour" else say.SHAPE)
    s = ask.query("reason_" + kind, template.format(one=look.phrase(), look=look.adjectives()), think=True)
    if not found:
        s.say(ask.v.encode(f"I find no {look.phrase()}."))
        return _conclude(ask, s, f"There is no {look.phrase()}.")
    t = ask.things[found[0]]
    reply = say.COLOURS[t.colour] if kind == "colour" else say.KINDS[t.kind]
    _grounded(ask, s, f"The {look.phrase()}", found[:1])
    s.say(ask.v.encode(" is " + (reply if kind == "colour" else say.article(reply)) + "."))
    return _conclude(ask, s, reply)


SKILLS: dict[Callable[[Ask], Stream | None], float] = {
    point: 3.5, detect: 3.2, segment: 1.3, caption: 1.8, overview: 0.6, here: 1.4, reason: 1.6,
    questions.count: 3.2, questions.colour: 1.6, questions.shape: 1.4, questions.size: 0.7, questions.exists: 1.7,
    questions.background: 0.7, questions.relative: 1.2, questions.where: 1.2, questions.is_it: 1.1,
    questions.extreme: 1.1, questions.at_place: 0.8, questions.palette: 0.7, questions.talk: 0.9,
}  # fmt: skip


def fill(scene: Scene, rng: random.Random, vocabulary: Vocabulary, length: int, jitter: float) -> list[Stream]:
    """Random requests about one scene until ``length`` positions are used up."""
    out: list[Stream] = []
    room, misses = length, 0
    makers, weights = list(SKILLS), list(SKILLS.values())
    while room > 12 and misses < 4:
        made = rng.choices(makers, weights)[0](Ask(scene, rng, vocabulary, jitter))
        if made is None or len(made) > room:
            misses += 1
            continue
        out.append(made)
        room -= len(made)
    return out
