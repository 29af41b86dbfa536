"""Queries with short answers. Functions return a stream, or None when a scene has no clear question of the kind."""

from __future__ import annotations

from collections.abc import Callable

from recipes.glint import phrases as say
from recipes.glint.ask import Ask, Look, place
from recipes.glint.scenes import Thing, describe
from recipes.glint.streams import ANSWER, EOS, Stream


def count_parts(ask: Ask) -> tuple[Look, str]:
    """What to count, and the question."""
    look = ask.look()
    if ask.rng.random() < 0.12:
        look = Look(noun=ask.rng.choice(say.GENERIC))
    question = ask.rng.choice(say.COUNT + say.MORE_COUNT)
    return look, question.format(many=look.phrase(many=True), one=look.phrase())


def count(ask: Ask) -> Stream:
    """How many."""
    look, question = count_parts(ask)
    return ask.answer(ask.query("count", question), str(len(ask.matching(look))))


def colour_parts(ask: Ask) -> tuple[Look, list[int]] | None:
    """A description whose matches share one colour (or that matches nothing), and the matches."""
    for _ in range(4):
        t = ask.rng.choice(ask.things)
        absent = ask.rng.random() < 0.15
        kind = ask.rng.randrange(8) if absent else t.kind
        look = Look(ask.rng.randrange(3) if ask.rng.random() < 0.25 else -1, -1, kind)
        if ask.rng.random() < 0.04:
            look = Look(noun=ask.stranger(), stranger=True)
        found = ask.matching(look)
        if not found or len({ask.things[i].colour for i in found}) == 1:
            return look, found
    return None


def colour(ask: Ask) -> Stream | None:
    """What colour something has; "There is no star." when it is not there."""
    parts = colour_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("colour", ask.rng.choice(say.COLOUR + say.MORE_COLOUR).format(one=look.phrase()))
    if not found:
        return ask.answer(s, f"There is no {look.phrase()}.")
    return ask.answer(s, say.COLOURS[ask.things[found[0]].colour], found[0] if len(found) == 1 else -1)


def shape_parts(ask: Ask) -> tuple[Look, list[int]] | None:
    """A description whose matches share one shape (or that matches nothing), and the matches."""
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
    parts = shape_parts(ask)
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


def exists_parts(ask: Ask) -> tuple[Look, str]:
    """What may be there, and the question."""
    look = ask.look(strange=0.08)
    if look.adjectives() == "" and look.kind < 0 and not look.stranger:
        look = Look(colour=ask.rng.randrange(8), noun=look.noun)
    question = ask.rng.choice(say.EXISTS + say.MORE_EXISTS)
    return look, question.format(a_one=say.article(look.phrase()), many=look.phrase(many=True), one=look.phrase())


def exists(ask: Ask) -> Stream:
    """Yes or no."""
    look, question = exists_parts(ask)
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


def relative_parts(ask: Ask) -> tuple[str, bool, int, Look, int, Look] | None:
    """Question, truth, and the two things with their descriptions."""
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
    parts = relative_parts(ask)
    return parts and ask.answer(ask.query("relative", parts[0]), "yes" if parts[1] else "no")


def where(ask: Ask) -> Stream | None:
    """In which ninth of the picture."""
    if ask.rng.random() < 0.5:
        return _where_all(ask)
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


def _where_all(ask: Ask) -> Stream:
    """Where several things are (or one, or none)."""
    look = ask.look(size=0.15, colour=0.6, kind=0.85)
    found = ask.matching(look)[:4]
    one = len(ask.matching(look)) < 2 and ask.rng.random() < 0.5
    question = ask.rng.choice(say.WHERE if one else say.WHERE_ALL).format(
        one=look.phrase(), many=look.phrase(many=True)
    )
    s = ask.query("where_all", question)
    if not found:
        return ask.answer(s, f"There is no {look.phrase()}.")
    for n, i in enumerate(found):
        lead = "At the" if n == 0 else " and at the" if n == len(found) - 1 else ", at the"
        s.look_at(i).say(ask.v.encode(lead)).look_at(i).say(ask.v.encode(" " + place(ask.things[i])), 1.5)
    return s.say(ask.v.encode("."), 0.5).end(0.3)


def is_it(ask: Ask) -> Stream | None:
    """Does something have a certain colour, size or shape; are all things so."""
    rng = ask.rng
    found = ask.unique()
    if found is None:
        return None
    i, look = found
    t = ask.things[i]
    open_ = [name for name, value in (("colour", look.colour), ("size", look.size), ("kind", look.kind)) if value < 0]
    if rng.random() < 0.2 or not open_:
        return _all_are(ask)
    name = rng.choice(open_)
    names = {"colour": say.COLOURS, "size": say.SIZES, "kind": say.KINDS}[name]
    true = {"colour": t.colour, "size": t.size, "kind": t.kind}[name]
    asked = true if rng.random() < 0.5 else rng.randrange(len(names))
    question = rng.choice(say.IS_IT if name == "colour" else say.IS_IT[:2])
    value = say.article(names[asked]) if name == "kind" else names[asked]
    s = ask.query("is_it", question.format(one=look.phrase(), value=value))
    return ask.answer(s, "yes" if asked == true else "no", i)


