"""From a scene to requests: what users ask about it, and the exact streams that answer them.

Every function ``<skill>(ask)`` returns a :class:`~recipes.glint.streams.Stream`, or None when the scene has no clear
question of that kind. The grammar of the answers is in ``README.md``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipes.glint import phrases as say
from recipes.glint.scenes import Scene, Thing, contour, describe
from recipes.glint.streams import ANSWER, EOS, GROUND, THINK, UNGROUND, Stream, Vocabulary

OUTLINES = [contour(kind) for kind in range(len(say.KINDS))]


@dataclass(frozen=True)
class Look:
    """A description that things may match; -1 leaves an attribute open, ``noun`` replaces the kind's name."""

    size: int = -1
    colour: int = -1
    kind: int = -1
    noun: tuple[str, str] = say.GENERIC[0]
    stranger: bool = False

    def matches(self, t: Thing) -> bool:
        """Whether a thing fits."""
        return (
            not self.stranger
            and self.size in (-1, t.size)
            and self.colour in (-1, t.colour)
            and self.kind in (-1, t.kind)
        )

    def adjectives(self) -> str:
        """``"large red"``, or less."""
        words = [say.SIZES[self.size]] if self.size >= 0 else []
        return " ".join([*words, *([say.COLOURS[self.colour]] if self.colour >= 0 else [])])

    def phrase(self, many: bool = False) -> str:
        """``"large red circle"`` or ``"large red circles"``."""
        noun = self.noun if self.kind < 0 else (say.KINDS[self.kind], say.PLURALS[self.kind])
        return (self.adjectives() + " " + noun[many]).strip()


class Ask:
    """Everything a question needs: the scene, random choices, the vocabulary, and how much feedback is shaken."""

    def __init__(self, scene: Scene, rng: random.Random, vocabulary: Vocabulary, jitter: float = 0.0) -> None:
        self.scene, self.rng, self.v = scene, rng, vocabulary
        self.jitter = jitter if rng.random() < 0.8 else 0.0
        self.things = scene.things

    def stream(self, skill: str, picture: bool = True) -> Stream:
        """A new empty stream."""
        return Stream(skill, self.jitter, self.rng, picture)

    def vary(self, text: str) -> str:
        """A question as people type it: perhaps in lower case, perhaps without its last mark."""
        if self.rng.random() < 0.25:
            text = text.lower()
        if self.rng.random() < 0.3:
            text = text.rstrip("?.")
        return text

    def query(self, skill: str, question: str, think: bool = False) -> Stream:
        """The stream of a query up to the end of its prompt."""
        body = self.v.encode(self.vary(question))
        return self.stream(skill).feed(self.v.prompt("query", body, (THINK if think else ANSWER,)))

    def answer(self, s: Stream, text: str, thing: int = -1) -> Stream:
        """A short answer: its first token counts most."""
        ids = self.v.encode(text)
        if thing >= 0:
            s.look_at(thing)
        return s.say(ids[:1], 2.0).say(ids[1:], 1.0).end(0.3)

    def matching(self, look: Look) -> list[int]:
        """Indices of matching things, left to right."""
        return [i for i, t in enumerate(self.things) if look.matches(t)]

    def look(self, size: float = 0.2, colour: float = 0.55, kind: float = 0.75, strange: float = 0.06) -> Look:
        """A description: mostly of something that is there, sometimes with one attribute changed, sometimes of nothing."""
        rng = self.rng
        noun = rng.choice(say.GENERIC)
        if rng.random() < strange:
            has = rng.random() < 0.3
            return Look(-1, rng.randrange(8) if has else -1, -1, rng.choice(say.STRANGERS), stranger=True)
        t = rng.choice(self.things)
        values = [t.size, t.colour, t.kind]
        u = rng.random()
        if u < 0.22:
            which = rng.randrange(3)
            values[which] = rng.randrange((3, 8, 8)[which])
        elif u < 0.32:
            values = [rng.randrange(3), rng.randrange(8), rng.randrange(8)]
        keep = [rng.random() < p for p in (size, colour, kind)]
        picked = [value if k else -1 for value, k in zip(values, keep, strict=True)]
        return Look(*picked, noun)

    def unique(self) -> tuple[int, Look] | None:
        """A thing and a short description that fits it alone."""
        rng = self.rng
        for i in rng.sample(range(len(self.things)), len(self.things)):
            t = self.things[i]
            noun = rng.choice(say.GENERIC)
            forms = [Look(-1, -1, t.kind, noun), Look(-1, t.colour, t.kind, noun), Look(-1, t.colour, -1, noun)]
            rng.shuffle(forms)
            for form in [*forms, Look(t.size, t.colour, t.kind, noun)]:
                if len(self.matching(form)) == 1:
                    return i, form
        return None


