"""Two descriptions in one request: stars and circles, a star or a circle, more stars than circles."""

from __future__ import annotations

from recipes.glint import phrases as say
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, Look
from recipes.glint.streams import Stream


def two_looks(ask: Ask) -> tuple[Look, Look] | None:
    """Two different descriptions that nothing in the picture fits both of: two kinds, two colours, or any two."""
    rng = ask.rng
    one, other = ask.look(size=0.06, strange=0.02), ask.look(size=0.06, strange=0.02)
    if rng.random() < 0.5:
        noun = ask.noun()
        one, other = Look(kind=one.kind, noun=noun), Look(kind=other.kind, noun=noun)
        if one.kind < 0 or other.kind < 0:
            colours = rng.sample(range(8), 2)
            one, other = (Look(colour=c, noun=noun) for c in colours)
    a, b = one.phrase(), other.phrase()
    bare = any(not look.stranger and look.kind < 0 and not look.adjectives() for look in (one, other))
    shared = any(one.matches(t) and other.matches(t) for t in ask.things)
    return None if bare or a == b or shared else (one, other)


def union(ask: Ask, one: Look, other: Look) -> list[int]:
    """Things that fit one of two descriptions, left to right."""
    return [i for i, t in enumerate(ask.things) if one.matches(t) or other.matches(t)]


def two_objects(ask: Ask) -> tuple[str, list[int]] | None:
    """``"stars and circles"``, ``"the red star and the blue circle"``, and what they mean."""
    looks = two_looks(ask)
    if looks is None:
        return None
    one, other = looks
    many = ask.rng.random() < 0.55
    a, b = one.phrase(many), other.phrase(many)
    text = ask.rng.choice((f"{a} and {b}", f"{a} and {b}", f"the {a} and the {b}", f"{a} or {b}", f"all {a} and {b}"))
    return text, union(ask, one, other)


def count_both(ask: Ask) -> Stream | None:
    """How many things fit one of two descriptions."""
    looks = two_looks(ask)
    if looks is None:
        return None
    question = ask.pick(word.COUNT_BOTH).format(many=looks[0].phrase(True), others=looks[1].phrase(True))
    return ask.answer(ask.query("count_both", question), str(len(union(ask, *looks))))


def exist_both(ask: Ask) -> Stream | None:
    """Is one of two things there (or), are both (and)."""
    looks = two_looks(ask)
    if looks is None:
        return None
    one, other = looks
    either = ask.rng.random() < 0.5
    question = ask.pick(word.EITHER if either else word.BOTH).format(
        a_one=say.article(one.phrase()),
        a_other=say.article(other.phrase()),
        many=one.phrase(True),
        others=other.phrase(True),
    )
    there = [bool(ask.matching(look)) for look in looks]
    return ask.answer(ask.query("exist_both", question), "yes" if (any if either else all)(there) else "no")


def compare(ask: Ask) -> Stream | None:
    """Are there more (fewer) of one than of the other."""
    looks = two_looks(ask)
    if looks is None:
        return None
    more = ask.rng.random() < 0.7
    question = ask.pick(word.MORE_THAN if more else word.FEWER_THAN).format(
        many=looks[0].phrase(True), others=looks[1].phrase(True)
    )
    a, b = (len(ask.matching(look)) for look in looks)
    return ask.answer(ask.query("compare", question), "yes" if (a > b if more else a < b) else "no")


GROUPS = (count_both, exist_both, compare)


def groups(ask: Ask) -> Stream | None:
    """A question with two descriptions."""
    return ask.rng.choice(GROUPS)(ask)
