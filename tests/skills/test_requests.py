"""What a caller may ask, and what is refused before the engine hears of it."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gapless.constrain.table import Walker, build_table
from gapless.errors import InvalidRequest, PromptTooLong, UnsupportedSkill
from gapless.models.moondream.config import REVISIONS
from gapless.models.moondream.templates import Templates
from gapless.records import Token
from gapless.skills.base import Ask
from gapless.skills.caption import caption
from gapless.skills.detect import detect
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment
from gapless.skills.settings import MAX_SEED, Settings


def calls(context, picture) -> dict[str, Callable[..., Ask]]:
    """Each skill with a sound text, taking settings."""
    return {
        "query": lambda **k: query(context, picture, "what is this?", **k),
        "caption": lambda **k: caption(context, picture, **k),
        "point": lambda **k: point(context, picture, "dog", **k),
        "detect": lambda **k: detect(context, picture, "dog", **k),
        "segment": lambda **k: segment(context, picture, "dog", **k),
    }


@pytest.mark.parametrize("text", ["", " ", "   ", "\n", "\t\n", "\u3000"], ids=repr)
def test_s_tok_02_empty_texts_are_refused(md3, picture, text):
    """S-TOK-02, S-DET-06: with and without a picture; the next request works."""
    for ask, param in [
        (lambda: query(md3, picture, text), "question"),
        (lambda: query(md3, None, text), "question"),
        (lambda: query(md3, None, text, reasoning=True), "question"),
        (lambda: point(md3, picture, text), "object"),
        (lambda: detect(md3, picture, text), "object"),
        (lambda: segment(md3, picture, text), "object"),
    ]:
        with pytest.raises(InvalidRequest, match=f"{param} is empty") as caught:
            ask()
        assert caught.value.param == param
        assert query(md3, picture, "what?").program == "text"


def test_a_forgotten_question_is_told_apart_from_a_wrong_one(md3, picture):
    with pytest.raises(InvalidRequest, match="none is given; pass question="):
        query(md3, picture, None)
    with pytest.raises(InvalidRequest, match="say what you want to find"):
        detect(md3, picture, " ")


@pytest.mark.parametrize("value", [None, [], ["cat", "dog"], [1, "a"], {}, {"a": 1}, 3, b"dog", True], ids=repr)
def test_s_det_08_an_object_is_one_string(md3, picture, value):
    """S-DET-06, S-DET-08: lists, dicts and other things are refused by name."""
    for ask, param in [(query, "question"), (point, "object"), (detect, "object"), (segment, "object")]:
        with pytest.raises(InvalidRequest, match=f"{param} must be one string") as caught:
            ask(md3, picture, value)
        assert caught.value.param == param


@pytest.mark.parametrize("text", ["cat, dog", "🐕", "a" * 1000, "<|endoftext|>", "\x00", "'); DROP TABLE"])
def test_s_det_06_odd_objects_are_fine(md3, picture, text):
    """S-DET-06: they are text; control strings among them stay text."""
    for skill in (point, detect, segment):
        ask = skill(md3, picture, text)
        assert min(ask.prompt.ids[4 if skill is detect else 5 : -1]) > 20


@pytest.mark.parametrize("text", ["\ud800", "is this \udc00 a cat"])
def test_s_tok_04_lone_surrogates_are_refused_in_every_text(md3, picture, text):
    """S-TOK-04."""
    for ask, param in [(query, "question"), (point, "object"), (detect, "object"), (segment, "object")]:
        with pytest.raises(InvalidRequest, match="surrogate") as caught:
            ask(md3, picture, text)
        assert caught.value.param == param


def test_s_tok_01_special_strings_in_a_question(md2, picture):
    """S-TOK-01: placed anywhere in the user's text, the prompt holds the template's special ids and no more."""
    plain = query(md2, picture, "what").prompt.ids
    special = sorted(i for i in plain if i <= 20)
    for n in range(-1, 20):
        name = "<|endoftext|>" if n < 0 else f"<|md_reserved_{n}|>"
        for text in (name, f"{name} what", f"what {name}", f"what {name} is"):
            ids = query(md2, picture, text).prompt.ids
            assert sorted(i for i in ids if i <= 20) == special


@pytest.mark.parametrize("over", [1, 100, 100_000])
def test_s_tok_03_one_token_over_the_context(md2, picture, over):
    """S-TOK-03: refused with the numbers, never cut; exactly at the limit works."""
    fixed = len(query(md2, picture, "!").prompt.ids) - 1
    room = md2.max_context - md2.prefix - fixed - 1
    assert md2.tokenizer.encode("! " * 3).count(21) == 3
    text = "!"
    one = md2.tokenizer.encode("!!")
    assert len(one) == 2
    ask = query(md2, picture, text * room)
    assert md2.prefix + len(ask.prompt.ids) == md2.max_context - 1
    assert ask.sampling.max_tokens == 1
    with pytest.raises(PromptTooLong) as caught:
        query(md2, picture, text * (room + over))
    message = str(caught.value)
    assert str(md2.max_context) in message
    if over < 1000:
        assert str(md2.max_context - 1 + over) in message
        assert f"by {over} tokens" in message


def test_s_tok_08_a_huge_text_is_refused_without_tokenising(md2, picture, monkeypatch):
    """S-TOK-08: an image's data URL in the question."""
    text = "data:image/png;base64," + "iVBORw0KGgo=" * 100_000

    def forbidden(*args, **options):
        raise AssertionError("tokenised")

    monkeypatch.setattr(type(md2.tokenizer), "encode", forbidden)
    with pytest.raises(PromptTooLong, match=r"at least \d+ tokens") as caught:
        query(md2, picture, text)
    assert caught.value.param == "question"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("prefix", [0, 999])