def _object_text(ask: Ask, look: Look) -> str:
    text = look.phrase(many=ask.rng.random() < 0.4)
    u = ask.rng.random()
    if u < 0.06:
        text = "the " + text
    elif u < 0.12:
        text = text.capitalize()
    return text


def point(ask: Ask) -> Stream:
    """Points of all matching things."""
    look = ask.look()
    s = ask.stream("point").feed(ask.v.prompt("point", ask.v.encode(" " + _object_text(ask, look))))
    for i in ask.matching(look):
        s.point(ask.things[i].x, ask.things[i].y, i)
    return s.end()


def detect(ask: Ask) -> Stream:
    """Boxes of all matching things."""
    look = ask.look()
    s = ask.stream("detect").feed(ask.v.prompt("detect", ask.v.encode(" " + _object_text(ask, look))))
    for i in ask.matching(look):
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


def place(t: Thing) -> str:
    """Which ninth of the picture a thing's centre is in."""
    return say.PLACES[3 * min(2, int(t.y * 3)) + min(2, int(t.x * 3))]


def short_caption(scene: Scene) -> str:
    """``"3 shapes on a navy background."`` (``"3 stars ..."`` when all are stars; one thing is named with its colour)."""
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


def _listing(ask: Ask, s: Stream, places: bool, capital: bool) -> Stream:
    """``A large red circle, a small blue star and a medium green ring.``, position by position with what it is about."""
    for i, t in enumerate(ask.things):
        last = i == len(ask.things) - 1
        lead = "" if i == 0 else (" and" if last else ",")
        head = ("A" if capital else " a") if i == 0 else " a"
        s.say(ask.v.encode(lead + head))
        s.look_at(i).say(ask.v.encode(" " + describe(t)), 1.0)
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
        n = len(ask.things)
        head = f"There {'are' if n > 1 else 'is'} {n} shape{'s' if n > 1 else ''} on {ground_phrase(ask.scene)}. "
        s.say(ask.v.encode(head.rstrip()))
        s.say(ask.v.encode(" A"))
        return _long_tail(ask, s)
    return _listing(ask, s, places=False, capital=True)


def _long_tail(ask: Ask, s: Stream) -> Stream:
    for i, t in enumerate(ask.things):
        if i:
            s.say(ask.v.encode(" and a" if i == len(ask.things) - 1 else ", a"))
        s.look_at(i).say(ask.v.encode(f" {describe(t)}"), 1.0)
        s.say(ask.v.encode(f" at the {place(t)}"), 0.7)
    return s.say(ask.v.encode("."), 0.3).end(0.3)


def _count_parts(ask: Ask) -> tuple[Look, str]:
    look = ask.look()
    if ask.rng.random() < 0.12:
        look = Look(noun=ask.rng.choice(say.GENERIC))
    return look, ask.rng.choice(say.COUNT).format(many=look.phrase(many=True))


def count(ask: Ask) -> Stream:
    """How many."""
    look, question = _count_parts(ask)
    return ask.answer(ask.query("count", question), str(len(ask.matching(look))))


