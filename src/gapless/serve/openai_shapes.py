"""Answers in OpenAI's shapes: a chat completion, its chunks, usage, logprobs.

In: answers of the library, or pieces of them. Out: plain JSON. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gapless.skills.chat import reasoning_fields


@dataclass(frozen=True, slots=True)
class Heading:
    """What all parts of one answer have in common. `created` in seconds since 1970."""

    id: str
    created: int
    model: str
    request_id: str

    def over(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An object of a kind."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return head | {"choices": choices, "request_id": self.request_id}


def message_of(skill: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The message that a skill's answer is. What is not in words is JSON text, and the same under "result"."""
    if skill == "chat":
        return {**answer["message"], "refusal": None}
    message: dict[str, Any] = {"role": "assistant", "refusal": None}
    if skill in ("query", "caption"):
        content = answer["answer" if skill == "query" else "caption"]
        return message | {"content": content} | reasoning_fields(answer.get("reasoning"))
    result = {name: value for name, value in answer.items() if name not in ("finish_reason", "metrics")}
    return message | {"content": as_text(result), "result": result}


def as_text(result: Mapping[str, Any]) -> str:
    """JSON in one line."""
    return json.dumps(result, allow_nan=False)


def completion(heading: Heading, skill: str, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A whole answer, one choice for each."""
    choices = [
        {
            "index": index,
            "message": message_of(skill, answer),
            "logprobs": logprobs_of(answer.get("logprobs")),
            "finish_reason": answer["finish_reason"],
        }
        for index, answer in enumerate(answers)
    ]
    metrics = [answer["metrics"] for answer in answers]
    return heading.over("chat.completion", choices) | {"usage": usage(metrics), "metrics": metrics[0]}


def logprobs_of(scores: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Scores as a choice has them."""
    return None if scores is None else {"content": scores, "refusal": None}


def usage(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens of a request: its prompt is counted once, what was generated for all choices together."""
    metrics = list(metrics)
    prompt, generated = metrics[0]["input_tokens"], sum(one["output_tokens"] for one in metrics)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": metrics[0]["cached_tokens"]},
    }


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a stream. `counted`: a last one with usage follows, and so all others say that they have none."""

    heading: Heading
    counted: bool

    def delta(self, index: int, delta: Mapping[str, Any], scores: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """More of a choice."""
        return self._chunk(index, delta, logprobs_of(scores), None)

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """Nothing more of a choice."""
        return self._chunk(index, {}, None, reason)

    def usage(self, metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What all choices took."""
        return self.heading.over("chat.completion.chunk", []) | {"usage": usage(metrics)}

    def _chunk(self, index: int, delta: Mapping[str, Any], logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "delta": dict(delta), "logprobs": logprobs, "finish_reason": reason}
        none = {"usage": None} if self.counted else {}
        return self.heading.over("chat.completion.chunk", [choice]) | none