def _all_are(ask: Ask) -> Stream:
    first = ask.things[0]
    colour = first.colour if ask.rng.random() < 0.7 else ask.rng.randrange(8)
    kind = first.kind if ask.rng.random() < 0.5 else -1
    look = Look(-1, -1, kind)
    found = ask.matching(look)
    question = ask.rng.choice(say.ALL_ARE[:2] if kind >= 0 else say.ALL_ARE)
    s = ask.query("is_it", question.format(many=look.phrase(many=True), value=say.COLOURS[colour]))
    return ask.answer(s, "yes" if all(ask.things[i].colour == colour for i in found) else "no")


def extreme_thing(ask: Ask) -> tuple[int, str] | None:
    """A thing that is clearly the largest, smallest, leftmost, ... and the word for that."""
    way = ask.rng.choice(tuple(say.EXTREMES))
    word = ask.rng.choice(say.EXTREMES[way])
    keys: dict[str, Callable[[Thing], float]] = {
        "large": lambda t: -t.size, "small": lambda t: t.size,
        "left": lambda t: t.x, "right": lambda t: -t.x, "top": lambda t: t.y, "bottom": lambda t: -t.y,
    }  # fmt: skip
    key = keys[way]
    order = sorted(range(len(ask.things)), key=lambda i: key(ask.things[i]))
    if len(order) > 1 and key(ask.things[order[1]]) - key(ask.things[order[0]]) < 0.04:
        return None
    return order[0], word


def extreme(ask: Ask) -> Stream | None:
    """What, what colour or what shape the largest, leftmost, ... thing is."""
    found = extreme_thing(ask)
    if found is None:
        return None
    i, word = found
    t = ask.things[i]
    kind, questions, reply = ask.rng.choice((
        ("extreme", say.EXTREME, say.article(describe(t))), ("extreme", say.EXTREME_COLOUR, say.COLOURS[t.colour]),
        ("extreme", say.EXTREME_SHAPE, say.KINDS[t.kind]),
    ))  # fmt: skip
    return ask.answer(ask.query(kind, ask.rng.choice(questions).format(extreme=word, noun=ask.noun()[0])), reply, i)


def at_place(ask: Ask) -> Stream | None:
    """What is in one ninth of the picture."""
    asked = place(ask.rng.choice(ask.things)) if ask.rng.random() < 0.8 else ask.rng.choice(say.PLACES)
    edges = [abs(v - edge) for t in ask.things for v in (t.x, t.y) for edge in (1 / 3, 2 / 3)]
    if min(edges) < 0.012:
        return None
    there = [i for i, t in enumerate(ask.things) if place(t) == asked]
    s = ask.query("at_place", ask.rng.choice(say.AT_PLACE).format(place=asked))
    if not there:
        return ask.answer(s, "nothing")
    for n, i in enumerate(there):
        s.say(ask.v.encode("a" if n == 0 else " and a" if n == len(there) - 1 else ", a"))
        s.look_at(i).say(ask.v.encode(" " + describe(ask.things[i])))
    return s.end(0.5)


def palette(ask: Ask) -> Stream:
    """The colours of all things (or of one kind) in their order from the left, or how many there are."""
    kind = ask.things[0].kind if ask.rng.random() < 0.3 else -1
    look = Look(-1, -1, kind, noun=ask.noun())
    colours = list(dict.fromkeys(say.COLOURS[ask.things[i].colour] for i in ask.matching(look)))
    if kind < 0 and ask.rng.random() < 0.4:
        return ask.answer(ask.query("palette", ask.rng.choice(say.COUNT_COLOURS)), str(len(colours)))
    question = ask.rng.choice(say.PALETTE[4:] if kind >= 0 else say.PALETTE)
    s = ask.query("palette", question.format(many=look.phrase(many=True)))
    return s.say(ask.v.encode(say.join_list(colours)), 1.5).end()


def talk(ask: Ask) -> Stream:
    """Small talk, with the picture or without one; questions about pictures without a picture ask for one."""
    questions, reply = ask.rng.choice(say.TALK)
    question = ask.rng.choice(questions)
    if ask.rng.random() < 0.5:
        a, b = ask.rng.choice(say.NOUNS), ask.rng.choice(say.NOUNS)
        question, reply = ask.rng.choice(say.FAR_AFIELD).format(a=a, b=b), say.NO_IDEA
    if ask.rng.random() < 0.4:
        return ask.answer(ask.query("talk", question), reply)
    if ask.rng.random() < 0.35:
        question = ask.rng.choice(
            (*say.LOOK, *say.MORE_LOOK, count_parts(ask)[1], *say.BACKGROUND, exists_parts(ask)[1])
        )
        reply = say.NO_PICTURE
    s = ask.stream("talk_text", picture=False).feed([EOS])
    s.feed(ask.v.prompt("query", ask.v.encode(ask.vary(question)), (ANSWER,)))
    return ask.answer(s, reply)
