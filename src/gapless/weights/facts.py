"""What a checkpoint's headers add up to: tensors, bytes, parameters, and memory in each dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from gapless.weights.stored import Header

MEMORY_IN = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a parameter, by the dtypes that a model computes in."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`tensors` and `bytes` are the files', `dtypes` counts the tensors of each; `memory`: bytes of all by dtype."""

    tensors: int
    bytes: int
    dtypes: Mapping[str, int]
    parameters: int
    memory: Mapping[str, int]


def facts(headers: Mapping[str, Header], wanted: Iterable[tuple[int, ...]]) -> Facts:
    """Add up. `wanted`: shapes of the tensors that the model will have."""
    parameters = sum(prod(shape) for shape in wanted)
    return Facts(
        tensors=len(headers),
        bytes=sum(header.size for header in headers.values()),
        dtypes=dict(Counter(header.dtype for header in headers.values()).most_common()),
        parameters=parameters,
        memory={name: size * parameters for name, size in MEMORY_IN.items()},
    )
