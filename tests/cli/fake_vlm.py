"""A VLM that answers by rule, for what the command line does around the real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gapless.errors import RequestTimeout


class FakeStream:
    """Pieces, and the result they add up to."""

    def __init__(self, pieces: list[Any], result: dict[str, Any]) -> None:
        self._pieces, self._result = pieces, result

    def __iter__(self) -> Iterator[Any]:
        return iter(self._pieces)

    def reasoning(self) -> dict[str, Any] | None:
        return self._result.get("reasoning")

    def result(self) -> dict[str, Any]:
        return self._result


class FakeVLM:
    """Answers with the picture's mean brightness, so that answers can be told apart. Remembers what it was asked."""

    def __init__(self) -> None:
        self.loaded_with: dict[str, Any] = {}
        self.plan: object = None
        self.calls: list[tuple[str, Any, dict[str, Any]]] = []
        self.closed_after: type[BaseException] | str | None = "open"
        self.raises: BaseException | None = None

    def load(self, model: str, **options: Any) -> FakeVLM:
        self.loaded_with = {"model": model, **options}
        return self

    def __enter__(self) -> FakeVLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.closed_after = kind

    def _ask(self, skill: str, image: Any, **arguments: Any) -> dict[str, Any]:
        self.calls.append((skill, None if image is None else image.shape, arguments))
        if self.raises is not None:
            raise self.raises
        if image is not None and image.mean() < 1:
            raise RequestTimeout("the picture is too dark; wait for the sun")
        return {"finish_reason": "stop", "metrics": {"output_tokens": 3}}

    def query(
        self,
        image: Any,
        question: str,
        stream: bool = False,
        reasoning: bool = False,
        schema: dict[str, Any] | None = None,
        **rest: Any,
    ) -> Any:
        rest |= {} if schema is None else {"schema": schema}
        result = self._ask("query", image, question=question, reasoning=reasoning, **rest)
        if reasoning:
            result["reasoning"] = {"text": "because", "grounding": []}
        result["answer"] = f"brightness {'none' if image is None else int(image.mean())}"
        if stream:
            return {"answer": FakeStream(result["answer"].split(" ", 1), result)}
        return result

    def caption(self, image: Any, length: str, stream: bool = False, **rest: Any) -> Any:
        result = self._ask("caption", image, length=length, **rest) | {"caption": f" a {length} caption "}
        return {"caption": FakeStream(["a ", length], result)} if stream else result

    def point(self, image: Any, object: str, **rest: Any) -> Any:
        points = [] if object == "nothing" else [{"x": 0.25, "y": 0.5}, {"x": 0.75, "y": 0.125}]
        return self._ask("point", image, object=object, **rest) | {"points": points}

    def detect(self, image: Any, object: str, **rest: Any) -> Any:
        box = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.5, "y_max": 0.75}
        return self._ask("detect", image, object=object, **rest) | {"objects": [box]}

    def segment(self, image: Any, object: str, stream: bool = False, **rest: Any) -> Any:
        box = {"x_min": 0.25, "y_min": 0.25, "x_max": 0.75, "y_max": 0.75}
        path = "" if object == "nothing" else "M 0 0 L 1 0 L 1 1 Z"
        result = self._ask("segment", image, object=object, **rest)
        result |= {"path": path, "bbox": box if path else None}
        pieces = [{"bbox": box}, {"chunk": path}, {"path": path, "bbox": box, "completed": True}]
        return FakeStream(pieces, result) if stream else result

    def detect_gaze(self, image: Any, eye: Any, face: Any, unstable_settings: Any, settings: Any) -> Any:
        arguments = {"eye": eye, "face": face, "unstable_settings": unstable_settings, "settings": settings}
        gaze = None if eye == [0, 0] else {"x": 0.75, "y": 0.125}
        return self._ask("gaze", image, **arguments) | {"gaze": gaze}
