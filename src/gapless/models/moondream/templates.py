"""Prompt templates and special ids, by revision.

In: a checkpoint's config, whose `revision` says how its ids are used. Out: `Templates`, plain data that the skills wrap
around a user's text, and the `Rules` the constraint tables are built from. Invariant: ids here are the only special ids
that ever enter a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gapless.constrain.table import Rules
from gapless.errors import InvalidCheckpoint
from gapless.models.moondream.config import MoondreamConfig, Template

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids that are not text. Tokenizers of before 2025-06-21 have a text for none of them but `bos` and `eos`."""

    bos: int
    eos: int
    answer: int | None = None
    thinking: int | None = None
    coord: int | None = None
    size: int | None = None
    ground: int | None = None
    """Opens a stretch of reasoning that points at places; `unground` opens the stretch after it."""
    unground: int | None = None

    def all(self) -> frozenset[int]:
        """Every id that is set."""
        fields = (self.bos, self.eos, self.answer, self.thinking, self.coord, self.size, self.ground, self.unground)
        return frozenset(i for i in fields if i is not None)


@dataclass(frozen=True, slots=True)
class Wrap:
    """What stands around a user's text: `prefix` ids, [spatial references], text, `suffix` ids.

    `space`: the text is encoded with one leading space.
    """

    prefix: Ids
    suffix: Ids
    space: bool = False


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a revision's own code uses where a caller sets nothing. Temperature 0 is argmax."""

    temperature: float
    top_p: float
    max_tokens: int
    max_objects: int


@dataclass(frozen=True, slots=True)
class Habits:
    """How a revision differs from its neighbours beside the ids.

    `doubled`: a query ends with the answer id and then once more with it (or with the thinking id): the reference adds
    its suffix twice and the model was trained so. `mask_answer`: see `Rules`. `spaced`: questions get a leading space.
    `worded`: the templates are words and end with them; there is no answer id, and no reasoning. `gaze_points`: a gaze
    is a point whose object is named "gaze"; else it has a prompt of its own, in words.
    """

    doubled: bool
    mask_answer: bool
    spaced: bool
    defaults: Defaults
    worded: bool = False
    gaze_points: bool = False


HABITS: Mapping[str, Habits] = {
    "2025-01-09": Habits(False, False, False, Defaults(0.0, 1.0, 512, 50), worded=True),
    "2025-03-27": Habits(False, False, True, Defaults(0.0, 1.0, 768, 50), worded=True),
    "2025-04-14": Habits(False, False, True, Defaults(0.5, 0.3, 768, 50), worded=True),
    "2025-06-21": Habits(True, True, False, Defaults(0.5, 0.3, 768, 50)),
    "moondream3": Habits(False, False, False, Defaults(0.5, 0.9, 768, 150), gaze_points=True),
    "moondream3.1": Habits(False, False, False, Defaults(0.5, 0.9, 768, 150), gaze_points=True),
}


WORDS: Mapping[Ids, str] = {
    (198, 198, 16438, 8305, 25): "Short caption:",
    (198, 198, 24334, 1159, 25): "Caption:",
    (198, 198, 14617, 8305, 25): "Long caption:",
    (198, 198, 24361, 25): "Question:",
    (198, 198, 33706, 25): "Answer:",
    (198, 198, 47504, 25): "Detect:",
    (198, 198, 12727, 25): "Point:",
}
"""What the published templates of the revisions that are asked in words say in their tokenizer, GPT-2's."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What ids of a template have to say in the model's own tokenizer, in any case of letters."""

    name: str
    ids: Ids
    words: str


