"""The published ids of every prompt: skill x revision x reasoning x spatial references, written out by hand.

Users' words go through the golden models' tokenizer: only the templates' ids are at stake, the real ones are not here.
"""

from dataclasses import replace

import pytest

from gapless.errors import UnsupportedSkill
from gapless.models.moondream.config import REVISIONS
from gapless.models.moondream.templates import Templates
from gapless.skills.caption import caption
from gapless.skills.detect import detect
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment

WORDED = ("2025-01-09", "2025-03-27", "2025-04-14")
THIRD = ("moondream3", "moondream3.1")
REFS = [[0.25, 0.5], [0.1, 0.2, 0.6, 0.9]]
PLACES = (5, 5, 5, 5, 6)

IN_WORDS = {
    "short": (198, 198, 16438, 8305, 25),
    "normal": (198, 198, 24334, 1159, 25),
    "long": (198, 198, 14617, 8305, 25),
}
IN_IDS = {"short": (1, 32708, 2, 12492, 3), "normal": (1, 32708, 2, 6382, 3), "long": (1, 32708, 2, 4059, 3)}
QUESTION = ((198, 198, 24361, 25), (198, 198, 33706, 25))
ENDINGS = {"2025-06-21": ((3, 3), (3, 4)), **dict.fromkeys(THIRD, ((3,), (4,)))}
"""Behind a question: without reasoning, with it."""
DETECT = dict.fromkeys(WORDED, ((198, 198, 47504, 25), (628,))) | dict.fromkeys(ENDINGS, ((1, 7235, 476, 2), (3,)))
POINT = dict.fromkeys(WORDED, ((198, 198, 12727, 25), (628,))) | dict.fromkeys(ENDINGS, ((1, 2581, 2), (3,)))


@pytest.fixture(params=list(REVISIONS))
def revision(request):
    return request.param


@pytest.fixture
def context(md2, revision):
    return replace(md2, templates=Templates.of(REVISIONS[revision]), name=revision)


def test_captions(context, revision, picture):
    for length, ids in (IN_WORDS if revision in WORDED else IN_IDS).items():
        if revision == "2025-01-09" and length == "long":
            assert length not in context.templates.captions
        else:
            assert caption(context, picture, length).prompt.ids == ids


@pytest.mark.parametrize("refs", [None, REFS], ids=["", "refs"])
@pytest.mark.parametrize("reasoning", [False, True], ids=["", "reasoning"])
def test_queries(context, revision, picture, reasoning, refs):
    said = context.tokenizer.encode("a dog?")
    if revision in WORDED:
        if reasoning or refs:
            with pytest.raises(UnsupportedSkill):
                query(context, picture, "a dog?", reasoning=reasoning, spatial_refs=refs)
            return
        spaced = context.tokenizer.encode(" a dog?")
        assert spaced != said
        expected, bos = (*QUESTION[0], *(said if revision == "2025-01-09" else spaced), *QUESTION[1]), 50256
    else:
        places = PLACES if refs else ()
        expected, bos = (1, 15381, 2, *places, *said, *ENDINGS[revision][int(reasoning)]), 0
    assert query(context, picture, "a dog?", reasoning=reasoning, spatial_refs=refs).prompt.ids == expected
    if not refs:
        assert query(context, None, "a dog?", reasoning=reasoning).prompt.ids == (bos, *expected)


@pytest.mark.parametrize("refs", [None, REFS], ids=["", "refs"])
def test_points_boxes_and_outlines(context, revision, picture, refs):
    dog, spaced = context.tokenizer.encode("dog"), context.tokenizer.encode(" dog")
    assert dog != spaced
    assert detect(context, picture, "dog").prompt.ids == (*DETECT[revision][0], *spaced, *DETECT[revision][1])
    places = PLACES if refs else ()
    if refs and revision in WORDED:
        with pytest.raises(UnsupportedSkill):
            point(context, picture, "dog", spatial_refs=refs)
        return
    expected = (*POINT[revision][0], *places, *spaced, *POINT[revision][1])
    assert point(context, picture, "dog", spatial_refs=refs).prompt.ids == expected
    if revision in THIRD:
        ids = (1, 17374, 2, *places, *dog, 3)
        assert segment(context, picture, "dog", spatial_refs=refs).prompt.ids == ids
    else:
        with pytest.raises(UnsupportedSkill):
            segment(context, picture, "dog", spatial_refs=refs)
