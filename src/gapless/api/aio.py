"""`AsyncVLM`: the same as `VLM` with `await`.

Pictures are decoded and questions tokenized in worker threads; the event loop only reads tokens. Cancelling a task
cancels its request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gapless.api.call import AsyncCall
from gapless.api.desk import Asking, Desk, EncodedImage, Image, SettingsDict
from gapless.api.rules import awaited
from gapless.api.shelf import adapter_path
from gapless.api.stream import AsyncStream
from gapless.api.vlm import VLM, Images, Messages, OnError, one_picture, returns_errors
from gapless.errors import GaplessError
from gapless.observe.accounting import Accounting
from gapless.skills.base import Ask
from gapless.skills.gaze import gathered
from gapless.skills.settings import adapter_name
from gapless.skills.spatial import SpatialRefs


class AsyncVLM:
    """A loaded model for tasks: `AsyncVLM(gapless.load("glint"))`. It shares the engine of the `VLM` it is made from.

    See `VLM` for arguments, results and errors; streams are `AsyncStream`s. One may serve several event loops.
    """

    def __init__(self, vlm: VLM) -> None:
        self.desk: Desk = vlm.desk

    async def encode_image(self, image: Image) -> EncodedImage:
        """See `VLM.encode_image`."""
        return await asyncio.to_thread(self.desk.keep, image)

    async def load_adapter(self, name: str, path: str | Path) -> None:
        """See `VLM.load_adapter`."""
        await asyncio.to_thread(self.desk.runner.load_adapter, adapter_name(name), adapter_path(path))

    def unload_adapter(self, name: str) -> None:
        """See `VLM.unload_adapter`."""
        self.desk.runner.unload_adapter(adapter_name(name))

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that calls may ask for."""
        return self.desk.runner.adapters()

    async def query(
        self,
        image: Images | None = None,
        question: str | None = None,
        stream: bool = False,
        settings: SettingsDict | None = None,
        reasoning: bool = False,
        spatial_refs: SpatialRefs | None = None,
        *,
        on_error: OnError = "raise",
        schema: object = None,
    ) -> Any:
        """See `VLM.query`."""
        asking = self.desk.query(question, settings, reasoning, spatial_refs, schema)
        if not stream:
            return await self._answer(image, asking, on_error)
        answer = await self._stream(image, asking)
        found = await answer.reasoning()
        return {"answer": answer} if found is None else {"reasoning": found, "answer": answer}

    async def caption(
        self,
        image: Images,
        length: str = "normal",
        stream: bool = False,
        settings: SettingsDict | None = None,
        *,
        on_error: OnError = "raise",
    ) -> Any:
        """See `VLM.caption`."""
        asking = self.desk.caption(length, settings)
        if stream:
            return {"caption": await self._stream(image, asking)}
        return await self._answer(image, asking, on_error)

    async def chat(
        self,
        messages: Messages,
        stream: bool = False,
        settings: SettingsDict | None = None,
        reasoning: bool | None = None,
        *,
        schema: object = None,
    ) -> Any:
        """See `VLM.chat`."""
        started = self.desk.runner.now()
        ask = await asyncio.to_thread(self.desk.chat, messages, settings, reasoning or False, schema)
        call = await self._call(ask, started, stream=stream)
        return {"message": AsyncStream(call)} if stream else await call.wait()

    async def detect(
        self, image: Images, object: str, settings: SettingsDict | None = None, *, on_error: OnError = "raise"
    ) -> Any:
        """See `VLM.detect`."""
        return await self._answer(image, self.desk.detect(object, settings), on_error)

    async def point(
        self,
        image: Images,
        object: str,
        settings: SettingsDict | None = None,
        spatial_refs: SpatialRefs | None = None,
        *,
        on_error: OnError = "raise",
    ) -> Any:
        """See `VLM.point`."""
        return await self._answer(image, self.desk.point(object, settings, spatial_refs), on_error)

    async def segment(
        self,
        image: Images,
        object: str,
        spatial_refs: SpatialRefs | None = None,
        stream: bool = False,
        settings: SettingsDict | None = None,
        mask: bool = False,
        *,
        on_error: OnError = "raise",
    ) -> Any:
        """See `VLM.segment`."""
        asking = self.desk.segment(object, settings, spatial_refs, mask)
        return await (self._stream(image, asking) if stream else self._answer(image, asking, on_error))

    async def detect_gaze(
        self,
        image: Image,
        eye: Sequence[float] | None = None,
        face: Mapping[str, float] | None = None,
        unstable_settings: Mapping[str, bool] | None = None,
        settings: SettingsDict | None = None,
    ) -> Any:
        """See `VLM.detect_gaze`."""
        started = self.desk.runner.now()
        asks = await asyncio.to_thread(self.desk.gaze, image, eye, face, unstable_settings, settings)
        calls = [AsyncCall(self.desk, ask, started, stream=False) for ask in asks]
        try:
            results = [await call.wait() for call in calls]
        finally:
            for call in calls:
                call.cancel()
        return results[0] if len(results) == 1 else gathered(results)

    def check(self) -> None:
        """See `VLM.check`."""
        self.desk.runner.check()

    def accounting(self) -> Accounting:
        """See `VLM.accounting`."""
        return self.desk.accounting()

    def stats(self) -> dict[str, Any]:
        """See `VLM.stats`."""
        return self.desk.stats()

    async def close(self, drain: bool = True) -> None:
        """See `VLM.close`; other tasks go on meanwhile."""
        await asyncio.to_thread(self.desk.close, drain)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `VLM.__exit__`."""
        await self.close(drain=kind is None)

    # -- asking ------------------------------------------------------------------------------------------------------

    async def _stream(self, image: Images | None, asking: Asking) -> AsyncStream:
        return AsyncStream(await self._begin(one_picture(image), asking, stream=True))

    async def _answer(self, image: Images | None, asking: Asking, on_error: OnError) -> Any:
        if isinstance(image, list | tuple):
            return await self._answer_all(image, asking, returns_errors(on_error))
        return await (await self._begin(image, asking, stream=False)).wait()

    async def _begin(self, image: Image | None, asking: Asking, *, stream: bool) -> AsyncCall:
        started = self.desk.runner.now()
        ask = await asyncio.to_thread(self.desk.ask, image, asking)
        return await self._call(ask, started, stream=stream)

    async def _call(self, ask: Ask, started: float, *, stream: bool) -> AsyncCall:
        """Submit it, once its rule has a table; other tasks go on meanwhile."""
        table = None
        if ask.rule is not None:
            compiling = await asyncio.to_thread(self.desk.table, ask)
            table = await awaited(compiling, ask, self.desk.left(ask, started))
        return AsyncCall(self.desk, ask, started, table, stream=stream)

    async def _answer_all(self, images: Sequence[Image], asking: Asking, keep: bool) -> list[Any]:
        """Ask about every picture, a bounded number of them ahead; collect in order."""
        results: list[Any] = []
        calls: deque[AsyncCall | GaplessError] = deque()
        try:
            for image in images:
                if len(calls) == self.desk.window:
                    results.append(await self._collect(calls.popleft(), keep))
                try:
                    calls.append(await self._begin(image, asking, stream=False))
                except GaplessError as error:
                    if not keep:
                        raise
                    calls.append(error)
            while calls:
                results.append(await self._collect(calls.popleft(), keep))
        finally:
            for call in calls:
                if isinstance(call, AsyncCall):
                    call.cancel()
        return results

    async def _collect(self, call: AsyncCall | GaplessError, keep: bool) -> Any:
        if isinstance(call, GaplessError):
            return call
        try:
            return await call.wait()
        except GaplessError as error:
            if not keep:
                raise
            return error
