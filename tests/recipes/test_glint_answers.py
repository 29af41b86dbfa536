"""Every answer that glint is taught is worked out again from the question's text and the scene, by other code."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from functools import cache

import pytest
from recipes.glint import phrases as say
from recipes.glint import prompts, wordings
from recipes.glint.ask import Ask
from recipes.glint.chatter import NO_PICTURE
from recipes.glint.scenes import Printed, Scene, draw, make_scene
from recipes.glint.streams import ANSWER, COORD, EOS, SIZE, THINK, Stream, Vocabulary

GENERIC = {word for pair in say.GENERIC for word in pair}
PICK = {"large": lambda t: -t.r, "small": lambda t: t.r, "left": lambda t: t.x, "right": lambda t: -t.x,
        "top": lambda t: t.y, "bottom": lambda t: -t.y}  # fmt: skip
EXTREME_WORDS = {word: way for way, words in say.EXTREMES.items() for word in words}
RELATION_WORDS = {word: side for side, words in say.RELATIONS.items() for word in words}
RELATION = "|".join(sorted(RELATION_WORDS, key=len, reverse=True))
VALUE = r"(?:an? )?\w+"


def scene_of(seed: int) -> Scene:
    """A random scene; every other one has printed text, put there if the generator did not."""
    rng = random.Random(seed)
    scene = make_scene(rng)
    if seed % 2 and scene.printed is None:
        text = rng.choice(say.WORDS) if rng.random() < 0.6 else str(rng.randrange(1000))
        ink = rng.choice(((0.03, 0.03, 0.03), (0.97, 0.97, 0.97), (0.3, 0.05, 0.05)))
        printed = Printed(text, rng.uniform(0.2, 0.8), rng.uniform(0.1, 0.9), 0.05 * len(text), 0.08, ink)
        scene = replace(scene, printed=printed)
    return scene


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture(scope="module")
def asked(vocabulary) -> dict[str, list[tuple[Scene, str, Stream]]]:
    """By kind: scene, question (lower case, no mark at the end) and stream, of trained and of held-out wordings."""
    out: dict[str, list[tuple[Scene, str, Stream]]] = {}
    for seed in range(110):
        scene, rng = scene_of(seed), random.Random(seed)
        made = prompts.fill(scene, rng, vocabulary, 900, 0.0)
        made += [s for maker in prompts.WORDED if (s := maker(Ask(scene, rng, vocabulary, unseen=True)))]
        for s in made:
            out.setdefault(s.skill, []).append((scene, question(vocabulary, s), s))
    return out


def question(v: Vocabulary, s: Stream) -> str:
    ids = [i for i in s.ids[: s.prompt_length] if i > 20]
    word = {"point": "point", "detect": "detect", "segment": "segment"}.get(s.skill, "query")
    return v.tokenizer.decode(ids).removeprefix(word).strip().lower().rstrip("?.")


def answer(v: Vocabulary, s: Stream) -> str:
    ids = s.answer_ids()
    return v.tokenizer.decode(ids[ids.index(ANSWER) + 1 :] if ANSWER in ids else ids)


@cache
def pattern_of(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template.lower().rstrip("?."))
    inner = {"relation": RELATION, "a": VALUE, "b": VALUE}
    return re.compile(
        "".join(f"(?P<{p}>{inner.get(p, '.+?')})" if i % 2 else re.escape(p) for i, p in enumerate(parts))
    )


def names(text: str, *candidates: wordings.Wording) -> dict[str, str]:
    """What stands in the places of the wording that fits the text most literally."""
    templates = [template for wording in candidates for template in wording.trained + wording.held_out]
    fits = [(len(re.sub(r"\{\w+\}", "", t)), found) for t in templates if (found := pattern_of(t).fullmatch(text))]
    assert fits, text
    return max(fits, key=lambda fit: fit[0])[1].groupdict()


def fitting(scene: Scene, text: str) -> list:
    """Things that a description like "the large red circles" means."""
    things = list(scene.things)
    words = text.removeprefix("all of ").removeprefix("all ").removeprefix("every ").split()
    for word in words[words[0] in ("a", "an", "the") :]:
        if word in say.SIZES:
            things = [t for t in things if say.SIZES[t.size] == word]
        elif word in say.COLOURS:
            things = [t for t in things if say.COLOURS[t.colour] == word]
        elif word in say.KINDS + say.PLURALS:
            things = [t for t in things if word in (say.KINDS[t.kind], say.PLURALS[t.kind])]
        elif word not in GENERIC:
            return []
    return things


def full(t) -> str:
    return f"a {say.SIZES[t.size]} {say.COLOURS[t.colour]} {say.KINDS[t.kind]}"


def in_words(parts: list[str]) -> str:
    head, last = parts[:-1], parts[-1:]
    return " and ".join([", ".join(head), *last] if head else last) or "nothing"


def missing(scene: Scene, description: str) -> str:
    assert not fitting(scene, description)
    return f"There is no {description}."


def printed_name(scene: Scene) -> str:
    noun = "number" if scene.printed.text[0] in "0123456789" else "word"
    return f"the {noun} {scene.printed.text}"


def beyond(scene: Scene, side: str, anchor, *, text: bool) -> list[tuple[str, object]]:
    axis, sign = {"left": ("x", 1), "right": ("x", -1), "above": ("y", 1), "below": ("y", -1)}[side]
    at = getattr(anchor, axis)
    others = [t for t in scene.things if t is not anchor]
    assert all(abs(getattr(t, axis) - at) >= 0.04 for t in others)
    found = [(full(t), t) for t in sorted(others, key=lambda t: t.x) if sign * (at - getattr(t, axis)) > 0]
    if text and scene.printed and sign * (at - getattr(scene.printed, axis)) > 0:
        found.append((printed_name(scene), scene.printed))
    return found


def test_what_is_on_a_side(vocabulary, asked):
    for scene, text, s in asked["side"] + asked["reason_side"]:
        shapes = bool(re.match(r"(which|what) (shape|object)s? |(list|name) the shapes", text))
        got = names(text, wordings.SIDE_SHAPES if shapes else wordings.SIDE)
        anchors = fitting(scene, got["one"])
        if not anchors:
            assert answer(vocabulary, s) == missing(scene, got["one"])
            continue
        (anchor,) = anchors
        found = beyond(scene, RELATION_WORDS[got["relation"]], anchor, text=not shapes)
        assert answer(vocabulary, s) == in_words([name for name, _ in found]), text
        if s.skill == "reason_side":
            points = [anchor, *[thing for _, thing in found]]
            assert grounded(s) == [(round(p.x, 3), round(p.y, 3)) for p in points]


def grounded(s: Stream) -> list[tuple[float, float]]:
    at = [s.coord_target[i - 1] / 1024 for i in range(s.prompt_length, len(s)) if s.ids[i] == COORD]
    return [(round(x, 3), round(y, 3)) for x, y in zip(at[::2], at[1::2], strict=True)]


def test_how_many_are_on_a_side(vocabulary, asked):
    for scene, text, s in asked["count_side"]:
        got = names(text, wordings.COUNT_SIDE)
        (anchor,) = fitting(scene, got["one"])
        side = beyond(scene, RELATION_WORDS[got["relation"]], anchor, text=False)
        wanted = fitting(scene, got["many"])
        assert answer(vocabulary, s) == str(sum(t in wanted for _, t in side))


def test_relations(vocabulary, asked):
    for scene, text, s in asked["relative"] + asked["reason_relative"]:
        got = names(text, wordings.RELATIVE)
        one, other = fitting(scene, got.get("one") or got["a_one"]), fitting(scene, got["other"])
        if not one or not other:
            assert answer(vocabulary, s) == "no"
            continue
        side = beyond_pair(RELATION_WORDS[got["relation"]], one[0], other[0])
        assert len(one) == len(other) == 1 and answer(vocabulary, s) == ("yes" if side else "no")


def beyond_pair(side: str, one, other) -> bool:
    pairs = {"left": (one.x, other.x), "right": (other.x, one.x), "above": (one.y, other.y), "below": (other.y, one.y)}
    low, high = pairs[side]
    assert abs(high - low) >= 0.04
    return low < high


def test_neighbours(vocabulary, asked):
    for scene, text, s in asked["next"] + asked["reason_next"]:
        got = names(text, wordings.NEXT)
        anchors = fitting(scene, got["one"])
        if not anchors:
            assert answer(vocabulary, s) == missing(scene, got["one"])
            continue
        (anchor,) = anchors
        others = [t for t in scene.things if t is not anchor]
        for wide in (1.0, scene.aspect):
            by_distance = sorted(others, key=lambda t: (t.x - anchor.x) ** 2 * wide + (t.y - anchor.y) ** 2 / wide)
            assert answer(vocabulary, s) == in_words([full(t) for t in by_distance[:1]])


def test_extremes(vocabulary, asked):
    ways = "|".join(EXTREME_WORDS)
    for scene, text, s in asked["extreme"] + asked["reason_extreme"]:
        word = re.search(ways, text).group()
        said = re.findall(r"[a-z]+", re.sub("shape is the|shape of the|shape does the", "", text))
        of_class = [w for w in said if w in (*say.COLOURS, *say.KINDS, *say.SIZES, *GENERIC)]
        description = " ".join(dict.fromkeys(of_class)) or "shape"
        found = fitting(scene, description)
        got = answer(vocabulary, s)
        if not found:
            assert got.startswith("There is no ")
            continue
        key = PICK[EXTREME_WORDS[word]]
        best = min(found, key=key)
        kinds = {full(best), say.COLOURS[best.colour], say.KINDS[best.kind], say.SIZES[best.size]}
        place = say.PLACES[int(best.y * 3) * 3 + int(best.x * 3)]
        assert got in kinds | {f"At the {place}."}, text
        if "color" in text or "colour" in text:
            assert got == say.COLOURS[best.colour]
        rest = [key(t) for t in found if t is not best]
        if EXTREME_WORDS[word] in ("large", "small"):
            assert all(max(t.r, best.r) / min(t.r, best.r) >= 1.2499 for t in found if t is not best)
        else:
            assert all(other - key(best) >= 0.0399 for other in rest)


def test_two_things_at_once(vocabulary, asked):
    for kind, wording in (("count_both", (wordings.COUNT_BOTH,)), ("exist_both", (wordings.EITHER, wordings.BOTH)),
                          ("compare", (wordings.MORE_THAN, wordings.FEWER_THAN))):  # fmt: skip
        assert asked[kind]
        for scene, text, s in asked[kind]:
            got = names(text, *wording)
            one = fitting(scene, got.get("many") or got["a_one"])
            other = fitting(scene, got.get("others") or got["a_other"])
            truth = {
                "count_both": str(len(one) + len(other)),
                "exist_both": "yes" if (one or other if " or " in text else one and other) else "no",
                "compare": "yes" if (len(one) - len(other)) * (1 if "more" in text else -1) > 0 else "no",
            }[kind]
            assert answer(vocabulary, s) == truth, text


def test_plain_questions(vocabulary, asked):
    for scene, text, s in asked["count"] + asked["reason_count"]:
        got = names(text, wordings.COUNT)
        assert answer(vocabulary, s) == str(len(fitting(scene, got.get("many") or got["one"])))
    for scene, text, s in asked["exists"] + asked["reason_exists"]:
        got = names(text, wordings.EXISTS)
        there = fitting(scene, next(iter(got.values())))
        assert answer(vocabulary, s) == ("yes" if there else "no")
    for kind, wording, attribute, values in (("colour", wordings.COLOUR, "colour", say.COLOURS),
                                             ("size", wordings.SIZE, "size", say.SIZES)):  # fmt: skip
        for scene, text, s in asked[kind] + asked["reason_" + kind]:
            got = names(text, wording)["one"]
            found = {values[getattr(t, attribute)] for t in fitting(scene, got)}
            assert {answer(vocabulary, s)} == (found or {missing(scene, got)}), text
    for scene, text, s in asked["is_or"]:
        got = names(text, wordings.IS_OR)
        (t,) = fitting(scene, got["one"])
        assert answer(vocabulary, s) in full(t).split() and len(fitting(scene, f"{answer(vocabulary, s)} thing"))


def test_places(vocabulary, asked):
    for scene, text, s in asked["at_place"]:
        place = names(text, wordings.AT_PLACE)["one"]
        row = ["top" in place, place in ("left", "center", "right"), "bottom" in place].index(True)
        column = ["left" in place, place in ("top", "center", "bottom"), "right" in place].index(True)
        here = [(full(t), t) for t in scene.things] + ([(printed_name(scene), scene.printed)] if scene.printed else [])
        here = [n for n, t in here if row <= 3 * t.y < row + 1 and column <= 3 * t.x < column + 1]
        assert answer(vocabulary, s) == in_words(here)


def means_text(scene: Scene, noun: str) -> bool:
    return scene.printed is not None and (noun == "text" or noun in printed_name(scene))


def test_printed_text(vocabulary, asked):
    seen = set()
    for scene, text, s in asked["read"] + asked["reason_read"]:
        noun = next((w for w in ("number", "word") if w in text.split()), "text")
        seen.add(answer(vocabulary, s))
        there = means_text(scene, noun)
        assert answer(vocabulary, s) == (scene.printed.text if there else f"There is no {noun}."), text
        if s.skill == "reason_read":
            assert grounded(s) == ([(round(scene.printed.x, 3), round(scene.printed.y, 3))] if there else [])
    assert any(text.isupper() for text in seen) and any(text.isdigit() for text in seen)
    for scene, text, s in asked["written"]:
        noun = next((w for w in ("number", "word") if re.search(rf"\b{w}s?\b", text)), "text")
        assert answer(vocabulary, s) == ("yes" if means_text(scene, noun) else "no"), text
    for scene, text, s in asked["says"]:
        said = names(text, wordings.SAYS)["a"]
        assert answer(vocabulary, s) == ("yes" if said == scene.printed.text.lower() else "no")
    for scene, text, s in asked["where_text"] + asked["ink"]:
        noun = next(w for w in say.TEXT_NOUNS if w in re.split(r"\W", text))
        if not means_text(scene, noun):
            assert answer(vocabulary, s) == f"There is no {noun}."
        elif s.skill == "ink":
            assert answer(vocabulary, s) == ("black" if max(scene.printed.rgb) < 0.1 else "white")
        else:
            place = say.PLACES[int(scene.printed.y * 3) * 3 + int(scene.printed.x * 3)]
            assert answer(vocabulary, s) == f"At the {place}."


def targets(scene: Scene, text: str) -> list:
    """Things (and the text) that an object's name means."""
    plain = text.strip('"')
    if any(re.search(rf"\b{w}s?\b", plain) for w in say.TEXT_NOUNS) or plain.isdigit() or plain.upper() in say.WORDS:
        words = [w for w in plain.split() if w not in ("the", "printed")]
        nouns = [w.removesuffix("s") for w in words if w.removesuffix("s") in say.TEXT_NOUNS]
        values = [w for w in words if w.removesuffix("s") not in say.TEXT_NOUNS]
        fits = scene.printed and (not nouns or means_text(scene, nouns[0]))
        return [scene.printed] if fits and values in ([], [scene.printed.text.lower()]) else []
    extreme = re.search("|".join(EXTREME_WORDS), plain)
    if extreme:
        found = fitting(scene, plain.replace(extreme.group(), "").replace("  ", " ").strip())
        return sorted(found, key=PICK[EXTREME_WORDS[extreme.group()]])[:1]
    if plain in ("everything", "all"):
        return list(scene.things)
    parts = re.split(" and | or ", plain)
    return [t for t in scene.things if any(t in fitting(scene, part) for part in parts)]


