"""The desk: what every way of asking shares. Pictures and questions become requests here; the engine runs behind it.

In: pictures in any form and the arguments of a skill. Out: `Ask`s, ready to be submitted. Everything here runs in the
caller's thread and may run in many at once. A desk that nobody holds any more ends its engine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

from gapless.api.channel import Channel
from gapless.api.rules import Rules
from gapless.api.ruling import Rule
from gapless.config import PICTURE_CACHE, ImageLimits
from gapless.errors import InvalidImage, InvalidRequest
from gapless.images.cache import PictureCache, PictureCounts
from gapless.images.crops import CropSpec
from gapless.images.data_url import picture_bytes
from gapless.images.decode import PictureSource
from gapless.images.picture import cut_here, mirrored
from gapless.observe.accounting import Accounting, Snapshot
from gapless.observe.steps import StepTimes
from gapless.records import Picture, Prompt, Sampling
from gapless.skills.base import Ask, SkillContext, pictured, user_text
from gapless.skills.caption import caption
from gapless.skills.chat import chat, check_chat
from gapless.skills.detect import detect
from gapless.skills.gaze import gaze, looks
from gapless.skills.messages import Conversation, PicturePart, read_messages
from gapless.skills.point import point
from gapless.skills.query import query
from gapless.skills.segment import segment
from gapless.skills.spatial import SpatialRefs
from gapless.skills.structured import Shape

SettingsDict = Mapping[str, object]
Asking = Callable[[Picture | None], Ask]
"""A question that only lacks its picture."""

AHEAD = 4
"""The window of a list of pictures, in engine rows: enough to keep all rows busy, while the rest wait undecoded."""


class Pin:
    """As long as it exists, an engine keeps what it computes of a picture before all else. Keeps no engine alive."""

    def __init__(self, runner: EngineHandle, picture: str) -> None:
        self.runner = weakref.ref(runner)
        runner.pin(picture, 1)
        weakref.finalize(self, _unpin, self.runner, picture).atexit = False


def _unpin(runner: weakref.ref[EngineHandle], picture: str) -> None:
    if (living := runner()) is not None:
        living.pin(picture, -1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EncodedImage:
    """A picture decoded and cut once, for any number of questions to models with the same crop settings. The engine
    that it was encoded for keeps what it computes of the picture, as long as this exists and running requests leave
    room."""

    picture: Picture
    crops: CropSpec
    pin: Pin | None = None

    def __reduce__(self) -> tuple[type[EncodedImage], tuple[Picture, CropSpec]]:
        """For other processes, and copies: a pin is this object's own."""
        return EncodedImage, (self.picture, self.crops)

    def __repr__(self) -> str:
        return f"EncodedImage({self.picture.width}x{self.picture.height}, {self.picture.digest[:12]})"


Image = PictureSource | EncodedImage