def _colour_parts(ask: Ask) -> tuple[Look, list[int]] | None:
    for _ in range(4):
        t = ask.rng.choice(ask.things)
        absent = ask.rng.random() < 0.15
        kind = ask.rng.randrange(8) if absent else t.kind
        look = Look(ask.rng.randrange(3) if ask.rng.random() < 0.25 else -1, -1, kind)
        found = ask.matching(look)
        if not found or len({ask.things[i].colour for i in found}) == 1:
            return look, found
    return None


def colour(ask: Ask) -> Stream | None:
    """What colour something has; "There is no star." when it is not there."""
    parts = _colour_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("colour", ask.rng.choice(say.COLOUR).format(one=look.phrase()))
    if not found:
        return ask.answer(s, f"There is no {look.phrase()}.")
    return ask.answer(s, say.COLOURS[ask.things[found[0]].colour], found[0] if len(found) == 1 else -1)


def _shape_parts(ask: Ask) -> tuple[Look, list[int]] | None:
    for _ in range(4):
        t = ask.rng.choice(ask.things)
        absent = ask.rng.random() < 0.15
        tint = ask.rng.randrange(8) if absent else t.colour
        look = Look(t.size if ask.rng.random() < 0.25 else -1, tint, -1)
        found = ask.matching(look)
        if not found or len({ask.things[i].kind for i in found}) == 1:
            return look, found
    return None


def shape(ask: Ask) -> Stream | None:
    """What shape something of a colour is."""
    parts = _shape_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("shape", ask.rng.choice(say.SHAPE).format(look=look.adjectives()))
    if not found:
        return ask.answer(s, f"There is no {look.adjectives()} shape.")
    return ask.answer(s, say.KINDS[ask.things[found[0]].kind], found[0] if len(found) == 1 else -1)


def size(ask: Ask) -> Stream | None:
    """How big something is."""
    t = ask.rng.choice(ask.things)
    look = Look(-1, t.colour if ask.rng.random() < 0.7 else -1, t.kind)
    found = ask.matching(look)
    if len({ask.things[i].size for i in found}) > 1:
        return None
    s = ask.query("size", ask.rng.choice(say.SIZE).format(one=look.phrase()))
    return ask.answer(s, say.SIZES[t.size], found[0] if len(found) == 1 else -1)


def _exists_parts(ask: Ask) -> tuple[Look, str]:
    look = ask.look(strange=0.08)
    if look.adjectives() == "" and look.kind < 0 and not look.stranger:
        look = Look(colour=ask.rng.randrange(8), noun=look.noun)
    question = ask.rng.choice(say.EXISTS)
    return look, question.format(a_one=say.article(look.phrase()), many=look.phrase(many=True))


def exists(ask: Ask) -> Stream:
    """Yes or no."""
    look, question = _exists_parts(ask)
    found = ask.matching(look)
    return ask.answer(ask.query("exists", question), "yes" if found else "no", found[0] if len(found) == 1 else -1)


def background(ask: Ask) -> Stream:
    """The ground's colour, or its pattern."""
    if ask.rng.random() < 0.7:
        return ask.answer(ask.query("background", ask.rng.choice(say.BACKGROUND)), say.GROUNDS[ask.scene.ground])
    asked = ask.rng.choice((ask.scene.pattern, ask.rng.randrange(4)))
    question = ask.rng.choice(say.PATTERN)
    reply = say.PATTERNS[ask.scene.pattern]
    if "{pattern}" in question:
        reply = "yes" if asked == ask.scene.pattern else "no"
    return ask.answer(ask.query("pattern", question.format(pattern=say.PATTERNS[asked])), reply)


def _relative_parts(ask: Ask) -> tuple[str, bool, int, Look, int, Look] | None:
    for _ in range(4):
        one, other = ask.unique(), ask.unique()
        if one is None or other is None or one[0] == other[0]:
            continue
        a, b = ask.things[one[0]], ask.things[other[0]]
        relation = ask.rng.choice(tuple(say.RELATIONS))
        gap = {"left": b.x - a.x, "right": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}[relation]
        if abs(gap) < 0.04:
            continue
        words = ask.rng.choice(say.RELATIONS[relation])
        question = say.RELATIVE[0].format(one=one[1].phrase(), relation=words, other=other[1].phrase())
        return question, gap > 0, one[0], one[1], other[0], other[1]
    return None


