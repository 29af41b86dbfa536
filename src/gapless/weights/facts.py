"""What a checkpoint's headers add up to: tensors, bytes, parameters, and memory in each dtype."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from gapless.weights.stored import FP8, Header

MEMORY_IN = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a parameter that is computed with in its own dtype, by the dtypes there are."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`tensors` and `bytes` are the files', `dtypes` counts the tensors of each; `memory`: bytes of all by dtype."""

    tensors: int
    bytes: int
    dtypes: Mapping[str, int]
    parameters: int
    memory: Mapping[str, int]


def facts(headers: Mapping[str, Header], wanted: Iterable[tuple[int, ...]], kept: Sequence[Header] = ()) -> Facts:
    """Add up. `wanted`: shapes of the tensors that the model will have in the dtype that it computes in; `kept`: those
    that it will have as they are, whatever that is. Scales take memory, but are no parameters."""
    wide = sum(prod(shape) for shape in wanted)
    narrow = sum(prod(header.shape) for header in kept if header.dtype == FP8)
    as_it_is = sum(header.size for header in kept)
    return Facts(
        tensors=len(headers),
        bytes=sum(header.size for header in headers.values()),
        dtypes=dict(Counter(header.dtype for header in headers.values()).most_common()),
        parameters=wide + narrow,
        memory={name: size * wide + as_it_is for name, size in MEMORY_IN.items()},
    )
