"""Small talk, questions about anything else, and questions about a picture that nobody sent."""

from __future__ import annotations

from collections.abc import Callable

from recipes.glint import chatter, groups, questions, reading, relations
from recipes.glint import wordings as word
from recipes.glint.ask import Ask
from recipes.glint.streams import ANSWER, EOS, THINK, Stream

THOUGHT = "I see no picture."


def look(ask: Ask) -> Stream:
    """A question about everything in the picture; only its prompt matters here."""
    return ask.query("overview", ask.pick(word.LOOK if ask.rng.random() < 0.7 else word.SHAPES))


ABOUT_PICTURES: tuple[Callable[[Ask], Stream | None], ...] = (
    look, look, questions.count, questions.count, questions.colour, questions.shape, questions.size, questions.exists,
    questions.background, questions.where, questions.is_it, questions.palette, relations.relative, relations.side,
    relations.next_to, relations.count_side, relations.extreme, relations.at_place, groups.groups, reading.read,
    reading.written, reading.about_text,
)  # fmt: skip


def no_picture(ask: Ask) -> Stream | None:
    """Any question about a picture, without one."""
    made = ask.rng.choice(ABOUT_PICTURES)(ask)
    if made is None:
        return None
    asked = made.ids[: made.prompt_length - 1]
    if ask.rng.random() < 0.15:
        s = ask.stream("reason_text", picture=False).feed([EOS]).feed([*asked, THINK])
        s.say(ask.v.encode(THOUGHT), 0.3).say([ANSWER])
    else:
        s = ask.stream("talk_text", picture=False).feed([EOS]).feed([*asked, ANSWER])
    return ask.answer(s, chatter.NO_PICTURE)


def talk(ask: Ask) -> Stream:
    """Small talk, with the picture or without one; questions about pictures without a picture ask for one."""
    rng = ask.rng
    if rng.random() < 0.35:
        made = no_picture(ask)
        if made is not None:
            return made
    questions_, reply = rng.choice(chatter.TALK)
    question = rng.choice(questions_)
    if rng.random() < 0.5 or ask.unseen:
        a, b = rng.choice(chatter.NOUNS), rng.choice(chatter.NOUNS)
        far = chatter.HELD_OUT_FAR_AFIELD if ask.unseen else chatter.FAR_AFIELD
        question, reply = rng.choice(far).format(a=a, b=b), chatter.NO_IDEA
    if rng.random() < 0.55:
        return ask.answer(ask.query("talk", question), reply)
    s = ask.stream("talk_text", picture=False).feed([EOS])
    s.feed(ask.v.prompt("query", ask.v.encode(ask.vary(question)), (ANSWER,)))
    return ask.answer(s, reply)
