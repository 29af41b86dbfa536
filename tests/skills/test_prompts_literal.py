"""Every prompt as a literal list of ids: skill x revision x reasoning x references, from the published templates.

`prompt_ids.json` was written from the published tables, not by this code; null where a revision lacks the skill. Words
go through the golden models' tokenizer, whose ids stand in it: "a dog?" is 85 410 51, " a dog?" 279 410 51, "dog" 312
91, " dog" 410, " gaze" 241 400, "red" 278 88. References are a point and a box: 5 5, 5 5 6. Revisions asked in words
have no ids for places; 51196, which their tokenizer leaves without a text, stands where a coordinate is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gapless.errors import InvalidRequest, UnsupportedSkill
from gapless.models.moondream.config import REVISIONS
from gapless.models.moondream.templates import Templates
from gapless.records import Picture
from gapless.skills.base import Ask, SkillContext
from gapless.skills.caption import caption
from gapless.skills.chat import chat
from gapless.skills.detect import detect
from gapless.skills.gaze import gaze
from gapless.skills.messages import read_messages
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment

WRITTEN: Mapping[str, Mapping[str, list[int] | None]] = json.loads(
    (Path(__file__).resolve().parents[1] / "data" / "prompt_ids.json").read_text()
)
REFS = [[0.25, 0.5], [0.1, 0.2, 0.6, 0.9]]
SKILLS = {
    *(f"caption {length}" for length in ("short", "normal", "long")),
    *(f"query{r}{rest}" for r in ("", ", reasoning") for rest in ("", ", no picture", ", refs")),
    *(f"{skill}{refs}" for skill in ("point", "segment") for refs in ("", ", refs")),
    "detect",
    "gaze",
}
CHATS = {"chat", "chat, reasoning, no picture"}


def asked(context: SkillContext, picture: Picture, case: str) -> Ask:
    """The case's question."""
    skill, *rest = case.split(", ")
    refs: Any = REFS if "refs" in rest else None
    shown = None if "no picture" in rest else picture
    reasoning = "reasoning" in rest
    match skill:
        case "query":
            return query(context, shown, "a dog?", reasoning=reasoning, spatial_refs=refs)
        case "point":
            return point(context, shown, "dog", spatial_refs=refs)
        case "detect":
            return detect(context, shown, "dog")
        case "segment":
            return segment(context, shown, "dog", spatial_refs=refs)
        case "gaze":
            return gaze(context, shown, (0.25, 0.5))
        case "chat":
            parts = [{"type": "text", "text": "a dog?"}]
            parts += [{"type": "image_url", "image_url": {"url": "data:,"}}] if shown else []
            turns = [{"role": "user", "content": parts}, {"role": "assistant", "content": "red"}]
            turns.append({"role": "user", "content": "a dog?"})
            return chat(context, read_messages(turns), [picture] if shown else [], reasoning=reasoning)
    return caption(context, shown, skill.removeprefix("caption "))


def test_the_matrix_is_whole() -> None:
    assert set(WRITTEN) == set(REVISIONS)
    for revision, cases in WRITTEN.items():
        assert set(cases) == SKILLS | (set() if revision.startswith(("2025-01", "2025-03", "2025-04")) else CHATS)


@pytest.mark.parametrize(("revision", "case"), [(r, case) for r, cases in WRITTEN.items() for case in cases])
def test_prompts_are_the_written_ids(md2: SkillContext, picture: Picture, revision: str, case: str) -> None:
    context = replace(md2, templates=Templates.of(REVISIONS[revision]), name=revision)
    ids = WRITTEN[revision][case]
    if ids is None:
        with pytest.raises(InvalidRequest if case == "caption long" else UnsupportedSkill):
            asked(context, picture, case)
        return
    prompt = asked(context, picture, case).prompt
    assert list(prompt.ids) == ids
    valued = [at for at, values in enumerate(prompt.values) if values]
    coords, size = context.templates.ids.coord, context.templates.ids.size
    assert valued == [at for at, i in enumerate(ids) if i in (coords, size)]
