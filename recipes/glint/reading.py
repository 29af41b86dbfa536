"""Questions about the printed word or number. Answers are the text as it is printed: capitals or digits."""

from __future__ import annotations

import math

from recipes.glint import phrases as say
from recipes.glint import wordings as word
from recipes.glint.ask import Ask, edge_margin, place, text_noun
from recipes.glint.streams import Stream

INKS = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}
OUTLINE = ("M", "0", "0", "L", "960", "0", "960", "960", "0", "960", "Z")


def ink_name(rgb: tuple[float, float, float]) -> str | None:
    """``"black"`` or ``"white"`` when the ink is that, else None: dark or tinted inks have no clear name."""
    return next((name for name, pure in INKS.items() if math.dist(rgb, pure) < 0.1), None)


def meant(ask: Ask, noun: str) -> list[int]:
    """The printed text if a noun means it: "text" means both, "word" only letters, "number" only digits."""
    printed = ask.scene.printed
    return [ask.text] if printed and noun in ("text", text_noun(printed)) else []


def some_noun(ask: Ask) -> str:
    """Mostly a noun that fits what is printed."""
    printed = ask.scene.printed
    if printed and ask.rng.random() < 0.75:
        return ask.rng.choice(("text", text_noun(printed)))
    return ask.rng.choice(say.TEXT_NOUNS)


def absent(noun: str) -> str:
    """``"There is no word."``."""
    return f"There is no {noun}."


def read_parts(ask: Ask) -> tuple[str, str]:
    """The noun and the question."""
    if ask.rng.random() < 0.55:
        return "text", ask.pick(word.READ)
    noun = some_noun(ask)
    return noun, ask.pick(word.READ_ONE).format(one=noun)


def read(ask: Ask) -> Stream:
    """What is printed."""
    noun, question = read_parts(ask)
    s = ask.query("read", question)
    found = meant(ask, noun)
    if not found or not ask.scene.printed:
        return ask.answer(s, absent(noun))
    return s.look_at(ask.text).say(ask.v.encode(ask.scene.printed.text), 1.5).end(1.0)


def written(ask: Ask) -> Stream:
    """Is there text (a word, a number); does it say a certain word."""
    rng, printed = ask.rng, ask.scene.printed
    if printed and rng.random() < 0.3:
        asked = printed.text if rng.random() < 0.5 else other_text(ask)
        question = ask.pick(word.SAYS).format(a=asked, one=text_noun(printed))
        return ask.answer(ask.query("says", question), "yes" if asked == printed.text else "no", ask.text)
    noun = "text"
    question = ask.pick(word.WRITTEN)
    if rng.random() < 0.5:
        noun = some_noun(ask)
        one = "any text" if noun == "text" else "a " + noun
        question = ask.pick(word.EXISTS).format(a_one=one, one=noun, many=noun + "s" * (noun != "text"))
    found = meant(ask, noun)
    return ask.answer(ask.query("written", question), "yes" if found else "no", found[0] if found else -1)


def other_text(ask: Ask) -> str:
    """A text that is not what is printed."""
    printed = ask.scene.printed
    known = printed.text if printed else ""
    other = str(ask.rng.randrange(1, 1000)) if known.isdigit() else ask.rng.choice(say.WORDS)
    return other if other != known else known + known[-1]


def about_text(ask: Ask) -> Stream | None:
    """Where the text is; its colour, when the ink has a name."""
    noun = some_noun(ask)
    found = meant(ask, noun)
    printed = ask.scene.printed
    if ask.rng.random() < 0.5:
        s = ask.query("where_text", ask.pick(word.WHERE).format(one=noun, a_one="the " + noun))
        if not found or not printed:
            return ask.answer(s, absent(noun))
        if edge_margin(printed.x, printed.y) < 0.02:
            return None
        return ask.answer(s, f"At the {place(printed.x, printed.y)}.", ask.text)
    s = ask.query("ink", ask.pick(word.COLOUR).format(one=noun))
    if not found or not printed:
        return ask.answer(s, absent(noun))
    ink = ink_name(printed.rgb)
    return ask.answer(s, ink, ask.text) if ink else None


def text_object(ask: Ask) -> tuple[str, list[int]]:
    """The text as something to find: a noun, or the very text that is (or is not) printed."""
    rng, printed = ask.rng, ask.scene.printed
    if printed and rng.random() < 0.2:
        asked = printed.text if rng.random() < 0.75 else other_text(ask)
        noun = "number" if asked.isdigit() else "word"
        text = rng.choice((asked, f"the {noun} {asked}", f"{noun} {asked}", f'"{asked}"', f"the text {asked}"))
        return text, [ask.text] if asked == printed.text else []
    noun = some_noun(ask)
    form = noun + "s" if noun != "text" and rng.random() < 0.12 else noun
    text = rng.choice((form, form, form, "the " + form, "the " + form, "printed " + form, form.capitalize()))
    return text, meant(ask, noun)