class EngineHandle(Protocol):
    """What runs requests: `Runner` in a thread, `RemoteRunner` in a process of its own. For any thread."""

    def check(self) -> None:
        """Raises `EngineDead` or `EngineClosed` if no request would be taken any more. Waits for nothing."""
        ...

    def accounting(self) -> Accounting:
        """What the engine and its device did since the start."""
        ...

    def snapshot(self) -> Snapshot:
        """The same, with what is held now and how requests ended. Never fails; may wait for a moment."""
        ...

    def watch(self, steps: int) -> tuple[Snapshot, tuple[StepTimes, ...]]:
        """A snapshot with the steps that were watched since the last call; the next `steps` are. For one watcher, who
        shares what it is told; may wait for a moment."""
        ...

    def now(self) -> float:
        """Seconds on the loop's clock, for deadlines."""
        ...

    def submit(
        self,
        prompt: Prompt,
        program: str,
        sampling: Sampling,
        deadline: float | None,
        channel: Channel,
        adapter: str | None = None,
        grammar: Rule | None = None,
    ) -> int:
        """Hand a request to the engine and return its id. `grammar`: see `Request`, also its `guide`.
        Raises `EngineClosed` or `EngineDead`, and `InvalidRequest` for an adapter that is not loaded."""
        ...

    def load_adapter(self, name: str, path: str) -> None:
        """Read an adapter; requests from now on may name it. One of the same name is replaced for them, and kept by
        those before. Raises `InvalidAdapter`, or `InvalidRequest` where there are no slots."""
        ...

    def unload_adapter(self, name: str) -> None:
        """Requests may name it no longer; those that did keep it. Returns at once. Raises `InvalidRequest`."""
        ...

    def adapters(self) -> tuple[str, ...]:
        """Names of the adapters that requests may ask for."""
        ...

    def cancel(self, request_id: int) -> None:
        """Ask for the end of a request. Returns at once; ids that are unknown or over are harmless."""
        ...

    def pin(self, picture: str, more: int) -> None:
        """`more` (1 or -1) handles of the picture with this digest exist: the cache keeps its block before all else.
        Returns at once, and may be called in a destructor."""
        ...

    def close(self, drain: bool = True, within: float | None = None) -> None:
        """Take no more requests, let running ones end (`drain`) or end them. Raises `EngineDead` if that fails. Returns
        after about `within` seconds whatever happens."""
        ...

    def abandon(self) -> None:
        """Nobody can ask for anything any more: cancel and end, without waiting for it."""
        ...


def _abandon(runner: EngineHandle, rules: Rules) -> None:
    rules.abandon()
    runner.abandon()


