"""An adapter's file looked at, not loaded: its rank, its linears, and which models it fits by names and shapes.

In: a folder or file. Out: `SeenAdapter`. No number is read. `problems` is what would keep it from any model; which one
it is meant for is seen by trying the known ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gapless.errors import InvalidAdapter
from gapless.models.moondream.adapters import branches, names_in
from gapless.models.moondream.config import MOONDREAM_3, REVISION, REVISIONS, MoeConfig, TextConfig
from gapless.models.moondream.identify import identify
from gapless.weights.adapters import FLOATS, MAX_RANK, adapter_file, faults_of, opened
from gapless.weights.folder import find_files
from gapless.weights.hub import BUNDLED, locate
from gapless.weights.stored import Header

PUBLISHED = {"Moondream 2": REVISION, "Moondream 3": MOONDREAM_3}
SPELT_OUT = 6
"""Strange names that are told; the rest are counted."""


@dataclass(frozen=True, slots=True)
class SeenAdapter:
    """`rank`: the largest of any linear, that of all experts of a token together; `fits`: models whose linears it has,
    all of them in the right shapes; `linears`: how many it adds to."""

    file: Path
    rank: int
    linears: int
    tensors: int
    bytes: int
    dtypes: Mapping[str, int]
    fits: tuple[str, ...]
    problems: tuple[str, ...]


def inspect_adapter(path: Path) -> SeenAdapter:
    """Look at it. Raises `InvalidAdapter` for a file that is damaged, or a model's weights."""
    file = adapter_file(path)
    with opened(file) as stored:
        headers = dict(stored.headers)
    fits: list[str] = []
    named = dict(headers)
    for model, config in _known().items():
        try:
            found = {new: headers[old] for new, old in names_in(headers, config).items()}
        except ValueError as error:
            if "no adapter" in str(error):
                raise InvalidAdapter(f"{file} {error}", param="adapter") from error
            continue
        named = found if not fits else named
        if not faults_of(found, branches(config)):
            fits.append(model)
    pairs = {name[:-2] for name in named if name.endswith((".A", ".B"))}
    ranks = [_rank(named[f"{stem}.A"]) for stem in pairs if f"{stem}.A" in named]
    return SeenAdapter(
        file,
        max(ranks, default=0),
        len(pairs),
        len(headers),
        sum(header.size for header in headers.values()),
        dict(Counter(header.dtype for header in headers.values()).most_common()),
        tuple(fits),
        tuple(_problems(named, pairs)),
    )


def _known() -> dict[str, TextConfig]:
    """The models that there are adapters for: the bundled ones, and those of the published sizes."""
    own = {name: identify(find_files(locate(name).folder)).text for name in BUNDLED}
    return own | {name: REVISIONS[revision].text for name, revision in PUBLISHED.items()}


def _rank(a: Header) -> int:
    """An expert's matrices have three dimensions; how many experts a token takes is the published model's."""
    if len(a.shape) not in (2, 3):
        return 0
    return a.shape[-2] * (MoeConfig().experts_per_token if len(a.shape) == 3 else 1)


def _problems(named: Mapping[str, Header], pairs: set[str]) -> Iterator[str]:
    strange = sorted(name for name in named if name[:-2] not in pairs or not name.endswith((".A", ".B")))
    if strange:
        more = f" and {len(strange) - SPELT_OUT} more" if len(strange) > SPELT_OUT else ""
        yield f"no matrix A or B of a linear: {', '.join(strange[:SPELT_OUT])}{more}"
    for stem in sorted(pairs):
        a, b = named.get(f"{stem}.A"), named.get(f"{stem}.B")
        if a is None or b is None:
            yield f"missing {stem}.{'B' if b is None else 'A'}"
            continue
        if len(a.shape) != len(b.shape) or not 2 <= len(a.shape) <= 3 or a.shape[-2] != b.shape[-1]:
            yield f"{stem}.A {list(a.shape)} and {stem}.B {list(b.shape)} have no rank in common"
        elif not 1 <= _rank(a) <= MAX_RANK:
            yield f"{stem} has rank {_rank(a)}; it must be from 1 to {MAX_RANK}"
        if other := {a.dtype, b.dtype}.difference(FLOATS):
            yield f"{stem} is {', '.join(sorted(other))}, expected {', '.join(FLOATS)}"
