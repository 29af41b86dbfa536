"""A question of the evaluation put to the library: a model, a picture and the question in; the answer in the form of
the truth out. Greedy, so that one asked twice is one answer.
"""

from __future__ import annotations

from recipes.glint.exam import Answer, Question

import gapless

GREEDY = {"temperature": 0.0}


def ask(vlm: gapless.VLM, image: gapless.EncodedImage, q: Question) -> Answer:
    """Put one question and bring what comes back into the form of the truth."""
    match q.skill:
        case "caption":
            return Answer(vlm.caption(image, q.text, settings=GREEDY)["caption"].strip())
        case "point":
            found = vlm.point(image, q.text, settings=GREEDY, spatial_refs=q.refs or None)["points"]
            return Answer(points=tuple((p["x"], p["y"]) for p in found))
        case "detect":
            return Answer(boxes=tuple(map(_box, vlm.detect(image, q.text, settings=GREEDY)["objects"])))
        case "segment":
            got = vlm.segment(image, q.text, spatial_refs=q.refs or None, settings=GREEDY)
            return Answer(boxes=(_box(got["bbox"]),) if got["bbox"] else (), path=got["path"])
    got = vlm.query(image if q.picture else None, q.text, settings=GREEDY, reasoning=q.reasoning,
                    spatial_refs=q.refs or None)  # fmt: skip
    grounding = got["reasoning"]["grounding"] if q.reasoning else []
    return Answer(got["answer"].strip(), tuple((x, y) for piece in grounding for x, y in piece["points"]))


def _box(edges: dict[str, float]) -> tuple[float, float, float, float]:
    return edges["x_min"], edges["y_min"], edges["x_max"], edges["y_max"]
