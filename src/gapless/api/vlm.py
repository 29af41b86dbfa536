"""`VLM`: a model that answers questions about pictures, for any number of threads at once.

Methods, arguments and returned dicts are those of the `moondream` Python client 2.6.1; "finish_reason" and "metrics"
ride along. Where a picture is taken, a list of pictures is too: all are asked at once, results come in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from gapless.api.call import BlockingCall
from gapless.api.desk import Asking, Desk, EncodedImage, Image, SettingsDict
from gapless.api.rules import wait
from gapless.api.shelf import adapter_path
from gapless.api.stream import Stream
from gapless.errors import GaplessError, InvalidRequest, shown
from gapless.observe.accounting import Accounting
from gapless.skills.base import Ask
from gapless.skills.gaze import gathered
from gapless.skills.messages import Conversation
from gapless.skills.settings import adapter_name
from gapless.skills.spatial import SpatialRefs

if TYPE_CHECKING:
    from gapless.device.sizing import GpuPlan

OnError = Literal["raise", "return"]
Images = Image | list[Image] | tuple[Image, ...]
Messages = Sequence[Mapping[str, Any]] | Conversation


class VLM:
    """A loaded model; made by `gapless.load`. Use it as a context manager or call `close`; exit does so too.

    `settings` of all methods: temperature, top_p, max_tokens, max_objects, seed, timeout (seconds), adapter (the name
    of a loaded one); where the answer is in words also stop (a text or a list of them) and logprobs (0 to 20
    alternatives a token). `on_error` says what becomes of one bad picture in a list: "raise" its error and cancel the
    others, or "return" it in its place.
    Raises `InvalidRequest`, `InvalidImage`, `PromptTooLong`, `RequestTimeout`, `EngineClosed`, `EngineDead` and the
    others of `gapless.errors`.
    """

    def __init__(self, desk: Desk, plan: GpuPlan | None = None) -> None:
        self.desk = desk
        self.plan = plan
        """How the GPU's memory was divided and what the start cost; None on a CPU."""

    def __repr__(self) -> str:
        where = "cpu" if self.plan is None else self.plan.gpu
        return f"VLM({self.desk.context.name!r} on {where}, up to {self.desk.rows} requests at once)"

    def encode_image(self, image: Image) -> EncodedImage:
        """Decode a picture once for several questions: a path, bytes, PIL image or numpy uint8 [H, W, 3].

        As long as what is returned exists, what the first question computes of the picture (its block of the KV cache,
        one for each adapter) is kept before all else: it goes only when requests that run have no other room.
        """
        return self.desk.keep(image)

    def query(
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
        """Return {"answer": str}, with `reasoning` also {"reasoning": {"text", "grounding"}}. Works without a picture.

        With `stream` the answer is a `Stream` of text; a reasoning is complete before this returns. `schema`: a JSON
        schema (dict) or a Pydantic model class; the answer is JSON that satisfies it, and beside it is "object": its
        value, or an instance of the class (of a stream, in its `result()`). Raises `UnreadableAnswer` for one that was
        cut off.
        """
        asking = self.desk.query(question, settings, reasoning, spatial_refs, schema)
        if not stream:
            return self._answer(image, asking, on_error)
        answer = self._stream(image, asking)
        found = answer.reasoning()
        return {"answer": answer} if found is None else {"reasoning": found, "answer": answer}

    def caption(
        self,
        image: Images,
        length: str = "normal",
        stream: bool = False,
        settings: SettingsDict | None = None,
        *,
        on_error: OnError = "raise",
    ) -> Any:
        """Return {"caption": str}, or with `stream` {"caption": Stream}. `length`: short, normal or long."""
        asking = self.desk.caption(length, settings)
        return {"caption": self._stream(image, asking)} if stream else self._answer(image, asking, on_error)

    def chat(
        self,
        messages: Messages,
        stream: bool = False,
        settings: SettingsDict | None = None,
        reasoning: bool | None = None,
        *,
        schema: object = None,
    ) -> Any:
        """Return {"message": {"role": "assistant", "content": str}}, or with `stream` {"message": Stream}.

        `messages` are those of OpenAI's clients. A picture is a part {"type": "image_url", "image_url": {"url": data
        URL}}, or {"type": "image", "image": ...} with what `encode_image` takes; only users show pictures. With
        `reasoning` the message has "reasoning" (str) and "reasoning_details" ({"grounding"}) too; of a stream see
        `Stream.reasoning`. `schema`: see `query`.
        """
        started = self.desk.runner.now()
        call = self._call(self.desk.chat(messages, settings, reasoning or False, schema), started, stream=stream)
        return {"message": Stream(call)} if stream else call.wait()

    def detect(
        self, image: Images, object: str, settings: SettingsDict | None = None, *, on_error: OnError = "raise"
    ) -> Any:
        """Return {"objects": [{"x_min", "y_min", "x_max", "y_max"}]}, parts of the upright picture's sides, 0..1."""
        return self._answer(image, self.desk.detect(object, settings), on_error)

    def point(
        self,
        image: Images,
        object: str,
        settings: SettingsDict | None = None,
        spatial_refs: SpatialRefs | None = None,
        *,
        on_error: OnError = "raise",
    ) -> Any:
        """Return {"points": [{"x", "y"}]}."""
        return self._answer(image, self.desk.point(object, settings, spatial_refs), on_error)

    def segment(
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
        """Return {"path": SVG path in 0..1 of the box, "bbox": box or None}; `mask` adds a bool array [H, W].

        With `stream` return a `Stream` of {"bbox"}, {"chunk"}..., {"path", "bbox", "completed": True}.
        """
        asking = self.desk.segment(object, settings, spatial_refs, mask)
        return self._stream(image, asking) if stream else self._answer(image, asking, on_error)

    def load_adapter(self, name: str, path: str | Path) -> None:
        """Read a LoRA adapter from a folder or file; calls from now on may name it in `settings={"adapter": name}`.

        One of the same name is replaced: calls that run keep the old one, and nothing computed with it is used again.
        Raises `InvalidAdapter`, after which all is as before; `InvalidRequest` for a model without slots.
        """
        self.desk.runner.load_adapter(adapter_name(name), adapter_path(path))

    def unload_adapter(self, name: str) -> None:
        """Calls may name it no longer; those that run keep it. Returns at once. Raises `InvalidRequest`."""
        self.desk.runner.unload_adapter(adapter_name(name))

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that calls may ask for."""
        return self.desk.runner.adapters()

    def detect_gaze(
        self,
        image: Image,
        eye: Sequence[float] | None = None,
        face: Mapping[str, float] | None = None,
        unstable_settings: Mapping[str, bool] | None = None,
        settings: SettingsDict | None = None,
    ) -> Any:
        """Return {"gaze": {"x", "y"} or None}: where the person looks whose eye is at `eye`, [x, y] in 0..1.

        Arguments are those of Moondream's own code. `unstable_settings`: "force_detect" wants a point in any case;
        "prioritize_accuracy" asks from twenty places in `face`, a box as `detect` returns them, half of them in the
        mirrored picture, and returns the mean of the hits that lie together, without "finish_reason" and "metrics". The
        setting `seed` fixes the places. `image` is one picture.
        """
        started = self.desk.runner.now()
        asks = self.desk.gaze(image, eye, face, unstable_settings, settings)
        calls = [BlockingCall(self.desk, ask, started, stream=False) for ask in asks]
        try:
            results = [call.wait() for call in calls]
        finally:
            for call in calls:
                call.cancel()
        return results[0] if len(results) == 1 else gathered(results)

    def check(self) -> None:
        """Raises `EngineDead` or `EngineClosed` if the engine takes no requests any more. Asks it nothing."""
        self.desk.runner.check()

    def accounting(self) -> Accounting:
        """Totals since the model was loaded, to be subtracted: `accounting() - before`."""
        return self.desk.accounting()

    def stats(self) -> dict[str, Any]:
        """The same as plain numbers; `Accounting.as_dict` says which, `PictureCounts` those of pictures_NAME,
        `RuleCounts` those of rules_NAME."""
        return self.desk.stats()

    def close(self, drain: bool = True) -> None:
        """Take no more requests, wait for running ones (with `drain` False they end with `EngineClosed`), end the
        threads."""
        self.desk.close(drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception on its way out does not wait for running requests: they end with `EngineClosed`."""
        self.close(drain=kind is None)

    # -- asking ------------------------------------------------------------------------------------------------------

    def _stream(self, image: Images | None, asking: Asking) -> Stream:
        return Stream(self._begin(one_picture(image), asking, stream=True))

    def _answer(self, image: Images | None, asking: Asking, on_error: OnError) -> Any:
        if isinstance(image, list | tuple):
            return self._answer_all(image, asking, returns_errors(on_error))
        return self._begin(image, asking, stream=False).wait()

    def _begin(self, image: Image | None, asking: Asking, *, stream: bool) -> BlockingCall:
        started = self.desk.runner.now()
        return self._call(self.desk.ask(image, asking), started, stream=stream)

    def _call(self, ask: Ask, started: float, *, stream: bool) -> BlockingCall:
        """Submit it, once its rule has a table."""
        table = wait(self.desk.table(ask), ask, self.desk.left(ask, started))
        return BlockingCall(self.desk, ask, started, table, stream=stream)

    def _answer_all(self, images: Sequence[Image], asking: Asking, keep: bool) -> list[Any]:
        """Ask about every picture, a bounded number of them ahead; collect in order."""
        results: list[Any] = []
        calls: deque[BlockingCall | GaplessError] = deque()
        try:
            for image in images:
                if len(calls) == self.desk.window:
                    results.append(self._collect(calls.popleft(), keep))
                try:
                    calls.append(self._begin(image, asking, stream=False))
                except GaplessError as error:
                    if not keep:
                        raise
                    calls.append(error)
            while calls:
                results.append(self._collect(calls.popleft(), keep))
        finally:
            for call in calls:
                if isinstance(call, BlockingCall):
                    call.cancel()
        return results

    def _collect(self, call: BlockingCall | GaplessError, keep: bool) -> Any:
        if isinstance(call, GaplessError):
            return call
        try:
            return call.wait()
        except GaplessError as error:
            if not keep:
                raise
            return error


def one_picture(image: Images | None) -> Image | None:
    """The picture of a stream. Raises `InvalidRequest` for a list."""
    if isinstance(image, list | tuple):
        raise InvalidRequest(
            f"a stream answers about one picture, not a list of {len(image)}; call once per picture", param="stream"
        )
    return image


def returns_errors(on_error: OnError) -> bool:
    """Whether errors are results. Raises `InvalidRequest` for an unknown word."""
    if on_error not in ("raise", "return"):
        raise InvalidRequest(f'on_error must be "raise" or "return", not {shown(on_error)}', param="on_error")
    return on_error == "return"
