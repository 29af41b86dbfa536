"""From a scene to requests: the exact streams that answer them.

Every function ``<skill>(ask)`` returns a :class:`~recipes.glint.streams.Stream`, or None when the scene has no clear
question of that kind. The grammar of the answers is in ``README.md``.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate

from recipes.glint import groups, questions, reading, relations
from recipes.glint import phrases as say
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, Look, place, text_name
from recipes.glint.here import here
from recipes.glint.reasons import reason
from recipes.glint.scenes import Scene, describe
from recipes.glint.shapes import contour
from recipes.glint.streams import Stream, Vocabulary
from recipes.glint.talk import talk

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
    """An object to find and what it means: mostly a description; sometimes the text, an extreme, two things, all."""
    u = ask.rng.random()
    if u < (0.16 if ask.scene.printed else 0.05):
        return reading.text_object(ask)
    if u < 0.24:
        extreme = relations.extreme_parts(ask)
        if extreme:
            lead = "the " if ask.rng.random() < 0.3 else ""
            return f"{lead}{extreme[0]} {extreme[1].phrase()}", extreme[2]
    elif u < 0.34:
        two = groups.two_objects(ask)
        if two:
            return two
    elif u > 0.98:
        return ask.rng.choice(("everything", "all", "all shapes", "every object")), list(range(len(ask.things)))
    look = ask.look()
    return _object_text(ask, look), ask.matching(look)


def point(ask: Ask) -> Stream:
    """Points of all matching things."""
    text, found = _target(ask)
    s = ask.stream("point").feed(ask.v.prompt("point", ask.v.encode(" " + text)))
    for i in found:
        s.point(*ask.box(i)[:2], i)
    return s.end()


def detect(ask: Ask) -> Stream:
    """Boxes of all matching things."""
    text, found = _target(ask)
    s = ask.stream("detect").feed(ask.v.prompt("detect", ask.v.encode(" " + text)))
    for i in found:
        x, y, w, h = ask.box(i)
        s.point(x, y, i).extent(w, h)
    return s.end()


def outline_text(kind: int) -> list[str]:
    """Pieces of an outline's path: ``M x y L x y ... Z``, one token each."""
    first, *rest = OUTLINES[kind]
    return ["M", *map(str, first), "L", *[str(n) for pair in rest for n in pair], "Z"]


def segment(ask: Ask) -> Stream:
    """Box and outline of the leftmost matching thing, or nothing; the outline of text is its box."""
    u = ask.rng.random()
    extreme = relations.extreme_parts(ask) if 0.12 < u < 0.24 else None
    if u < (0.12 if ask.scene.printed else 0.04):
        text, found = reading.text_object(ask)
    elif extreme:
        text, found = f"{extreme[0]} {extreme[1].phrase()}", extreme[2]
    else:
        look = ask.look(size=0.25, colour=0.8, kind=0.85)
        text, found = _object_text(ask, look), ask.matching(look)
    s = ask.stream("segment").feed(ask.v.prompt("segment", ask.v.encode(text)))
    if found:
        x, y, w, h = ask.box(found[0])
        s.point(x, y, found[0]).extent(w, h)
        pieces = outline_text(ask.things[found[0]].kind) if found[0] < ask.text else reading.OUTLINE
        s.say([i for piece in pieces for i in ask.v.encode(piece)], 0.25)
    return s.end()


def short_caption(scene: Scene) -> str:
    """``"3 shapes on a navy background."``; ``"3 stars ..."`` when all are; one thing is named with its colour.

    Printed text comes before the ground: ``"3 shapes and the word STOP on a navy background."``.
    """
    text = f" and the {text_name(scene.printed)}" if scene.printed else ""
    ground = f"{text} on {say.article(say.GROUNDS[scene.ground])} background."
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
    """``"A large red circle, a small blue star and the word STOP."``: things from the left, then the text."""
    parts = ["a " + describe(t) for t in scene.things]
    parts += ["the " + text_name(scene.printed)] if scene.printed else []
    text = say.join_list(parts)
    return text[0].upper() + text[1:] + "."