@dataclass(frozen=True, slots=True)
class Templates:
    """All that a model's prompts are made of. A skill the model lacks is None; `reason` None: no reasoning.

    `captions` maps each length to its ids. `worded` and `gaze_points`: see `Habits`; a worded model takes no spatial
    references. `vocab` is the width of the logits (may exceed the tokenizer's).
    """

    revision: str
    vocab: int
    ids: SpecialIds
    captions: Mapping[str, Ids]
    query: Wrap | None
    reason: Wrap | None
    point: Wrap | None
    detect: Wrap | None
    segment: Wrap | None
    mask_answer: bool
    worded: bool
    gaze_points: bool
    defaults: Defaults

    @classmethod
    def of(cls, config: MoondreamConfig) -> Templates:
        """The templates of a checkpoint that gives its ids, as its revision uses them. Raises `InvalidCheckpoint`."""
        habits = habits_of(config.revision)
        tokenizer, skills = config.tokenizer, config.tokenizer.templates
        return cls(
            revision=config.revision,
            vocab=config.text.vocab_size,
            ids=SpecialIds(
                bos=tokenizer.bos_id,
                eos=tokenizer.eos_id,
                answer=tokenizer.answer_id,
                thinking=tokenizer.thinking_id,
                coord=tokenizer.coord_id,
                size=tokenizer.size_id,
                ground=tokenizer.start_ground_points_id,
                unground=tokenizer.end_ground_id,
            ),
            captions=dict(skills.caption or {}),
            query=_query(skills.query, tokenizer.answer_id, habits),
            reason=None if habits.worded else _query(skills.query, tokenizer.thinking_id, habits),
            point=_wrap(skills.point, space=True),
            detect=_wrap(skills.detect, space=True),
            segment=_wrap(skills.segment, space=False),
            mask_answer=habits.mask_answer,
            worded=habits.worded,
            gaze_points=habits.gaze_points,
            defaults=habits.defaults,
        )

    def skills(self) -> tuple[str, ...]:
        """Names of what the model can be asked for."""
        having = {
            "query": self.query,
            "reasoning": self.reason,
            "caption": self.captions,
            "point": self.point,
            "detect": self.detect,
            "segment": self.segment,
            "gaze": self.point,
            "chat": self.query,
        }
        return tuple(skill for skill, template in having.items() if template)

    def readings(self) -> tuple[Reading, ...]:
        """The templates of which it is known what they say: words of their own, or captions by their lengths."""
        own = WORDS if self.worded else {}
        read = [Reading(f"{length} caption", ids, own.get(ids, length)) for length, ids in self.captions.items()]
        asked = {"query": self.query, "detect": self.detect, "point": self.point}
        wraps = [(skill, ids) for skill, wrap in asked.items() if wrap for ids in (wrap.prefix, wrap.suffix)]
        return (*read, *(Reading(skill, ids, own[ids]) for skill, ids in wraps if ids in own))

    def rules(self) -> Rules:
        """The constraint rules of this model. Raises `InvalidCheckpoint` for a tokenizer without coordinate ids."""
        ids = self.ids
        if ids.answer is None or ids.coord is None or ids.size is None:
            raise InvalidCheckpoint(
                f"revision {self.revision} has no answer, coordinate and size ids, so its decoding cannot be "
                "constrained; use revision 2025-06-21 or later"
            )
        return Rules(
            self.vocab, ids.eos, ids.answer, ids.coord, ids.size, self.mask_answer, habits_of(self.revision).worded
        )


def habits_of(revision: str) -> Habits:
    """Look a revision up. Raises `InvalidCheckpoint` with the known ones."""
    if revision not in HABITS:
        raise InvalidCheckpoint(f"unknown revision {revision!r}; known are {', '.join(HABITS)}")
    return HABITS[revision]


def _wrap(template: Template | None, *, space: bool) -> Wrap | None:
    return None if template is None else Wrap(template.prefix, template.suffix, space)


def _query(query: Template | None, last: int, habits: Habits) -> Wrap | None:
    """A query that ends with `last`. The config gives the single form, which ends with the answer id, or words."""
    if query is None or habits.worded:
        return _wrap(query, space=habits.spaced)
    kept = query.suffix if habits.doubled else query.suffix[:-1]
    return Wrap(query.prefix, (*kept, last), habits.spaced)
