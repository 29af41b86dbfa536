"""What the held-out evaluation asks: fresh scenes as real picture files, and questions with their truth as text.

In: a seed and a scene's number. Out: a :class:`Paper`: the bytes of a PNG or JPEG, and questions as a user would put
them (text, references, flags) with the answers that are wanted. Invariants: a paper depends on its seed and number
alone; truths are exact, not rounded to the model's bins; nothing here runs a model.
"""

from __future__ import annotations

import dataclasses
import io
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from PIL import Image
from recipes.glint import prompts, reading
from recipes.glint.ask import Ask
from recipes.glint.phrases import PATTERNS, WORDS
from recipes.glint.scenes import Scene, draw, make_scene
from recipes.glint.shapes import CONTOUR_SCALE, contour
from recipes.glint.streams import ANSWER, BINS, COORD, GROUND, SIZE, THINK, UNGROUND, Stream, Vocabulary, bin_size

Maker = Callable[[Ask], Stream | None]
Box = tuple[float, float, float, float]
"""Edges x_min, y_min, x_max, y_max, parts of the picture's sides."""

LEAST, MOST_WIDE, LARGEST = 96, 1280, 1280 * 720
FLATTEST = 3.0
JPEG_SHARE, JPEG_QUALITY = 0.3, 80
CORE: tuple[Maker, ...] = (
    prompts.point, prompts.point, prompts.detect, prompts.detect, prompts.segment, prompts.caption, prompts.reason,
    prompts.here,
)  # fmt: skip
OTHERS: tuple[Maker, ...] = tuple(maker for maker in prompts.SKILLS if maker not in CORE)
OTHERS_PER_SCENE = 5
WORDED: tuple[Maker, ...] = (prompts.reason, prompts.here, *OTHERS)
"""The kinds of questions that have wordings which training never uses; one such question is asked per scene."""
TRIES = 4
FINE_RAYS = 96
LEGIBLE = 1.4
"""Pixels of a letter's cell from which it can be read; a text that would be smaller in the picture is not printed."""


@dataclass(frozen=True)
class Answer:
    """What is wanted or was got. ``path`` is SVG path data in 0..1 of the one box that a segment has."""

    text: str = ""
    points: tuple[tuple[float, float], ...] = ()
    boxes: tuple[Box, ...] = ()
    path: str = ""


@dataclass(frozen=True)
class Question:
    """One request in the words of the public API. ``kind`` is finer than ``skill``; ``unseen``: its wording was
    never trained."""

    skill: str
    kind: str
    text: str
    want: Answer
    reasoning: bool = False
    refs: tuple[tuple[float, ...], ...] = ()
    picture: bool = True
    unseen: bool = False


@dataclass(frozen=True)
class Paper:
    """A picture file and the questions about it; ``groups`` says to which classes of pictures it belongs."""

    number: int
    scene: Scene
    width: int
    height: int
    file: bytes
    questions: tuple[Question, ...]
    groups: dict[str, str] = field(default_factory=dict)


def picture_size(rng: random.Random) -> tuple[int, int]:
    """Width and height in pixels: area log-uniform from 96 x 96 to 1280 x 720, aspect log-uniform from 1/3 to 3."""
    area = math.exp(rng.uniform(math.log(LEAST**2), math.log(LARGEST)))
    root = math.exp(rng.uniform(-0.5, 0.5) * math.log(FLATTEST))
    width, height = (round(side) for side in (math.sqrt(area) * root, math.sqrt(area) / root))
    return min(MOST_WIDE, max(LEAST, width)), min(MOST_WIDE, max(LEAST, height))


def picture_file(scene: Scene, width: int, height: int, seed: int, jpeg: bool) -> bytes:
    """The bytes of the drawn scene."""
    out = io.BytesIO()
    image = Image.fromarray(draw(scene, width, height, seed))
    if jpeg:
        image.save(out, "JPEG", quality=JPEG_QUALITY)
    else:
        image.save(out, "PNG", compress_level=1)
    return out.getvalue()


def set_paper(seed: int, number: int, vocabulary: Vocabulary) -> Paper:
    """Scene ``number`` of an evaluation with this seed, drawn, with its questions."""
    rng = random.Random(f"{seed}:{number}")
    width, height = picture_size(rng)
    scene = make_scene(rng, width / height, math.sqrt(width * height))
    if scene.letter_cell(width, height) < LEGIBLE:
        scene = dataclasses.replace(scene, printed=None)
    jpeg = rng.random() < JPEG_SHARE
    file = picture_file(scene, width, height, rng.randrange(2**31), jpeg)
    asked = [(maker, False) for maker in makers_of(number)] + [(WORDED[number % len(WORDED)], True)]
    if scene.printed and reading.read not in makers_of(number):
        asked.append((reading.read, False))
    questions = []
    for maker, unseen in asked:
        tries = (maker(Ask(scene, rng, vocabulary, unseen=unseen)) for _ in range(TRIES))
        made = next((s for s in tries if s is not None), None)
        if made is not None:
            questions.append(question_of(made, scene, vocabulary, unseen))
    groups = groups_of(scene, width, height) | {"file": "jpeg" if jpeg else "png"}
    return Paper(number, scene, width, height, file, tuple(questions), groups)


def makers_of(number: int) -> tuple[Maker, ...]:
    """The core skills, and the other kinds of questions in turn, so that each is asked about equally often."""
    start = number * OTHERS_PER_SCENE
    return CORE + tuple(OTHERS[(start + i) % len(OTHERS)] for i in range(OTHERS_PER_SCENE))