@pytest.mark.parametrize("length", range(990, 1011, 5))
def test_s_tok_07_multibyte_text_at_any_length(md2, picture, prefix, length):
    """S-TOK-07: nothing is cut at a byte offset inside a character."""
    text = "a" * prefix + "日🙂" * ((length - prefix) // 2 + 1)
    ask = query(replace(md2, max_context=20_000), picture, text)
    assert md2.tokenizer.decode(ask.prompt.ids) == "query" + text


def test_default_max_tokens_is_cut_to_what_fits(md2, picture):
    small = replace(md2, max_context=md2.prefix + 60)
    used = len(query(small, picture, "what?").prompt.ids)
    assert query(md2, picture, "what?").sampling.max_tokens == 768
    assert query(small, picture, "what?").sampling.max_tokens == 60 - used
    assert query(small, picture, "what?", reasoning=True).sampling.max_tokens == (60 - used - 1) // 2
    assert query(small, None, "what?").sampling.max_tokens == min(768, small.max_context - used - 1)


@pytest.mark.parametrize("reasoning", [False, True])
def test_an_explicit_max_tokens_that_does_not_fit_is_an_error_with_the_numbers(md2, picture, reasoning):
    small = replace(md2, max_context=md2.prefix + 60)
    most = query(small, picture, "what?", reasoning=reasoning).sampling.max_tokens
    exact = query(small, picture, "what?", reasoning=reasoning, settings={"max_tokens": most})
    assert exact.sampling.max_tokens == most
    with pytest.raises(PromptTooLong, match=f"max_tokens is {most + 1}.*at most {most} ") as caught:
        query(small, picture, "what?", reasoning=reasoning, settings={"max_tokens": most + 1})
    assert caught.value.param == "max_tokens"


def test_reasoning_needs_room_for_both_phases_and_the_answer_id(md2, picture):
    used = len(query(md2, picture, "what?", reasoning=True).prompt.ids)
    fits = replace(md2, max_context=md2.prefix + used + 3)
    assert query(fits, picture, "what?", reasoning=True).sampling.max_tokens == 1
    tight = replace(md2, max_context=md2.prefix + used + 2)
    with pytest.raises(PromptTooLong, match="at least 3"):
        query(tight, picture, "what?", reasoning=True)
    assert query(tight, picture, "what?").sampling.max_tokens == 2


def test_what_fits_here_fits_by_the_engine_s_own_count(md2, md3, picture):
    """The most tokens a program may still produce never pass the context, at the limit of every skill."""
    for context in (md2, md3):
        table = build_table(context.templates.rules())
        for room in (70, 71, 200, 1318):
            small = replace(context, max_context=context.prefix + room)
            asks = [make() for name, make in calls(small, picture).items() if name != "segment" or context is md3]
            asks.append(query(small, picture, "what is this?", reasoning=True))
            for ask in asks:
                walker = Walker.start(table, ask.program, ask.sampling.max_tokens, ask.sampling.max_objects)
                assert small.prefix + len(ask.prompt.ids) + walker.remaining() <= small.max_context


def test_defaults_of_the_revisions(md2, md3, picture):
    for context, top_p, objects in ((md2, 0.3, 50), (md3, 0.9, 150)):
        for ask in (query(context, picture, "x"), caption(context, picture)):
            s = ask.sampling
            assert (s.temperature, s.top_p, s.max_tokens, s.top_logprobs) == (0.5, top_p, 768, -1)
        for ask, stride in ((point(context, picture, "x"), 2), (detect(context, picture, "x"), 3)):
            s = ask.sampling
            assert (s.temperature, s.top_p, s.max_objects, s.max_tokens) == (0.0, 1.0, objects, stride * objects)
    s = segment(md3, picture, "x").sampling
    assert (s.temperature, s.top_p, s.max_tokens) == (0.0, 1.0, 768)
    assert query(md3, picture, "x").timeout is None


def test_settings_reach_the_sampling(md2, picture):
    ask = query(md2, picture, "x", settings={"temperature": 1, "top_p": np.float32(0.5), "max_tokens": np.int64(7),
                                             "seed": 11, "timeout": 2})  # fmt: skip
    s = ask.sampling
    assert (s.temperature, s.top_p, s.max_tokens, s.seed, ask.timeout) == (1.0, 0.5, 7, 11, 2.0)
    assert [type(v) for v in (s.temperature, s.top_p, s.max_tokens, s.seed)] == [float, float, int, int]
    ask = detect(md2, picture, "x", settings={"max_objects": 4, "temperature": 1.5, "seed": 3})
    assert (ask.sampling.max_objects, ask.sampling.max_tokens) == (4, 12)
    assert (ask.sampling.temperature, ask.sampling.seed) == (0.0, 0)
    assert detect(md2, picture, "x", settings={"max_objects": 4, "max_tokens": 5}).sampling.max_tokens == 5
    assert detect(md2, picture, "x", settings={"max_objects": 4, "max_tokens": 5000}).sampling.max_tokens == 12
    many = detect(md2, picture, "x", settings={"max_objects": 10_000})
    assert md2.prefix + len(many.prompt.ids) + many.sampling.max_tokens == md2.max_context


def test_none_means_not_set(md2, picture):
    nothing = dict.fromkeys(("temperature", "top_p", "max_tokens", "max_objects", "seed", "timeout"))
    a, b = query(md2, picture, "x", settings=nothing), query(md2, picture, "x")
    assert replace(a.sampling, seed=0) == replace(b.sampling, seed=0)
    assert Settings.parse({}) == Settings.parse(None) == Settings()


def test_s_num_04_a_seed_repeats_and_none_is_fresh(md2, picture):
    """S-NUM-04: without a seed each sampled request draws its own; greedy ones need none."""
    seeds = {query(md2, picture, "x").sampling.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= s <= MAX_SEED for s in seeds)
    assert query(md2, picture, "x", settings={"seed": 5}).sampling.seed == 5
    assert query(md2, picture, "x", settings={"temperature": 0}).sampling.seed == 0


BAD = [
    *(("temperature", v) for v in (-1, math.nan, math.inf, -math.inf, 1e308, 10**400, True, "hot", "0.5", [0.5], 1j)),
    *(("top_p", v) for v in (0, 0.0, 1.5, -0.1, math.nan, False, "1")),
    *(("max_tokens", v) for v in (0, -1, 10**12, 1.5, 5.0, "512", True, math.nan, [3])),
    *(("max_objects", v) for v in (0, -3, 10**9, "50", 2.0, False)),
    *(("seed", v) for v in (-1, 2**63, 1.0, "0", True)),
    *(("timeout", v) for v in (0, -1, math.inf, math.nan, 1e9, "10", True)),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda v: repr(v)[:20])
def test_s_api_06_bad_settings_name_parameter_value_and_range(md3, picture, name, value):
    """S-API-06, S-STR-07, S-API-09: for every skill alike, also where the skill does not use the setting."""
    for make in calls(md3, picture).values():
        with pytest.raises(InvalidRequest) as caught:
            make(settings={name: value})
        assert caught.value.param == name
        message = str(caught.value)
        assert message.startswith(f"{name} must be ")
        assert "got" in message
        assert type(value).__name__ in message
        assert any(c.isdigit() for c in message.split(";", maxsplit=1)[0])
        assert len(message) < 200


class Mute:
    def __repr__(self) -> str:
        raise ZeroDivisionError

    __str__ = __repr__


UNSHOWABLE = [10**5000, -(10**5000), [10**5000], Mute(), [Mute()], np.array(0.5), [np.array(0.5)]]
"""Python does not spell out whole numbers of over 4300 digits, and a caller's class may fail to show itself."""


@pytest.mark.parametrize("value", UNSHOWABLE, ids=range(len(UNSHOWABLE)))
def test_values_that_cannot_be_shown_are_refused_all_the_same(md3, picture, value):
    for name in ("temperature", "top_p", "max_tokens", "max_objects", "seed", "timeout"):
        with pytest.raises(InvalidRequest, match=name):
            query(md3, picture, "x", settings={name: value})
    for wrong in (
        lambda: query(md3, picture, value),
        lambda: caption(md3, picture, value),
        lambda: query(md3, picture, "x", reasoning=value),
        lambda: query(md3, picture, "x", settings=value),
        lambda: point(md3, picture, "x", spatial_refs=value),
        lambda: point(md3, picture, "x", spatial_refs=[value]),
        lambda: point(md3, picture, "x", spatial_refs=[[value, 0.5]]),
    ):
        with pytest.raises(InvalidRequest) as caught:
            wrong()
        assert len(str(caught.value)) < 300
    for key in (10**5000, Mute()):
        with pytest.raises(InvalidRequest, match="unknown setting"):
            query(md3, picture, "x", settings={key: 1})


@pytest.mark.parametrize(
    ("key", "meant"), [("choise", "choice"), ("schema", "json_schema"), ("max_token", "max_tokens")]
)
def test_a_setting_that_is_none_is_told_the_nearest(md2, picture, key, meant):
    with pytest.raises(InvalidRequest, match=f"'{key}'; did you mean {meant}[?] Known are temperature, top_p"):
        query(md2, picture, "x", settings={key: 1})


def test_cold_temperatures_are_argmax(md2, picture):
    """A division by them would overflow."""
    for value in (0, 1e-300, 5e-324, 9e-5, -0.0):
        assert query(md2, picture, "x", settings={"temperature": value}).sampling.temperature == 0.0
    assert query(md2, picture, "x", settings={"temperature": 1e-3}).sampling.temperature == 1e-3


@pytest.mark.parametrize("settings", [{"top_k": 5}, {"Temperature": 0}, {"variant": "x"}, {3: 4}, {"x" * 1000: 1}])
def test_unknown_settings_list_the_known_ones(md2, picture, settings):
    with pytest.raises(InvalidRequest, match="temperature, top_p, max_tokens, max_objects, seed, timeout") as caught:
        query(md2, picture, "x", settings=settings)
    assert caught.value.param == str(next(iter(settings)))[:80]


@pytest.mark.parametrize("settings", [[], "temperature=0", 3, [("temperature", 0)]])
def test_settings_must_be_a_mapping(md2, picture, settings):
    with pytest.raises(InvalidRequest, match="dict"):
        query(md2, picture, "x", settings=settings)


@pytest.mark.parametrize("length", ["medium", "", "SHORT", None, 3, ["short"]], ids=repr)
def test_caption_lengths(md2, picture, length):
    with pytest.raises(InvalidRequest, match="short, normal, long") as caught:
        caption(md2, picture, length)
    assert caught.value.param == "length"


@pytest.mark.parametrize("flag", [1, "true", None, "no"])
def test_flags_are_booleans(md3, picture, flag):
    with pytest.raises(InvalidRequest, match="reasoning must be True or False"):
        query(md3, picture, "x", reasoning=flag)
    with pytest.raises(InvalidRequest, match="mask must be True or False"):
        segment(md3, picture, "x", mask=flag)


def test_skills_that_need_a_picture_say_so(md3):
    for name, make in calls(md3, None).items():
        if name != "query":
            with pytest.raises(InvalidRequest, match=f"{name} needs a picture") as caught:
                make()
            assert caught.value.param == "image"
    with pytest.raises(InvalidRequest, match="pass an image") as caught:
        query(md3, None, "what is here?", spatial_refs=[[0.5, 0.5]])
    assert caught.value.param == "spatial_refs"
    assert query(md3, None, "what is here?", spatial_refs=[]).prompt.ids[0] == 0


def test_s_det_07_a_missing_skill_is_named_with_the_model(md2, md3, picture):
    """S-DET-07: each skill names itself."""
    with pytest.raises(UnsupportedSkill, match="moondream2-2025-06-21-a has no skill 'segment'") as caught:
        segment(md2, picture, "dog")
    assert caught.value.status == 501
    assert (
        "it has query, reasoning, caption, point, detect, gaze, chat; segment is a skill of moondream/moondream3-"
        in str(caught.value)
    )
    bare = replace(md3, templates=replace(md3.templates, captions={}, query=None, reason=None, point=None,
                                          detect=None, segment=None), name="bare")  # fmt: skip
    for name, make in calls(bare, picture).items():
        with pytest.raises(UnsupportedSkill, match=f"bare has no skill '{name}'"):
            make()
    thoughtless = replace(md3, templates=replace(md3.templates, reason=None))
    with pytest.raises(UnsupportedSkill, match="reasoning"):
        query(thoughtless, picture, "why?", reasoning=True)
    assert query(thoughtless, picture, "why?").program == "text"


def test_old_revisions_are_asked_in_words(md2, picture):
    """No reasoning, no spatial references; places come through the vocabulary's last ids, which have no text."""
    old = replace(md2, templates=Templates.of(REVISIONS["2025-03-27"]))
    ids = query(old, None, "what?").prompt.ids
    assert ids == (50256, 198, 198, 24361, 25, *md2.tokenizer.encode(" what?"), 198, 198, 33706, 25)
    older = replace(md2, templates=Templates.of(REVISIONS["2025-01-09"]))
    assert query(older, None, "what?").prompt.ids[5:-4] == md2.tokenizer.encode("what?")
    assert point(old, picture, "dog").prompt.ids == (198, 198, 12727, 25, *md2.tokenizer.encode(" dog"), 628)
    for refuse in ("spatial references", "reasoning"):
        with pytest.raises(UnsupportedSkill, match=refuse):
            query(old, picture, "what?", reasoning=refuse == "reasoning", spatial_refs=[[0.5, 0.5]])
    reader = point(old, picture, "dog").reader
    reader.feed([Token(198, (0.25,)), Token(51196, (0.5,)), Token(50256)])
    assert reader.result() == {"points": [{"x": 0.25, "y": 0.5}]}
