"""Questions of every skill, asked through the library's own methods, and what must be true of any answer.

In: a `VLM`, pictures and a question. Out: the answer as its caller has it, beside the requests and tokens it was made
of, which are noted on their way through the engine's handle. All is greedy, so one asked twice is one answer.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gapless.api.channel import Channel
from gapless.api.desk import EncodedImage, EngineHandle
from gapless.api.vlm import VLM
from gapless.bench.asks import Ask
from gapless.models.moondream.templates import Templates
from gapless.records import Emission, Prompt, Request, Sampling, Token, TokenTable

Answer = dict[str, Any]
REFS = [[0.25, 0.5], [0.1, 0.2, 0.6, 0.9]]
FACE = [[0.3, 0.2, 0.5, 0.6]]
ENDS = ("stop", "length")
MOST = 768
"""Tokens of an answer that any of these settings allows."""


@dataclass(frozen=True)
class Question:
    """`name`: of the skill and its variant. Without `ask` it is a conversation about two pictures. `picture`: the
    number of the first one; None for a question in words. `adapter`: by name."""

    name: str
    ask: Ask | None
    picture: int | None = 0
    adapter: str | None = None
    adapted: bool = True
    """Whether it may be asked with an adapter."""

    def put(self, vlm: VLM, pictures: Sequence[EncodedImage], limits: dict[str, int]) -> Answer:
        """Ask it by the method a caller has."""
        settings: dict[str, Any] = {"temperature": 0, "seed": 1, **limits}
        if self.adapter is not None:
            settings["adapter"] = self.adapter
        if self.ask is None:
            assert self.picture is not None
            shown = [pictures[(self.picture + i) % len(pictures)] for i in (0, 1)]
            return vlm.chat(_conversation(shown), settings=settings)
        image = None if self.picture is None else pictures[self.picture]
        return replace(self.ask, settings=settings).put(vlm, image)


@dataclass
class Heard:
    """A question's answer, and the requests and tokens it was made of."""

    answer: Answer = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    tokens: list[list[Token]] = field(default_factory=list)


def questions(templates: Templates) -> list[Question]:
    """One of every skill and variant that a model has."""
    made = [Question(f"caption, {length}", Ask("caption", length)) for length in templates.captions]
    made += [
        Question("query", Ask("query", "What is in the picture?")),
        Question("query, no picture", Ask("query", "What is a star?"), picture=None),
        Question("query, reasoning", Ask("query", "How many are there?", reasoning=True)),
        Question("query, places", Ask("query", "What is here?", spatial_refs=REFS)),
        Question("point", Ask("point", "star")),
        Question("point, places", Ask("point", "star", spatial_refs=REFS[:1])),
        Question("detect", Ask("detect", "circle")),
        Question("chat, two pictures", None),
    ]
    gazes = {"gaze": (REFS[:1], False), "gaze, forced": (REFS[:1], True), "gaze, a face": (FACE, False)}
    made += [
        Question(name, Ask("gaze", "", spatial_refs=refs, force=force), adapted=templates.gaze_points)
        for name, (refs, force) in gazes.items()
    ]
    return made if templates.segment is None else [*made, Question("segment", Ask("segment", "square"))]


def mixed(asked: Sequence[Question], count: int, pictures: int, adapters: Sequence[str]) -> list[Question]:
    """`count` of them, every skill, about any picture, with each adapter and with none."""
    rng = random.Random(7)
    names = [None, *adapters]
    chosen = [asked[i % len(asked)] for i in range(count)]
    chosen = [replace(one, adapter=names[i % len(names)]) if one.adapted else one for i, one in enumerate(chosen)]
    rng.shuffle(chosen)
    return [one if one.picture is None else replace(one, picture=rng.randrange(pictures)) for one in chosen]


def _conversation(shown: Sequence[EncodedImage]) -> list[dict[str, Any]]:
    texts = ("What is this?", "And this?")
    turns = [
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}
        for image, text in zip(shown, texts, strict=True)
    ]
    return [turns[0], {"role": "assistant", "content": "A star."}, turns[1]]


