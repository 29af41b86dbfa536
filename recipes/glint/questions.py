"""Queries with short answers. Functions return a stream, or None when a scene has no clear question of the kind."""

from __future__ import annotations

from recipes.glint import phrases as say
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, Look, edge_margin, place
from recipes.glint.streams import Stream


def count_parts(ask: Ask) -> tuple[Look, str]:
    """What to count, and the question."""
    look = ask.look()
    if ask.rng.random() < 0.12:
        look = Look(noun=ask.rng.choice(say.GENERIC))
    return look, ask.pick(word.COUNT).format(many=look.phrase(many=True), one=look.phrase())


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
    s = ask.query("colour", ask.pick(word.COLOUR).format(one=look.phrase()))
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
    s = ask.query("shape", ask.pick(word.SHAPE).format(look=look.adjectives()))
    if not found:
        return ask.answer(s, f"There is no {look.adjectives()} shape.")
    return ask.answer(s, say.KINDS[ask.things[found[0]].kind], found[0] if len(found) == 1 else -1)


def size_parts(ask: Ask) -> tuple[Look, list[int]] | None:
    """A description whose matches share one size (or that matches nothing), and the matches."""
    t = ask.rng.choice(ask.things)
    look = Look(-1, t.colour if ask.rng.random() < 0.7 else -1, t.kind)
    if ask.rng.random() < 0.1:
        look = Look(-1, ask.rng.randrange(8) if ask.rng.random() < 0.5 else -1, ask.rng.randrange(8))
    found = ask.matching(look)
    return None if len({ask.things[i].size for i in found}) > 1 else (look, found)


def size(ask: Ask) -> Stream | None:
    """How big something is."""
    parts = size_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("size", ask.pick(word.SIZE).format(one=look.phrase()))
    if not found:
        return ask.answer(s, f"There is no {look.phrase()}.")
    return ask.answer(s, say.SIZES[ask.things[found[0]].size], found[0] if len(found) == 1 else -1)


def exists_parts(ask: Ask) -> tuple[Look, str]:
    """What may be there, and the question."""
    look = ask.look(strange=0.08)
    if look.adjectives() == "" and look.kind < 0 and not look.stranger:
        look = Look(colour=ask.rng.randrange(8), noun=look.noun)
    return look, ask.pick(word.EXISTS).format(
        a_one=say.article(look.phrase()), many=look.phrase(many=True), one=look.phrase()
    )


def exists(ask: Ask) -> Stream:
    """Yes or no."""
    look, question = exists_parts(ask)
    found = ask.matching(look)
    return ask.answer(ask.query("exists", question), "yes" if found else "no", found[0] if len(found) == 1 else -1)


def background(ask: Ask) -> Stream:
    """The ground's colour, or its pattern."""
    u = ask.rng.random()
    if u < 0.6:
        return ask.answer(ask.query("background", ask.pick(word.BACKGROUND)), say.GROUNDS[ask.scene.ground])
    true = say.PATTERNS[ask.scene.pattern]
    if u < 0.8:
        return ask.answer(ask.query("pattern", ask.pick(word.PATTERN)), true)
    names, true = (say.PATTERNS, true) if u < 0.9 else (say.GROUNDS, say.GROUNDS[ask.scene.ground])
    asked = true if ask.rng.random() < 0.5 else ask.rng.choice(names)
    question = ask.pick(word.IS_PATTERN).format(a=asked, a_one=say.article(asked))
    return ask.answer(ask.query("pattern", question), "yes" if asked == true else "no")


def where(ask: Ask) -> Stream | None:
    """In which ninth of the picture."""
    if ask.rng.random() < 0.5:
        return _where_all(ask)
    found = ask.unique()
    if found is None:
        return None
    i, look = found
    t = ask.things[i]
    if edge_margin(t.x, t.y) < 0.02:
        return None
    question = ask.pick(word.WHERE).format(one=look.phrase(), a_one=say.article(look.phrase()))
    s = ask.query("where", question).look_at(i)
    return s.say(ask.v.encode("At the"), 0.3).look_at(i).say(ask.v.encode(f" {place(t.x, t.y)}"), 2.0).say(
        ask.v.encode("."), 0.3).end(0.3)  # fmt: skip