def relative(ask: Ask) -> Stream | None:
    """Is one thing left of (right of, above, below) another."""
    parts = _relative_parts(ask)
    return parts and ask.answer(ask.query("relative", parts[0]), "yes" if parts[1] else "no")


def where(ask: Ask) -> Stream | None:
    """In which ninth of the picture."""
    found = ask.unique()
    if found is None:
        return None
    i, look = found
    t = ask.things[i]
    if min(abs(v - edge) for v in (t.x, t.y) for edge in (1 / 3, 2 / 3)) < 0.02:
        return None
    s = ask.query("where", ask.rng.choice(say.WHERE).format(one=look.phrase())).look_at(i)
    return s.say(ask.v.encode("At the"), 0.3).look_at(i).say(ask.v.encode(f" {place(t)}"), 2.0).say(
        ask.v.encode("."), 0.3).end(0.3)  # fmt: skip


def overview(ask: Ask) -> Stream:
    """What is in the picture: the normal caption as an answer."""
    return _listing(ask, ask.query("overview", ask.rng.choice(say.LOOK)), places=False, capital=True)


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
        look, question = _count_parts(ask)
        found = ask.matching(look)
        s = ask.query("reason_count", question, think=True)
        if found:
            _grounded(ask, s, f"Each {look.phrase()}", found).say(ask.v.encode(f": {len(found)} in total."))
        else:
            s.say(ask.v.encode(f"I find no {look.phrase(many=True)}."))
        return _conclude(ask, s, str(len(found)))
    if kind == "exists":
        look, question = _exists_parts(ask)
        found = ask.matching(look)
        s = ask.query("reason_exists", question, think=True)
        if found:
            _grounded(ask, s, say.article(look.phrase()).capitalize(), found[:1]).say(ask.v.encode(" is there."))
        else:
            s.say(ask.v.encode(f"I find no {look.phrase(many=True)}."))
        return _conclude(ask, s, "yes" if found else "no")
    if kind == "relative":
        related = _relative_parts(ask)
        if related is None:
            return None
        question, holds, i, one, j, other = related
        s = ask.query("reason_relative", question, think=True)
        _grounded(ask, s, f"The {one.phrase()}", [i]).say(ask.v.encode(" and"))
        _grounded(ask, s, f" the {other.phrase()}", [j]).say(ask.v.encode("."))
        return _conclude(ask, s, "yes" if holds else "no")
    parts = _colour_parts(ask) if kind == "colour" else _shape_parts(ask)
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


def talk(ask: Ask) -> Stream:
    """Small talk, with the picture or without one; questions about pictures without a picture ask for one."""
    questions, reply = ask.rng.choice(say.TALK)
    question = ask.rng.choice(questions)
    if ask.rng.random() < 0.4:
        return ask.answer(ask.query("talk", question), reply)
    if ask.rng.random() < 0.35:
        question = ask.rng.choice((*say.LOOK, _count_parts(ask)[1], *say.BACKGROUND, _exists_parts(ask)[1]))
        reply = say.NO_PICTURE
    s = ask.stream("talk_text", picture=False).feed([EOS])
    s.feed(ask.v.prompt("query", ask.v.encode(ask.vary(question)), (ANSWER,)))
    return ask.answer(s, reply)


SKILLS: dict[Callable[[Ask], Stream | None], float] = {
    point: 4, detect: 3.5, segment: 1.4, caption: 2.0, count: 3.5, colour: 1.8, shape: 1.6, size: 0.8, exists: 1.8,
    background: 0.7, relative: 1.3, where: 0.9, overview: 0.5, here: 1.6, reason: 1.8, talk: 0.5,
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