class Noted:
    """An engine's handle that notes, for each thread that asks, which tokens its requests were given."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._own = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def hear(self, put: Callable[[], Answer]) -> Heard:
        """Ask in this thread, and note."""
        heard = self._own.heard = Heard()
        heard.answer = put()
        return heard

    def submit(
        self,
        prompt: Prompt,
        program: str,
        sampling: Sampling,
        deadline: float | None,
        channel: Channel,
        adapter: str | None = None,
        grammar: TokenTable | None = None,
    ) -> int:
        """See `EngineHandle`."""
        heard, tokens, put, say = self._own.heard, [], channel.put, channel.say

        def noted(emission: Emission) -> None:
            tokens.extend(emission.tokens)
            put(emission)

        def noted_alone(request_id: int, token: Token) -> None:
            tokens.append(token)
            say(request_id, token)

        channel.put, channel.say = noted, noted_alone  # type: ignore[method-assign]
        id = self._handle.submit(prompt, program, sampling, deadline, channel, adapter, grammar)
        heard.requests.append(Request(id, prompt, program, sampling, grammar=grammar))
        heard.tokens.append(tokens)
        return id


@contextmanager
def noting(vlm: VLM) -> Iterator[Noted]:
    """Note what passes through a model's handle."""
    handle = vlm.desk.runner
    noted = Noted(handle)
    vlm.desk.runner = noted  # type: ignore[assignment]
    try:
        yield noted
    finally:
        vlm.desk.runner = handle


def ask_alone(
    vlm: VLM, asked: Sequence[Question], pictures: Sequence[EncodedImage], limits: dict[str, int]
) -> list[Heard]:
    """One after the other."""
    with noting(vlm) as noted:
        return [noted.hear(_putting(one, vlm, pictures, limits)) for one in asked]


def ask_at_once(
    vlm: VLM, asked: Sequence[Question], pictures: Sequence[EncodedImage], limits: dict[str, int]
) -> list[Heard]:
    """A thread each."""
    with noting(vlm) as noted, ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(noted.hear, [_putting(one, vlm, pictures, limits) for one in asked]))


def _putting(one: Question, vlm: VLM, pictures: Sequence[EncodedImage], limits: dict[str, int]) -> Callable[[], Answer]:
    def put() -> Answer:
        return one.put(vlm, pictures, limits)

    return put


# -- what must be true of any answer ---------------------------------------------------------------------------------


def misshapen(question: Question, answer: Answer) -> list[str]:
    """What is wrong with the form of an answer."""
    kind = "chat" if question.ask is None else question.ask.skill
    checked = {
        "caption": lambda: isinstance(answer["caption"], str),
        "query": lambda: isinstance(answer["answer"], str) and _reasoned(question, answer),
        "point": lambda: all(_places(point, "x", "y") for point in answer["points"]),
        "detect": lambda: all(_is_box(box) for box in answer["objects"]),
        "segment": lambda: isinstance(answer["path"], str) and (answer["bbox"] is None or _is_box(answer["bbox"])),
        "gaze": lambda: answer["gaze"] is None or _places(answer["gaze"], "x", "y"),
        "chat": lambda: answer["message"]["role"] == "assistant" and isinstance(answer["message"]["content"], str),
    }
    faults = []
    try:
        faults += [] if checked[kind]() else [f"{question.name}: {str(answer)[:300]}"]
    except (KeyError, TypeError) as error:
        faults.append(f"{question.name}: {error!r} in {str(answer)[:300]}")
    if kind == "gaze" and question.ask is not None and question.ask.spatial_refs == FACE:
        return faults  # made of many answers: it has no end of its own
    counts = answer.get("metrics", {})
    if answer.get("finish_reason") not in ENDS or not 1 <= counts.get("output_tokens", 0) <= 2 * MOST:
        faults.append(f"{question.name}: ended by {answer.get('finish_reason')!r}, {counts}")
    return faults


def _reasoned(question: Question, answer: Answer) -> bool:
    if question.ask is None or not question.ask.reasoning:
        return "reasoning" not in answer
    reasoning = answer["reasoning"]
    length = len(reasoning["text"])
    return all(
        0 <= part["start_idx"] <= part["end_idx"] <= length
        and all(len(point) == 2 and all(_is_share(v) for v in point) for point in part["points"])
        for part in reasoning["grounding"]
    )


def _is_box(box: Answer) -> bool:
    corners = ("x_min", "y_min", "x_max", "y_max")
    return _places(box, *corners) and box["x_min"] <= box["x_max"] and box["y_min"] <= box["y_max"]


def _places(found: Answer, *names: str) -> bool:
    return found.keys() == set(names) and all(_is_share(found[name]) for name in names)


def _is_share(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and 0.0 <= value <= 1.0
