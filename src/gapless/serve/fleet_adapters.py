"""One engine's adapters in a fleet: those that all engines are given, and those that it finds when a request names one.

In: names and paths that the fleet's configuration gives, names that requests may mean, a folder that all machines see.
Out: adapters loaded into this engine. Invariants: a name is loaded once from one path, that of the configuration if it
has one; engines of one configuration and folder mean the same by a name, whenever they began; what is not there is left
to the routes, which say so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from gapless.api.aio import AsyncVLM
from gapless.api.shelf import adapter_path
from gapless.errors import GaplessError, InvalidRequest
from gapless.skills.settings import adapter_name

_log = logging.getLogger("gapless.serve")


class FleetAdapters:
    """See the module. `loaded`: paths of those that are there from the start, by name."""

    def __init__(self, vlm: AsyncVLM, folder: Path | None, loaded: Mapping[str, str]) -> None:
        self._vlm = vlm
        self._folder = folder
        self._paths = {name: adapter_path(path) for name, path in loaded.items()}
        self._given = False
        self._turn = asyncio.Lock()

    async def give(self, wanted: Mapping[str, str]) -> None:
        """Load those of the configuration that are not there from that path, and drop those that it had and no longer
        has; where the folder has one of that name, that one is meant from now on. The first time this raises
        `GaplessError` for one that cannot be loaded. Later that is logged, and what has the name stays: for a wrong
        path in an update no engine that runs is to end."""
        async with self._turn:
            for name, path in wanted.items():
                try:
                    await self._load(name, adapter_path(path))
                except GaplessError as error:
                    if not self._given:
                        raise
                    _log.error("the adapter %s of the configuration is passed over: %s", name, error)
            self._given = True
            dropped = [name for name in self._paths if name not in wanted]
            shared = await asyncio.to_thread(self._in_folder_of, dropped)
            for name in dropped:
                if name not in shared or not await self._load_shared(name):  # as an engine has it that begins now
                    self._vlm.unload_adapter(name)
                    del self._paths[name]

    async def find(self, names: Iterable[str]) -> None:
        """Load those of these names that are unknown here and in the folder. One that cannot be loaded is logged."""
        if self._folder is None:
            return
        unknown = [name for name in names if name not in self._paths and name != self._vlm.desk.context.name]
        missing = await asyncio.to_thread(self._in_folder_of, unknown) if unknown else []
        if not missing:
            return
        async with self._turn:
            for name in missing:
                await self._load_shared(name)

    async def find_all(self) -> None:
        """Load all of the folder."""
        if self._folder is None:
            return
        if not await asyncio.to_thread(self._folder.is_dir):
            _log.warning("the adapters' folder %s is not there on this machine; is it mounted?", self._folder)
        await self.find(await asyncio.to_thread(_names, self._folder))

    async def _load_shared(self, name: str) -> bool:
        """Whether the folder's adapter of that name is there now."""
        assert self._folder is not None
        try:
            await self._load(name, str(self._folder / name))
        except GaplessError as error:
            _log.warning("the adapter %s of the shared folder is passed over: %s", name, error)
            return False
        return True

    async def _load(self, name: str, path: str) -> None:
        if self._paths.get(name) != path:
            await self._vlm.load_adapter(name, path)
            self._paths[name] = path

    def _in_folder_of(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if self._in_folder(name)]

    def _in_folder(self, name: str) -> bool:
        """Whether the folder has it; a name is never a path."""
        try:
            return self._folder is not None and (self._folder / adapter_name(name)).exists()
        except (InvalidRequest, OSError):
            return False


def _names(folder: Path) -> list[str]:
    return sorted(found.name for found in folder.iterdir()) if folder.is_dir() else []