class Desk:
    """One model behind one engine. `rows`: how many requests the engine runs at once; `window`: how many pictures of a
    list are prepared and asked about ahead of the one whose answer is awaited; `picture_cache`: bytes of prepared
    pictures that are kept; `device_cuts`: pictures need not be cut here."""

    def __init__(
        self,
        context: SkillContext,
        crops: CropSpec,
        limits: ImageLimits,
        runner: EngineHandle,
        rows: int,
        picture_cache: int = PICTURE_CACHE,
        device_cuts: bool = False,
    ) -> None:
        self.context = context
        self.runner = runner
        self.rows = rows
        self.window = AHEAD * rows
        self._crops = crops
        self._limits = limits
        self._device_cuts = device_cuts
        self._pictures = PictureCache(crops, limits, picture_cache, device_cuts)
        self.rules = Rules(context)
        ending = weakref.finalize(self, _abandon, runner, self.rules)
        ending.atexit = False  # at exit the runner itself lets running requests end

    def encode(self, image: Image) -> EncodedImage:
        """Decode and cut a picture. Raises `InvalidImage`; `InvalidRequest` for one cut for another model."""
        if not isinstance(image, EncodedImage):
            return EncodedImage(self._pictures.prepare(image), self._crops)
        if image.crops != self._crops:
            raise InvalidRequest(
                f"the image was encoded with {image.crops}, but {self.context.name} takes {self._crops}; encode it "
                "with this model's encode_image",
                param="image",
            )
        if image.picture.uncut and not self._device_cuts:
            return EncodedImage(cut_here(image.picture, self._crops), self._crops)
        return image

    def keep(self, image: Image) -> EncodedImage:
        """The same, and what the engine computes of the picture is kept as long as what is returned exists."""
        encoded = self.encode(image)
        if encoded.pin is not None and encoded.pin.runner() is self.runner:
            return encoded
        return EncodedImage(encoded.picture, encoded.crops, Pin(self.runner, encoded.picture.digest))

    def ask(self, image: Image | None, asking: Asking) -> Ask:
        """Put a picture to a question."""
        return asking(None if image is None else self.encode(image).picture)

    def table(self, ask: Ask) -> Future[Rule] | None:
        """The table of an ask's rule, None for none. Takes milliseconds; raises what `EngineHandle.check` raises."""
        if ask.rule is None:
            return None
        self.runner.check()
        return self.rules.table(ask.rule)

    def left(self, ask: Ask, started: float) -> float | None:
        """Seconds of an ask's timeout that are left; None without one. `started`: on the loop's clock."""
        return None if ask.timeout is None else max(0.0, started + ask.timeout - self.runner.now())

    def close(self, drain: bool = True, within: float | None = None) -> None:
        """End the engine, see `EngineHandle.close`, and before it what compiles rules."""
        self.rules.close()
        self.runner.close(drain, within)

    def abandon(self) -> None:
        """The same for both without waiting."""
        _abandon(self.runner, self.rules)

    def query(
        self,
        question: object,
        settings: SettingsDict | None,
        reasoning: bool,
        spatial_refs: SpatialRefs | None,
        schema: object = None,
    ) -> Asking:
        """See `skills.query`. A question that was forgotten is told before its picture is looked at."""
        user_text(question, "question")
        return partial(
            query,
            self.context,
            question=question,
            reasoning=reasoning,
            spatial_refs=spatial_refs,
            settings=settings,
            shape=None if schema is None else Shape(schema),
        )

    def chat(self, messages: object, settings: SettingsDict | None, reasoning: bool, schema: object = None) -> Ask:
        """See `skills.chat`. `messages`: as OpenAI's clients write them, or read already."""
        conversation = messages if isinstance(messages, Conversation) else read_messages(messages)
        check_chat(self.context, conversation, reasoning)
        pictures = [self._shown(part) for part in conversation.pictures]
        shape = None if schema is None else Shape(schema)
        return chat(self.context, conversation, pictures, reasoning=reasoning, settings=settings, shape=shape)

    def _shown(self, part: PicturePart) -> Picture:
        """The picture of a message, whose place an error names."""
        try:
            if part.kind == "image_url":
                return self.encode(picture_bytes(str(part.source))).picture
            return self.encode(part.source).picture  # type: ignore[arg-type]
        except InvalidImage as error:
            raise InvalidImage(str(error), param=part.where) from error

    def caption(self, length: object, settings: SettingsDict | None) -> Asking:
        """See `skills.caption`."""
        return partial(caption, self.context, length=length, settings=settings)

    def point(self, object: object, settings: SettingsDict | None, spatial_refs: SpatialRefs | None) -> Asking:
        """See `skills.point`."""
        return partial(point, self.context, object=object, spatial_refs=spatial_refs, settings=settings)

    def detect(self, object: object, settings: SettingsDict | None) -> Asking:
        """See `skills.detect`."""
        return partial(detect, self.context, object=object, settings=settings)

    def gaze(
        self, image: Image | None, eye: object, face: object, switches: object, settings: SettingsDict | None
    ) -> tuple[Ask, ...]:
        """See `skills.gaze`: one question, or those about a picture and as many about the mirrored one."""
        if isinstance(image, list | tuple):
            raise InvalidRequest("an eye is one picture's; call once per picture", param="image")
        wanted = looks(eye, face, switches, settings)
        picture = pictured(None if image is None else self.encode(image).picture, "gaze")
        asked = partial(gaze, self.context, force=wanted.force, settings=settings)
        asks = tuple(asked(picture, one) for one in wanted.eyes)
        if not wanted.mirrored:
            return asks
        other = mirrored(picture)
        return asks + tuple(asked(other, one) for one in wanted.mirrored)

    def segment(
        self, object: object, settings: SettingsDict | None, spatial_refs: SpatialRefs | None, mask: bool
    ) -> Asking:
        """See `skills.segment`."""
        return partial(segment, self.context, object=object, spatial_refs=spatial_refs, mask=mask, settings=settings)

    def accounting(self) -> Accounting:
        """Totals since the model was loaded: counts, the device's busy and idle time, the loop's time by part."""
        return self.runner.accounting()

    def stats(self) -> dict[str, Any]:
        """The same as plain numbers, and beside them what was done for pictures and rules before the engine."""
        counted = {"pictures": asdict(self.pictures()), "rules": asdict(self.rules.counts())}
        beside = {f"{of}_{name}": count for of, counts in counted.items() for name, count in counts.items()}
        return self.accounting().as_dict() | beside

    def pictures(self) -> PictureCounts:
        """Pictures that were asked for since the model was loaded, and what of that was done before."""
        return self._pictures.counts
