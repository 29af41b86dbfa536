"""Asking about a scene: descriptions of things, and the helpers that every kind of request is built with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from recipes.glint import chatter
from recipes.glint import phrases as say
from recipes.glint.scenes import Printed, Scene, Thing, describe
from recipes.glint.streams import ANSWER, THINK, Stream, Vocabulary
from recipes.glint.wordings import Wording

Box = tuple[float, float, float, float]


class Look(NamedTuple):
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
    """Everything a question needs: the scene, random choices, the vocabulary, and how much feedback is shaken.

    Things have the indices ``0..n-1``; the printed text, if any, has the index ``n`` (``text``). With ``unseen`` the
    questions use only wordings that training never sees.
    """

    def __init__(
        self, scene: Scene, rng: random.Random, vocabulary: Vocabulary, jitter: float = 0.0, *, unseen: bool = False
    ) -> None:
        self.scene, self.rng, self.v, self.unseen = scene, rng, vocabulary, unseen
        self.jitter = jitter if rng.random() < 0.8 else 0.0
        self.things = scene.things
        self.text = len(scene.things)

    def pick(self, wording: Wording) -> str:
        """One wording of a question."""
        return self.rng.choice(wording.held_out if self.unseen else wording.trained)

    def box(self, i: int) -> Box:
        """Centre and extent of a thing, or of the text."""
        if i < self.text:
            return self.scene.box(self.things[i])
        box = self.scene.text_box()
        if box is None:
            raise ValueError(f"index {i}: the scene has {self.text} things and no printed text")
        return box

    def name(self, i: int) -> tuple[str, str]:
        """Article and name of a thing, or of the text: ``("a", "large red circle")``, ``("the", "word STOP")``."""
        if i < self.text:
            return "a", describe(self.things[i])
        return "the", text_name(self.scene.printed)

    def everything(self) -> list[int]:
        """All things from the left, then the printed text."""
        return list(range(self.text + (self.scene.printed is not None)))

    def stream(self, skill: str, picture: bool = True) -> Stream:
        """A new empty stream."""
        return Stream(skill, self.jitter, self.rng, picture)

    def vary(self, text: str) -> str:
        """A question as people type it: perhaps in lower case, perhaps without its last mark."""
        u = self.rng.random()
        if u < 0.25:
            text = text.lower()
        elif u < 0.27:
            text = text.upper()
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

    def mention(self, s: Stream, items: Sequence[int], *, opening: str = "", places: bool = False) -> Stream:
        """``a large red circle, a small blue star and the word STOP``; at every article the stream notes what follows.

        ``opening`` replaces the first article.
        """
        for n, i in enumerate(items):
            article, name = self.name(i)
            lead = (", " if n < len(items) - 1 else " and ") + article if n else opening or article
            s.say(self.v.encode(lead)).look_at(i).say(self.v.encode(" " + name))
            if places:
                s.say(self.v.encode(" at the " + place(*self.box(i)[:2])), 0.7)
        return s

    def matching(self, look: Look) -> list[int]:
        """Indices of matching things, left to right."""
        if look.stranger:
            return []
        size, colour, kind = look[:3]
        return [
            i
            for i, t in enumerate(self.things)
            if kind in (-1, t.kind) and colour in (-1, t.colour) and size in (-1, t.size)
        ]

    def look(self, size: float = 0.2, colour: float = 0.55, kind: float = 0.75, strange: float = 0.06) -> Look:
        """A description: mostly of something that is there, sometimes with one attribute changed."""
        rng = self.rng
        noun = rng.choice(say.GENERIC)
        if rng.random() < strange:
            has = rng.random() < 0.3
            return Look(-1, rng.randrange(8) if has else -1, -1, self.stranger(), stranger=True)
        t = rng.choice(self.things)
        values = [t.size, t.colour, t.kind]
        u = rng.random()
        if u < 0.22:
            which = rng.randrange(3)
            values[which] = rng.randrange((3, 8, 8)[which])
        elif u < 0.32:
            values = [rng.randrange(3), rng.randrange(8), rng.randrange(8)]
        keep = [rng.random() < p for p in (size, colour, kind)]
        s, c, k = (value if kept else -1 for value, kept in zip(values, keep, strict=True))
        return Look(s, c, k, noun)

    def noun(self) -> tuple[str, str]:
        """A general noun and its plural."""
        return self.rng.choice(say.GENERIC)

    def stranger(self) -> tuple[str, str]:
        """A noun that no picture shows, and its plural."""
        if self.rng.random() < 0.4:
            return self.rng.choice(say.STRANGERS)
        noun = self.rng.choice(chatter.NOUNS)
        return noun, noun + "s"

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


def place(x: float, y: float) -> str:
    """Which ninth of the picture a point is in."""
    return say.PLACES[3 * min(2, int(y * 3)) + min(2, int(x * 3))]


def edge_margin(x: float, y: float) -> float:
    """How far a point is from the lines between the ninths."""
    return min(abs(v - edge) for v in (x, y) for edge in (1 / 3, 2 / 3))


def text_noun(printed: Printed) -> str:
    """``"number"`` for digits, else ``"word"``."""
    return "number" if printed.text.isdigit() else "word"


def text_name(printed: Printed | None) -> str:
    """``"word STOP"``; ``""`` when nothing is printed."""
    return f"{text_noun(printed)} {printed.text}" if printed else ""
