"""How tokens are chosen: what a request asks for, and what a row is told of it. Frozen values; `records` hands them on.

Below `records`, so that a step may name them. Nothing here changes a logit; the formulas are at `Sampling`.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_TOP_LOGPROBS = 20
MAX_BIASED = 300
"""Ids that one request may bias or ban: as many as OpenAI's API takes."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and how many there may be. `temperature` 0 is argmax; `seed` makes samples repeatable.

    `max_tokens` counts per phase (reasoning and answer each have it); `max_objects` counts completed points or boxes.
    `top_logprobs`: -1 none, 0 the chosen token's only, 1..20 that many alternatives too.

    The rest adjusts an id's logit x before anything is masked or chosen, in this order and in float32. Said c times:
    x / `repetition_penalty` if x >= 0, else x * it, once c > 0 or the prompt has the id (Keskar et al. 2019, as in
    Hugging Face's processor); less c * `frequency_penalty`, and less `presence_penalty` once c > 0 (OpenAI's formula);
    plus its bias. `banned` ids, and in an answer's first `min_tokens` tokens the one that would end it, are impossible
    unless the rule leaves nothing else. Ids that steer (end, answer, coordinates, sizes) are never counted.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 768
    max_objects: int = 50
    seed: int = 0
    top_logprobs: int = -1
    logit_bias: tuple[tuple[int, float], ...] = ()
    banned: tuple[int, ...] = ()
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def adjusts(self) -> bool:
        """Whether any logit is changed."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return bool(self.logit_bias or self.banned or self.min_tokens) or penalties != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Adjustment:
    """How a row's logits are changed before a token is chosen: see `Sampling`, whose names these are.

    `biases`: (id, bias), each id once, -inf for one that is banned. `prompt`: ids that the prompt has, each once;
    `said`: those that were said before this life of the row, as often as they were; of both those that count.
    """

    repetition: float
    frequency: float
    presence: float
    least: int
    """Tokens an answer has at least."""
    biases: tuple[tuple[int, float], ...]
    prompt: tuple[int, ...]
    said: tuple[int, ...]

    @property
    def bans(self) -> bool:
        """Whether an id is banned."""
        return any(bias == float("-inf") for _, bias in self.biases)
