"""Prompt templates and special ids, by revision.

In: the `tokenizer` section of a checkpoint's config.json (or, where a published checkpoint carries none, the tables
below) and the revision. Out: `Templates`, plain data that the skills wrap around a user's text, and the `Rules` the
constraint tables are built from. Invariant: ids here are the only special ids that ever enter a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gapless.constrain.table import Rules
from gapless.errors import InvalidCheckpoint

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids that are not text. Tokenizers of before 2025-06-21 have only `bos` and `eos`; the others are None there."""

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
    """

    doubled: bool
    mask_answer: bool
    spaced: bool
    defaults: Defaults


HABITS: Mapping[str, Habits] = {
    "2025-01-09": Habits(False, False, False, Defaults(0.0, 1.0, 512, 50)),
    "2025-03-27": Habits(False, False, True, Defaults(0.0, 1.0, 768, 50)),
    "2025-04-14": Habits(False, False, True, Defaults(0.5, 0.3, 768, 50)),
    "2025-06-21": Habits(True, True, False, Defaults(0.5, 0.3, 768, 50)),
    "moondream3": Habits(False, False, False, Defaults(0.5, 0.9, 768, 150)),
}


@dataclass(frozen=True, slots=True)
class Templates:
    """All that a model's prompts are made of. A skill the model lacks is None; `reason` None: no reasoning.

    `captions` maps each length to its ids. `vocab` is the width of the logits (may exceed the tokenizer's).
    """

    revision: str
    vocab: int
    ids: SpecialIds
    captions: Mapping[str, Ids]
    query: Wrap
    reason: Wrap | None
    point: Wrap | None
    detect: Wrap | None
    segment: Wrap | None
    mask_answer: bool
    defaults: Defaults

    @classmethod
    def from_config(cls, section: Mapping[str, Any], revision: str, vocab: int) -> Templates:
        """Read a config.json's `tokenizer` section. Raises `InvalidCheckpoint` naming the entry that is wrong."""
        habits = habits_of(revision)
        ids = _special_ids(section, vocab)
        skills = section.get("templates")
        if not isinstance(skills, Mapping):
            raise InvalidCheckpoint("config.json: tokenizer.templates is missing; without it no prompt can be built")
        query = _wrap(skills, "query", vocab, habits.spaced)
        if query is None:
            raise InvalidCheckpoint("config.json: tokenizer.templates.query is missing")
        answer, reason = _query_forms(query, ids, habits.doubled)
        return cls(
            revision=revision,
            vocab=vocab,
            ids=ids,
            captions=_captions(skills, vocab),
            query=answer,
            reason=reason,
            point=_wrap(skills, "point", vocab, True),
            detect=_wrap(skills, "detect", vocab, True),
            segment=_wrap(skills, "segment", vocab, False),
            mask_answer=habits.mask_answer,
            defaults=habits.defaults,
        )

    @classmethod
    def published(cls, revision: str, vocab: int = 51200) -> Templates:
        """The templates of a published checkpoint, whose own config.json carries none."""
        habits_of(revision)
        return cls.from_config(_PUBLISHED[revision], revision, vocab)

    def rules(self) -> Rules:
        """The constraint rules of this model. Raises `InvalidCheckpoint` for a tokenizer without coordinate ids."""
        ids = self.ids
        if ids.answer is None or ids.coord is None or ids.size is None:
            raise InvalidCheckpoint(
                f"revision {self.revision} has no answer, coordinate and size ids, so its decoding cannot be "
                "constrained; use revision 2025-06-21 or later"
            )
        return Rules(self.vocab, ids.eos, ids.answer, ids.coord, ids.size, self.mask_answer)


def habits_of(revision: str) -> Habits:
    """Look a revision up. Raises `InvalidCheckpoint` with the known ones."""
    if revision not in HABITS:
        raise InvalidCheckpoint(f"unknown revision {revision!r}; known are {', '.join(HABITS)}")
    return HABITS[revision]


def _special_ids(section: Mapping[str, Any], vocab: int) -> SpecialIds:
    def get(key: str) -> int | None:
        value = section.get(key)
        return None if value is None else _ids([value], f"tokenizer.{key}", vocab)[0]

    bos, eos = get("bos_id"), get("eos_id")
    if bos is None or eos is None:
        raise InvalidCheckpoint("config.json: tokenizer.bos_id and tokenizer.eos_id must be given")
    return SpecialIds(
        bos,
        eos,
        answer=get("answer_id"),
        thinking=get("thinking_id"),
        coord=get("coord_id"),
        size=get("size_id"),
        ground=get("start_ground_points_id"),
        unground=get("end_ground_id"),
    )


def _query_forms(query: Wrap, ids: SpecialIds, doubled: bool) -> tuple[Wrap, Wrap | None]:
    """The query template for answering at once and for reasoning first.

    The config gives the single form, which ends with the answer id. Reasoning ends with the thinking id instead.
    """
    tail = query.suffix[-1:] if doubled else ()
    answer = Wrap(query.prefix, query.suffix + tail, query.space)
    if ids.thinking is None or ids.answer is None:
        return answer, None
    kept = query.suffix if doubled else query.suffix[:-1]
    return answer, Wrap(query.prefix, (*kept, ids.thinking), query.space)


def _captions(skills: Mapping[str, Any], vocab: int) -> dict[str, Ids]:
    found = skills.get("caption") or {}
    if not isinstance(found, Mapping):
        raise InvalidCheckpoint("config.json: tokenizer.templates.caption must map each length to its ids")
    return {str(name): _ids(ids, f"tokenizer.templates.caption.{name}", vocab) for name, ids in found.items()}


def _wrap(skills: Mapping[str, Any], name: str, vocab: int, space: bool) -> Wrap | None:
    found = skills.get(name)
    if found is None:
        return None
    where = f"tokenizer.templates.{name}"
    if not isinstance(found, Mapping) or "prefix" not in found or "suffix" not in found:
        raise InvalidCheckpoint(f"config.json: {where} must hold `prefix` and `suffix`")
    prefix, suffix = (_ids(found[part], f"{where}.{part}", vocab) for part in ("prefix", "suffix"))
    return Wrap(prefix, suffix, space)


def _ids(values: object, where: str, vocab: int) -> Ids:
    if not isinstance(values, list | tuple):
        raise InvalidCheckpoint(f"config.json: {where} must be a list of ids, not {values!r}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab:
            raise InvalidCheckpoint(f"config.json: {where} holds {value!r}, which is no id of a vocabulary of {vocab}")
    return tuple(values)


def _gpt2(captions: dict[str, list[int]]) -> dict[str, Any]:
    """The templates in words: "\\n\\nQuestion:" text "\\n\\nAnswer:", "\\n\\nDetect:" text "\\n\\n", and so on."""
    return {
        "bos_id": 50256,
        "eos_id": 50256,
        "templates": {
            "caption": captions,
            "query": {"prefix": [198, 198, 24361, 25], "suffix": [198, 198, 33706, 25]},
            "detect": {"prefix": [198, 198, 47504, 25], "suffix": [628]},
            "point": {"prefix": [198, 198, 12727, 25], "suffix": [628]},
        },
    }


def _starmie(segment: bool) -> dict[str, Any]:
    skills: dict[str, Any] = {
        "caption": {"short": [1, 32708, 2, 12492, 3], "normal": [1, 32708, 2, 6382, 3], "long": [1, 32708, 2, 4059, 3]},
        "query": {"prefix": [1, 15381, 2], "suffix": [3]},
        "detect": {"prefix": [1, 7235, 476, 2], "suffix": [3]},
        "point": {"prefix": [1, 2581, 2], "suffix": [3]},
    }
    if segment:
        skills["segment"] = {"prefix": [1, 17374, 2], "suffix": [3]}
    return {
        "bos_id": 0,
        "eos_id": 0,
        "answer_id": 3,
        "thinking_id": 4,
        "coord_id": 5,
        "size_id": 6,
        "start_ground_points_id": 7,
        "end_ground_id": 9,
        "templates": skills,
    }


_SHORT, _NORMAL, _LONG = [198, 198, 16438, 8305, 25], [198, 198, 24334, 1159, 25], [198, 198, 14617, 8305, 25]
_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "2025-01-09": _gpt2({"short": _SHORT, "normal": _NORMAL}),
    "2025-03-27": _gpt2({"short": _SHORT, "normal": _NORMAL, "long": _LONG}),
    "2025-04-14": _gpt2({"short": _SHORT, "normal": _NORMAL, "long": _LONG}),
    "2025-06-21": _starmie(segment=False),
    "moondream3": _starmie(segment=True),
}