def test_objects_to_point_at_detect_and_segment(asked):
    texts = empty = 0
    for kind in ("point", "detect", "segment"):
        for scene, text, s in asked[kind]:
            wanted = targets(scene, text)
            wanted = wanted[:1] if kind == "segment" else wanted
            assert grounded(s) == [(round(t.x, 3), round(t.y, 3)) for t in wanted], (kind, text)
            texts += scene.printed in wanted
            empty += not wanted
            sizes = [s.size_target[i - 1] for i in range(s.prompt_length, len(s)) if s.ids[i] == SIZE]
            assert len(sizes) == (0 if kind == "point" else len(wanted))
            for (w, h), t in zip(sizes, wanted, strict=False):
                box = scene.text_box() if t is scene.printed else scene.box(t)
                assert 2 ** (w / 1023 * 10 - 10) == pytest.approx(box[2]) and 2 ** (
                    h / 1023 * 10 - 10
                ) == pytest.approx(box[3])
    assert texts > 20 and empty > 50


def test_outline_of_text_is_its_box(vocabulary, asked):
    found = 0
    for scene, _, s in asked["segment"]:
        if scene.printed and grounded(s) == [(round(scene.printed.x, 3), round(scene.printed.y, 3))]:
            pieces = [vocabulary.tokenizer.decode([i]) for i in s.answer_ids() if i not in (COORD, SIZE)]
            assert pieces == ["M", "0", "0", "L", "960", "0", "960", "960", "0", "960", "Z"]
            found += 1
    assert found


