"""Queries with reasoning: point first, then say, then answer. A grounded phrase rests on the points it names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recipes.glint import groups, questions, reading, relations
from recipes.glint import phrases as say
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, Look, text_noun
from recipes.glint.scenes import describe
from recipes.glint.streams import ANSWER, GROUND, UNGROUND, Stream

THOUGHT = "I look at the picture."


def _grounded(ask: Ask, s: Stream, text: str, found: Sequence[int]) -> Stream:
    """``<7> text (x y)* <9>``: a phrase and the points it rests on."""
    s.say([GROUND]).say(ask.v.encode(text))
    for i in found:
        s.point(*ask.box(i)[:2], i)
    return s.say([UNGROUND])


def _conclude(ask: Ask, s: Stream, reply: str) -> Stream:
    """The answer after the reasoning: exactly one id 3 between them."""
    s.say([ANSWER])
    return ask.answer(s, reply)


def _missing(ask: Ask, s: Stream, look: Look) -> Stream:
    """The thought and the answer about what is not there."""
    s.say(ask.v.encode(f"I find no {look.phrase()}."))
    return _conclude(ask, s, f"There is no {look.phrase()}.")


def count(ask: Ask) -> Stream:
    """All points, then how many."""
    look, question = questions.count_parts(ask)
    found = ask.matching(look)
    s = ask.query("reason_count", question, think=True)
    if found:
        _grounded(ask, s, f"Each {look.phrase()}", found).say(ask.v.encode(f": {len(found)} in total."))
    else:
        s.say(ask.v.encode(f"I find no {look.phrase(many=True)}."))
    return _conclude(ask, s, str(len(found)))


def exists(ask: Ask) -> Stream:
    """The leftmost match, then yes; or no."""
    look, question = questions.exists_parts(ask)
    found = ask.matching(look)
    s = ask.query("reason_exists", question, think=True)
    if found:
        _grounded(ask, s, say.article(look.phrase()).capitalize(), found[:1]).say(ask.v.encode(" is there."))
    else:
        s.say(ask.v.encode(f"I find no {look.phrase(many=True)}."))
    return _conclude(ask, s, "yes" if found else "no")


def relative(ask: Ask) -> Stream | None:
    """Both things, then yes or no."""
    related = relations.relative_parts(ask)
    if related is None:
        return None
    question, holds, i, one, j, other = related
    s = ask.query("reason_relative", question, think=True)
    _grounded(ask, s, f"The {one.phrase()}", [i]).say(ask.v.encode(" and"))
    _grounded(ask, s, f" the {other.phrase()}", [j]).say(ask.v.encode("."))
    return _conclude(ask, s, "yes" if holds else "no")


def colour(ask: Ask) -> Stream | None:
    """The thing, then its colour."""
    parts = questions.colour_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("reason_colour", ask.pick(word.COLOUR).format(one=look.phrase()), think=True)
    return _attribute(ask, s, look, found, [say.COLOURS[ask.things[i].colour] for i in found])


def size(ask: Ask) -> Stream | None:
    """The thing, then its size."""
    parts = questions.size_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("reason_size", ask.pick(word.SIZE).format(one=look.phrase()), think=True)
    return _attribute(ask, s, look, found, [say.SIZES[ask.things[i].size] for i in found])


def shape(ask: Ask) -> Stream | None:
    """The thing, then its shape."""
    parts = questions.shape_parts(ask)
    if parts is None:
        return None
    look, found = parts
    s = ask.query("reason_shape", ask.pick(word.SHAPE).format(look=look.adjectives()), think=True)
    if not found:
        s.say(ask.v.encode(f"I find no {look.phrase()}."))
        return _conclude(ask, s, f"There is no {look.adjectives()} shape.")
    reply = say.KINDS[ask.things[found[0]].kind]
    _grounded(ask, s, f"The {look.phrase()}", found[:1]).say(ask.v.encode(f" is {say.article(reply)}."))
    return _conclude(ask, s, reply)


def _attribute(ask: Ask, s: Stream, look: Look, found: list[int], values: list[str]) -> Stream:
    if not found:
        return _missing(ask, s, look)
    _grounded(ask, s, f"The {look.phrase()}", found[:1]).say(ask.v.encode(f" is {values[0]}."))
    return _conclude(ask, s, values[0])


def extreme(ask: Ask) -> Stream | None:
    """The most extreme thing of a class, then its colour or what it is."""
    parts = relations.extreme_parts(ask)
    if parts is None:
        return None
    way, look, found = parts
    one = f"{way} {look.phrase()}"
    tint = ask.rng.random() < 0.4
    question = ask.pick(word.COLOUR if tint else word.EXTREME).format(one=one, noun=look.phrase(), extreme=way)
    s = ask.query("reason_extreme", question, think=True)
    if not found:
        return _missing(ask, s, look)
    t = ask.things[found[0]]
    reply = say.COLOURS[t.colour] if tint else say.article(describe(t))
    _grounded(ask, s, f"The {one}", found).say(ask.v.encode(f" is {reply}."))
    return _conclude(ask, s, reply)


def side(ask: Ask) -> Stream | None:
    """The anchor and what is on one side of it, then the list."""
    parts = relations.side_parts(ask)
    if parts is None:
        return None
    question, side, i, look, found = parts
    s = ask.query("reason_side", question, think=True)
    if i < 0:
        return _missing(ask, s, look)
    where = say.SIDES[side]
    _grounded(ask, s, f"The {look.phrase()}", [i]).say(ask.v.encode(" has" if found else f" has nothing {where}."))
    if not found:
        return _conclude(ask, s, "nothing")
    _grounded(ask, s, f" things {where}", found).say(ask.v.encode("."))
    return relations.listing(ask, s.say([ANSWER]), found)


def next_to(ask: Ask) -> Stream | None:
    """The anchor and its neighbour, then what the neighbour is."""
    parts = relations.next_parts(ask)
    if parts is None:
        return None
    question, i, look, found = parts
    s = ask.query("reason_next", question, think=True)
    if i < 0:
        return _missing(ask, s, look)
    _grounded(ask, s, f"The {look.phrase()}", [i])
    if not found:
        return _conclude(ask, s.say(ask.v.encode(" is alone.")), "nothing")
    s.say(ask.v.encode(" and"))
    _grounded(ask, s, " its nearest neighbor", found).say(ask.v.encode("."))
    return relations.listing(ask, s.say([ANSWER]), found)


def read(ask: Ask) -> Stream:
    """Where the text is, then what it says."""
    noun, question = reading.read_parts(ask)
    s = ask.query("reason_read", question, think=True)
    printed = ask.scene.printed
    found = reading.meant(ask, noun)
    if not found or not printed:
        return _conclude(ask, s.say(ask.v.encode(f"I find no {noun}.")), reading.absent(noun))
    _grounded(ask, s, f"The {text_noun(printed)}", found).say(ask.v.encode(f" says {printed.text}."))
    return _conclude(ask, s, printed.text)


OTHERS: tuple[Callable[[Ask], Stream | None], ...] = (
    questions.background, questions.where, questions.is_it, questions.palette, relations.at_place,
    relations.count_side, groups.groups, reading.written, reading.about_text,
)  # fmt: skip


def other(ask: Ask) -> Stream | None:
    """Any other question: a thought without points, then the same answer as without reasoning."""
    made = ask.rng.choice(OTHERS)(ask)
    return made and made.with_thought(ask.v.encode(THOUGHT))


REASONS: dict[Callable[[Ask], Stream | None], float] = {
    count: 4, exists: 1, colour: 1, size: 0.5, shape: 1, relative: 1, extreme: 1, side: 1.2, next_to: 0.6, other: 1.5,
}  # fmt: skip


def reason(ask: Ask) -> Stream | None:
    """A query with reasoning."""
    if ask.rng.random() < (0.15 if ask.scene.printed else 0.03):
        return read(ask)
    return ask.rng.choices(list(REASONS), list(REASONS.values()))[0](ask)