def long_caption(scene: Scene) -> str:
    """How many shapes on which ground, then every shape (and the text) with the ninth of the picture it is in."""
    n = len(scene.things)
    parts = [f"a {describe(t)} at the {place(t.x, t.y)}" for t in scene.things]
    if scene.printed:
        parts.append(f"the {text_name(scene.printed)} at the {place(scene.printed.x, scene.printed.y)}")
    text = say.join_list(parts)
    many = f"are {n} shapes" if n > 1 else "is 1 shape"
    return f"There {many} on {ground_phrase(scene)}. {text[0].upper() + text[1:]}."


def _listing(ask: Ask, s: Stream, items: list[int], *, places: bool = False) -> Stream:
    """A sentence that lists things; at every article the stream notes which thing follows."""
    return ask.mention(s, items, opening=" A" if places else "A", places=places).say(ask.v.encode("."), 0.3).end(0.3)


def caption(ask: Ask) -> Stream:
    """One of the three captions."""
    length = ask.rng.choices(("short", "normal", "long"), (0.35, 0.45, 0.2))[0]
    s = ask.stream("caption_" + length).feed(ask.v.templates["caption"][length])
    if length == "short":
        return s.say(ask.v.encode(short_caption(ask.scene))).end(0.3)
    if length == "long":
        s.say(ask.v.encode(long_caption(ask.scene).split(". ")[0] + "."))
    return _listing(ask, s, ask.everything(), places=length == "long")


def overview(ask: Ask) -> Stream:
    """What is in the picture: the normal caption as an answer; asked for its shapes, the same without the text."""
    if ask.rng.random() < 0.7:
        return _listing(ask, ask.query("overview", ask.pick(word.LOOK)), ask.everything())
    return _listing(ask, ask.query("overview", ask.pick(word.SHAPES)), list(range(ask.text)))


Maker = Callable[[Ask], Stream | None]
SKILLS: dict[Maker, float] = {
    point: 3.6, detect: 3.3, segment: 1.4, caption: 1.9, overview: 0.6, here: 1.4, reason: 2.0,
    questions.count: 2.6, questions.colour: 1.4, questions.shape: 1.2, questions.size: 0.7, questions.exists: 1.4,
    questions.background: 0.7, relations.relative: 1.2, questions.where: 1.1, questions.is_it: 1.1,
    relations.extreme: 1.3, relations.at_place: 0.8, questions.palette: 0.8, talk: 0.9,
    relations.side: 1.5, relations.next_to: 0.6, relations.count_side: 0.5, groups.groups: 1.2,
    reading.read: 0.35, reading.written: 0.35, reading.about_text: 0.2,
}  # fmt: skip
TEXT_SHARE = {reading.read: 2.2, reading.written: 0.8, reading.about_text: 0.6}
WITH_TEXT: dict[Maker, float] = {**SKILLS, **TEXT_SHARE}
WORDED: tuple[Maker, ...] = tuple(maker for maker in SKILLS if maker not in (point, detect, segment, caption))


def fill(scene: Scene, rng: random.Random, vocabulary: Vocabulary, length: int, jitter: float) -> list[Stream]:
    """Random requests about one scene until ``length`` positions are used up."""
    out: list[Stream] = []
    room, misses = length, 0.0
    shares = WITH_TEXT if scene.printed else SKILLS
    makers, weights = list(shares), list(accumulate(shares.values()))
    while room > 12 and misses < 4:
        made = rng.choices(makers, cum_weights=weights)[0](Ask(scene, rng, vocabulary, jitter))
        if made is None:
            misses += 0.4
        elif len(made) > room:
            misses += 1
        else:
            out.append(made)
            room -= len(made)
    return out