def _where_all(ask: Ask) -> Stream | None:
    """Where several things are (or one, or none), at most the four leftmost."""
    look = ask.look(size=0.15, colour=0.6, kind=0.85)
    found = ask.matching(look)[:4]
    if any(edge_margin(ask.things[i].x, ask.things[i].y) < 0.012 for i in found):
        return None
    question = ask.pick(word.WHERE if ask.rng.random() < 0.4 else word.WHERE_ALL).format(
        one=look.phrase(), a_one=say.article(look.phrase()), many=look.phrase(many=True)
    )
    s = ask.query("where_all", question)
    if not found:
        return ask.answer(s, f"There is no {look.phrase()}.")
    for n, i in enumerate(found):
        t = ask.things[i]
        lead = "At the" if n == 0 else " and at the" if n == len(found) - 1 else ", at the"
        s.look_at(i).say(ask.v.encode(lead)).look_at(i).say(ask.v.encode(" " + place(t.x, t.y)), 1.5)
    return s.say(ask.v.encode("."), 0.5).end(0.3)


def is_it(ask: Ask) -> Stream | None:
    """Is something red (large, a star): yes or no; is it red or blue: what it is; are all things red."""
    rng = ask.rng
    if rng.random() < 0.2:
        return _all_are(ask)
    absent = rng.random() < 0.08
    found = ask.unique()
    if found is None:
        return None
    i, look = found
    if absent:
        look = Look(kind=rng.randrange(8))
        i = -1
        if ask.matching(look):
            return None
    open_ = [name for name, value in (("colour", look.colour), ("size", look.size), ("kind", look.kind)) if value < 0]
    if not open_:
        return None
    name = rng.choice(open_)
    names = {"colour": say.COLOURS, "size": say.SIZES, "kind": say.KINDS}[name]
    true = getattr(ask.things[i], name) if i >= 0 else -1
    asked, other = rng.sample(range(len(names)), 2)
    if i >= 0 and rng.random() < 0.4:
        return _is_or(ask, i, look, [say.article(n) if name == "kind" else n for n in names], (true, asked, other))
    if i >= 0 and rng.random() < 0.5:
        asked = true
    value = say.article(names[asked]) if name == "kind" else names[asked]
    s = ask.query("is_it", ask.pick(word.IS_IT).format(one=look.phrase(), a=value))
    return ask.answer(s, "yes" if asked == true else "no", i)


def _is_or(ask: Ask, i: int, look: Look, names: list[str], values: tuple[int, int, int]) -> Stream:
    """Is it one or the other: what it really is, mostly one of the two."""
    true, asked, other = values
    pair = [asked, other]
    if true not in pair and ask.rng.random() < 0.9:
        pair[ask.rng.randrange(2)] = true
    question = ask.pick(word.IS_OR).format(one=look.phrase(), a=names[pair[0]], b=names[pair[1]])
    reply = names[true].split()[-1]
    return ask.answer(ask.query("is_or", question), reply, i)


def _all_are(ask: Ask) -> Stream | None:
    first = ask.things[0]
    colour = first.colour if ask.rng.random() < 0.7 else ask.rng.randrange(8)
    look = Look(kind=first.kind if ask.rng.random() < 0.5 else -1, noun=ask.noun())
    found = ask.matching(look)
    everything = look.kind < 0 and ask.rng.random() < 0.4
    question = ask.pick(word.EVERYTHING if everything else word.ALL_ARE).format(
        many=look.phrase(many=True), one=look.phrase(), a=say.COLOURS[colour]
    )
    return ask.answer(
        ask.query("is_it", question), "yes" if all(ask.things[i].colour == colour for i in found) else "no"
    )


def palette(ask: Ask) -> Stream:
    """The colours of all things (or of one kind) in their order from the left; how many colours or kinds there are."""
    u = ask.rng.random()
    if u < 0.45:
        of_kinds = u < 0.22
        n = len({t.kind if of_kinds else t.colour for t in ask.things})
        return ask.answer(ask.query("palette", ask.pick(word.COUNT_KINDS if of_kinds else word.COUNT_COLOURS)), str(n))
    look = Look(-1, -1, ask.things[0].kind if u < 0.7 else -1, noun=ask.noun())
    colours = list(dict.fromkeys(say.COLOURS[ask.things[i].colour] for i in ask.matching(look)))
    question = ask.pick(word.PALETTE_OF).format(many=look.phrase(many=True)) if u < 0.78 else ask.pick(word.PALETTE)
    s = ask.query("palette", question)
    return s.say(ask.v.encode(say.join_list(colours)), 1.5).end()
