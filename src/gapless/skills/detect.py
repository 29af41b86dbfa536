"""detect: boxes around the objects of a name."""

from __future__ import annotations

from collections.abc import Mapping

from gapless.records import Picture
from gapless.skills.base import (
    NOTHING,
    Ask,
    SkillContext,
    greedy_sampling,
    pictured,
    supported,
    to_prompt,
    user_text,
    wrapped,
)
from gapless.skills.settings import Settings
from gapless.skills.spatial import PlacesReader


def detect(
    context: SkillContext,
    picture: Picture | None,
    object: object,
    *,
    settings: Mapping[str, object] | None = None,
) -> Ask:
    """Ask for `{"objects": [{"x_min", "y_min", "x_max", "y_max"}]}`, clamped to the picture; perhaps an empty list."""
    wrap = supported(context, "detect", context.templates.detect)
    chosen = Settings.parse(settings)
    body = wrapped(context, wrap, user_text(object, "object"), NOTHING, "object")
    prompt = to_prompt(context, pictured(picture, "detect"), body)
    sampling = greedy_sampling(context, prompt, chosen, stride=3)
    return Ask(prompt, "detect", sampling, PlacesReader(context, "objects"), chosen.timeout, adapter=chosen.adapter)
