"""The adapters that requests may name, in the process whose engine has the model.

In: names and paths, from whoever loads a model; a request brings a name alone. Out: `Adapter`s, read, checked and ready
for a slot. Loading under a name that is taken makes a new version: requests from then on get it, those before keep
theirs, which lives as long as one of them does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gapless.errors import InvalidAdapter, InvalidRequest, shown
from gapless.records import Adapter

if TYPE_CHECKING:
    import torch

    from gapless.models.moondream.config import MoondreamConfig
    from gapless.models.registry import Loaded
    from gapless.weights.adapters import Pair

SLOTS = 8
"""Adapters that may run at once, unless the caller says otherwise."""
_versions = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes of a file what slots of `rank` take; on a GPU in pinned memory, so that nobody waits for the copy."""

    config: MoondreamConfig
    rank: int
    dtype: torch.dtype
    pinned: bool

    def weights(self, name: str, pairs: dict[str, Pair]) -> object:
        """Raises `InvalidAdapter`."""
        from gapless.models.moondream.adapters import pack

        flat = pack(pairs, self.config.text, self.rank, self.dtype, name)
        return flat.pin_memory() if self.pinned else flat

    def read(self, name: str, path: str) -> object:
        """Raises `InvalidAdapter`."""
        return self.weights(name, _read(path, self.config))


class Shelf:
    """One model's adapters by name. For any thread."""

    def __init__(self, maker: Maker) -> None:
        self.maker = maker
        self._adapters: dict[str, Adapter] = {}

    @classmethod
    def of(cls, loaded: Loaded, named: Iterable[tuple[str, str]], rank: int | None) -> Shelf:
        """With adapters from the start. `rank` None: the largest of theirs, or the most there is. Raises
        `InvalidAdapter`."""
        from gapless.models.moondream.adapters import branches
        from gapless.weights.adapters import MAX_RANK, rank_of

        found = {name: _read(path, loaded.config) for name, path in named}
        wheres = branches(loaded.config.text)
        wanted = rank or max((rank_of(pairs, wheres) for pairs in found.values()), default=MAX_RANK)
        model = loaded.model
        shelf = cls(Maker(loaded.config, wanted, model.dtype, model.device.type == "cuda"))
        for name, pairs in found.items():
            shelf.put(name, shelf.maker.weights(name, pairs))
        return shelf

    def load(self, name: str, path: str) -> Adapter:
        """Read and keep an adapter; what had its name before is no longer given out. Raises `InvalidAdapter`."""
        return self.put(name, self.maker.read(name, path))

    def put(self, name: str, weights: object) -> Adapter:
        """Keep an adapter."""
        adapter = self._adapters[name] = Adapter(name, next(_versions), weights)
        return adapter

    def drop(self, name: str) -> None:
        """Give it out no longer. Raises `InvalidRequest` for a name that is not there."""
        if self._adapters.pop(name, None) is None:
            raise unknown_adapter(name, self.names())

    def forget(self, key: str) -> None:
        """Let go of the adapter of this key, if it still is the one of its name."""
        name = key.rpartition("@")[0]
        kept = self._adapters.get(name)
        if kept is not None and kept.key == key:
            del self._adapters[name]

    def get(self, name: str) -> Adapter:
        """Raises `InvalidRequest` for a name that is not there."""
        adapter = self._adapters.get(name)
        if adapter is None:
            raise unknown_adapter(name, self.names())
        return adapter

    def names(self) -> tuple[str, ...]:
        """All, in order."""
        return tuple(sorted(self._adapters))

    def keys(self) -> dict[str, str]:
        """Key of each by name."""
        return {name: adapter.key for name, adapter in self._adapters.items()}

    def by_key(self) -> dict[str, Adapter]:
        """Each by its key."""
        return {adapter.key: adapter for adapter in self._adapters.values()}


def unknown_adapter(name: str, known: tuple[str, ...]) -> InvalidRequest:
    """What a request that names it is told."""
    loaded = f"loaded are {', '.join(known)}" if known else "none is loaded"
    return InvalidRequest(f"there is no adapter {name!r}; {loaded}", param="adapter")


def no_slots(name: str) -> InvalidRequest:
    """What a request with an adapter, and whoever loads one, is told by an engine that was made without slots."""
    return InvalidRequest(
        f"there is no adapter {name!r}, nor a slot for one: load the model with adapters={{{name!r}: path}}, or with "
        "max_adapters and give it later",
        param="adapter",
    )


def adapter_path(path: object) -> str:
    """A path that was given for an adapter, absolute; "glint/moon" for one that comes with the package."""
    if not isinstance(path, str | Path) or not str(path) or "\0" in str(path):
        raise InvalidRequest(f"an adapter's path must be a folder or file; got {shown(path)}", param="adapters")
    given = Path(path)
    owner, _, own = str(path).partition("/")
    if not _there(given):
        from gapless.weights.hub import ASSETS, BUNDLED

        folder = ASSETS / owner / "adapters"
        bundled = folder / own
        if owner in BUNDLED and own.isidentifier() and bundled.is_dir():
            return str(bundled)
        if owner in BUNDLED and own and folder.is_dir():
            known = ", ".join(sorted(f"{owner}/{found.name}" for found in folder.iterdir()))
            raise InvalidAdapter(
                f"there is no adapter {shown(str(path))}: with {owner} comes {known}; give that, or the path of a "
                "folder or file",
                param="adapters",
            )
    return str(given.absolute())


def _there(path: Path) -> bool:
    """Whether it exists; so it is said of one that cannot be looked at: whoever reads it says why."""
    try:
        return path.exists()
    except OSError:
        return True


def _read(path: str, config: MoondreamConfig) -> dict[str, Pair]:
    from gapless.models.moondream.adapters import read

    return read(Path(path), config)
