"""point: where the objects of a name are."""

from __future__ import annotations

from collections.abc import Mapping

from gapless.records import Picture
from gapless.skills.base import Ask, SkillContext, greedy_sampling, pictured, supported, to_prompt, user_text, wrapped
from gapless.skills.settings import Settings
from gapless.skills.spatial import PlacesReader, SpatialRefs, references


def point(
    context: SkillContext,
    picture: Picture | None,
    object: object,
    *,
    spatial_refs: SpatialRefs | None = None,
    settings: Mapping[str, object] | None = None,
) -> Ask:
    """Ask for `{"points": [{"x", "y"}]}`, at most `max_objects` of them; nothing found is an empty list."""
    wrap = supported(context, "point", context.templates.point)
    chosen = Settings.parse(settings)
    refs = references(context, spatial_refs)
    body = wrapped(context, wrap, user_text(object, "object"), refs, "object")
    prompt = to_prompt(context, pictured(picture, "point"), body)
    sampling = greedy_sampling(context, prompt, chosen, stride=2)
    return Ask(prompt, "point", sampling, PlacesReader(context, "points"), chosen.timeout, adapter=chosen.adapter)