def groups_of(scene: Scene, width: int, height: int) -> dict[str, str]:
    """Classes of pictures that scores are given apart for."""
    area = width * height
    return {
        "pattern": PATTERNS[scene.pattern],
        "things": str(len(scene.things)),
        "overlap": "boxes overlap" if boxes_overlap(scene) else "apart",
        "printed": printed_class(scene),
        "size": "under 224x224" if area < 224**2 else "under 640x480" if area < 640 * 480 else "640x480 and more",
    }


def printed_class(scene: Scene) -> str:
    """What is printed: ``nothing``, a ``number``, a ``word`` that training prints too, or ``letters`` at random."""
    if scene.printed is None:
        return "nothing"
    return "number" if scene.printed.text.isdigit() else "word" if scene.printed.text in WORDS else "letters"


def boxes_overlap(scene: Scene) -> bool:
    """Whether the boxes of any two things share some area."""
    boxes = [scene.box(t) for t in scene.things]
    return any(
        abs(a[0] - b[0]) < (a[2] + b[2]) / 2 and abs(a[1] - b[1]) < (a[3] + b[3]) / 2
        for i, a in enumerate(boxes)
        for b in boxes[:i]
    )


def edges(x: float, y: float, w: float, h: float) -> Box:
    """Edges of a box given as centre and extent, inside the picture."""
    low_x, low_y, high_x, high_y = (min(1.0, max(0.0, v)) for v in (x - w / 2, y - h / 2, x + w / 2, y + h / 2))
    return low_x, low_y, high_x, high_y


def question_of(s: Stream, scene: Scene, v: Vocabulary, unseen: bool = False) -> Question:
    """A stream as its user would ask it, and what it teaches as the answer that is wanted."""
    skill = s.skill if s.skill in ("point", "detect", "segment") else s.skill.partition("_")[0]
    skill = skill if skill in ("point", "detect", "segment", "caption") else "query"
    prompt = s.ids[: s.prompt_length]
    reasoning = skill == "query" and prompt[-1] == THINK
    return Question(
        skill, s.skill, s.skill.partition("_")[2] if skill == "caption" else asked_text(s, skill, v),
        wanted(s, skill, scene, v), reasoning, references(s), s.picture, unseen,
    )  # fmt: skip


def asked_text(s: Stream, skill: str, v: Vocabulary) -> str:
    """The user's words: the prompt without the template around them and without references."""
    template = v.templates[skill]
    first = len(template["prefix"]) + (not s.picture)
    last = s.prompt_length - len(template["suffix"]) - (skill == "query")
    body = [i for i in s.ids[first:last] if i not in (COORD, SIZE)]
    return v.tokenizer.decode(body).strip()


def references(s: Stream) -> tuple[tuple[float, ...], ...]:
    """The prompt's points (x, y) and boxes (edges), in order."""
    out: list[tuple[float, ...]] = []
    places = [i for i in range(s.prompt_length) if s.ids[i] == COORD]
    for i in places[::2]:
        x, y = s.coord[i], s.coord[i + 1]
        sized = i + 2 < s.prompt_length and s.ids[i + 2] == SIZE
        out.append(edges(x, y, *s.size[i + 2]) if sized else (x, y))
    return tuple(out)


def wanted(s: Stream, skill: str, scene: Scene, v: Vocabulary) -> Answer:
    """The answer that a stream teaches, with exact places (the targets, before they are rounded to bins)."""
    answer = range(s.prompt_length, len(s))
    coords = [s.coord_target[i - 1] / BINS for i in answer if s.ids[i] == COORD]
    sizes = [s.size_target[i - 1] for i in answer if s.ids[i] == SIZE]
    points = tuple(zip(coords[::2], coords[1::2], strict=True))
    boxes = tuple(
        edges(x, y, bin_size(w), bin_size(h)) for (x, y), (w, h) in zip(points, sizes, strict=False)
    )  # fmt: skip
    if skill == "point":
        return Answer(points=points)
    if skill == "detect":
        return Answer(boxes=boxes)
    if skill == "segment":
        return Answer(boxes=boxes, path=wanted_path(s, points, scene, v) if boxes else "")
    ids = s.answer_ids()
    ids = ids[ids.index(ANSWER) + 1 :] if ANSWER in ids else ids
    kept = [i for i in ids if i not in (COORD, SIZE, GROUND, UNGROUND)]
    return Answer(v.tokenizer.decode(kept).strip(), points)


def wanted_path(s: Stream, points: tuple[tuple[float, float], ...], scene: Scene, v: Vocabulary) -> str:
    """The full outline of the thing meant, finer than the model's own; of what is no thing, the taught outline."""
    thing = s.aim[s.prompt_length - 1]
    if 0 <= thing < len(scene.things):
        t = scene.things[thing]
        if abs(t.x - points[0][0]) < 1e-3 and abs(t.y - points[0][1]) < 1e-3:
            return fine_path(t.kind)
    texts = [v.tokenizer.decode([i]).strip() for i in s.answer_ids() if i not in (COORD, SIZE)]
    return " ".join(str(int(text) / CONTOUR_SCALE) if text.isdigit() else text for text in texts)


@cache
def fine_path(kind: int) -> str:
    """The outline of a kind as path data in 0..1 of its box; round shapes get 96 points. A ring is filled."""
    corners = [f"{x / CONTOUR_SCALE} {y / CONTOUR_SCALE}" for x, y in contour(kind, FINE_RAYS)]
    return "M " + " L ".join(corners) + " Z"