def test_what_is_here(vocabulary, asked):
    covered = 0
    for seed in range(110, 160):
        scene, rng = scene_of(seed), random.Random(seed)
        for s in filter(None, (prompts.here(Ask(scene, rng, vocabulary)) for _ in range(12))):
            asked.setdefault(s.skill, []).append((scene, "", s))
    for kind in ("here", "here_colour", "here_shape"):
        for scene, _, s in asked[kind]:
            at = [i for i in range(s.prompt_length) if s.ids[i] == COORD]
            x, y = s.coord[at[0]], s.coord[at[1]]
            inside = [(t, b) for t, b in with_boxes(scene) if abs(x - b[0]) < b[2] / 2 and abs(y - b[1]) < b[3] / 2]
            inside.sort(key=lambda pair: math.dist((x, y), pair[1][:2]))
            if len(inside) > 1 and s.ids[at[1] + 1] != SIZE:  # the picture itself says which of them is on top
                covered += 1
                plain = replace(scene, noise=0.0, vignette=0.0)
                pixel = draw(plain, 301, 301)[round(y * 301 - 0.5), round(x * 301 - 0.5)] / 255
                inside.sort(key=lambda pair: math.dist(pixel, pair[0].rgb))
                assert math.dist(pixel, inside[0][0].rgb) < 0.1
            top = inside[0][0] if inside else None
            got = answer(vocabulary, s)
            if top is None:
                ground = say.GROUNDS[scene.ground]
                replies = {"here": "the background", "here_colour": ground, "here_shape": "There is no shape."}
                assert got == replies[kind]
            elif top is scene.printed:
                assert got == printed_name(scene) if kind == "here" else got in ("black", "white")
            else:
                assert got == full(top) if kind == "here" else got in full(top)
    assert covered > 3


def with_boxes(scene: Scene) -> list:
    pairs = [(t, scene.box(t)) for t in scene.things]
    return pairs + ([(scene.printed, scene.text_box())] if scene.printed else [])


def test_without_a_picture_a_question_about_one_asks_for_one(vocabulary, asked):
    replies = {text: answer(vocabulary, s) for _, text, s in asked["talk_text"] + asked["reason_text"]}
    assert NO_PICTURE in replies.values()
    for text, reply in replies.items():
        if re.search("star|circle|shape|background|picture|text", text) and "glint" not in text:
            assert reply == NO_PICTURE, text


def test_a_thought_without_points_keeps_the_answer(vocabulary, asked):
    for _, _, s in asked["reason_other"]:
        assert s.ids[s.prompt_length - 1] == THINK and s.answer_ids().count(ANSWER) == 1
        assert s.target[s.prompt_length - 1 :] == [*s.answer_ids(), EOS]
        assert (
            len({len(s), *map(len, (s.coord, s.size, s.target, s.weight, s.coord_target, s.size_target, s.aim))}) == 1
        )
