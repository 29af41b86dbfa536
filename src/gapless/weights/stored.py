"""Files of tensors, opened: what is in them, and each tensor when it is asked for.

In: safetensors files, or one `.pt` of `torch.save`. Out: headers by name, and tensors that are views of the mapped
file, in its own dtype. Nothing is copied here, and nothing is known of what the tensors mean. Torch is imported with
the first tensor (a `.pt`: with the first look), so headers of safetensors can be read without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from gapless.errors import InvalidCheckpoint

if TYPE_CHECKING:
    from torch import Tensor

FP8 = "F8_E4M3"
PICKLED = (".pt", ".pth")
"""Endings of files that `torch.save` wrote."""
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "I8": 1, "BOOL": 1}
BYTES |= {"I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8}
"""Bytes of an element, by the names that safetensors gives to dtypes."""
MOST_HEADER = 100_000_000
"""Bytes of a safetensors header, by its format."""


@dataclass(frozen=True, slots=True)
class Header:
    """A tensor as its file announces it. `dtype` is safetensors' name: F32, BF16, F16, F8_E4M3, U8 and so on."""

    shape: tuple[int, ...]
    dtype: str
    path: Path

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return prod(self.shape) * BYTES.get(self.dtype, 1)


@dataclass(frozen=True, slots=True)
class Stored:
    """Open files. `headers` by the name in the file; `twice`: names that several files have."""

    files: tuple[Path, ...]
    headers: Mapping[str, Header]
    twice: tuple[str, ...]
    _read: Callable[[str], Tensor]

    def read(self, name: str) -> Tensor:
        """A view of the mapped file. Valid as long as the files are open."""
        return self._read(name)


@contextmanager
def open_files(files: Sequence[Path]) -> Iterator[Stored]:
    """Open them together. Raises `InvalidCheckpoint` for one that is cut short, or is not what its name says."""
    if files[0].suffix in PICKLED:
        from gapless.weights.pickled import read_pickled

        read_it = read_pickled(files[0])
        yield Stored(tuple(files), read_it.headers, (), read_it.tensors.__getitem__)
        return
    with ExitStack() as stack:
        handles: dict[str, Any] = {}
        known: dict[str, Header] = {}
        twice: list[str] = []
        for path in files:
            handle = stack.enter_context(_open(path, "pt"))
            found = _headers(handle, path)
            twice += _again(known, found)
            known |= found
            handles |= dict.fromkeys(found, handle)

        def read(name: str) -> Tensor:
            tensor: Tensor = handles[name].get_tensor(name)
            return tensor

        yield Stored(tuple(files), known, tuple(twice), read)


def read_headers(files: Sequence[Path]) -> dict[str, Header]:
    """What is in the files, without a tensor being read. Raises as `open_files` does."""
    return look_into(files)[0]


def look_into(files: Sequence[Path]) -> tuple[dict[str, Header], tuple[str, ...]]:
    """As `read_headers`, and which names are there twice."""
    if files[0].suffix in PICKLED:
        with open_files(files) as stored:
            return dict(stored.headers), ()
    headers: dict[str, Header] = {}
    twice: list[str] = []
    for path in files:
        with _open(path, "np") as handle:
            found = _headers(handle, path)
        twice += _again(headers, found)
        headers |= found
    return headers, tuple(twice)


def _again(known: Mapping[str, Header], found: Mapping[str, Header]) -> list[str]:
    return [f"{name} is there twice (again in {header.path.name})" for name, header in found.items() if name in known]


def _open(path: Path, framework: str) -> Any:
    try:
        return safe_open(path, framework=framework)
    except (SafetensorError, OSError, ValueError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise InvalidCheckpoint(
            f"{path} ({size} bytes) is not a complete safetensors file{_cut(path, size)} ({error}). Download it again."
        ) from error


def _cut(path: Path, size: int) -> str:
    """Where a file breaks off, if its header can be read: in which tensor, and of how many bytes."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length < min(MOST_HEADER, size) else {}
        ends = {str(name): int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return ""
    there = size - 8 - length
    cut = sorted((end, name) for name, end in ends.items() if end > there)
    if not cut:
        return ""
    whole = 8 + length + cut[-1][0]
    more = f" and {len(cut) - 1} more are not whole" if len(cut) > 1 else " is not whole"
    return f": it ends after {size} of {whole} bytes, {cut[0][1]}{more}"


def _headers(handle: Any, path: Path) -> dict[str, Header]:
    headers = {}
    for name in handle.keys():  # noqa: SIM118  a safetensors handle is no mapping
        part = handle.get_slice(name)
        headers[str(name)] = Header(tuple(part.get_shape()), str(part.get_dtype()), path)
    return headers
