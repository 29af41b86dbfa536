"""What the caller's process and the engine's say to each other: typed messages over one ZeroMQ pair of sockets.

In and out: the records of `gapless.records` and `gapless.observe`, exactly as they were; a picture's crops stay in the
arena and only their place is named. Errors of the package's tree and Python's own keep their class, message, `param`
and cause; of any other the name and the text are left. A frame that is no such message raises `ValueError`.
"""

from __future__ import annotations

import builtins
import os
import signal
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from gapless import errors
from gapless.api.arena import Region
from gapless.api.lessons import Lesson
from gapless.config import Opening
from gapless.errors import GaplessError, RequestFailed
from gapless.observe.accounting import Accounting, Standing
from gapless.observe.steps import StepTimes
from gapless.records import Emission, Finish, FinishReason, Metrics, Request, Sampling, Talk, Token

LINGER = 2000
"""Milliseconds that a side which ends gives its last messages to be sent."""
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What asks to end is for the parent: supervisors send it to all, and the parent still needs its engine."""


CAUSES = 16
"""An error and the causes behind it that are told. Causes may also go round in a circle."""


class ErrorNote(msgspec.Struct, frozen=True):
    """An error in words. `name` is its class; `param` as in `GaplessError`."""

    name: str
    text: str
    param: str | None = None
    cause: ErrorNote | None = None

    @classmethod
    def of(cls, error: BaseException) -> ErrorNote:
        """Of an error and the causes behind it, whatever they are: it is written where nothing more may fail."""
        chain: list[BaseException] = []
        behind: BaseException | None = error
        while behind is not None and len(chain) < CAUSES and all(behind is not one for one in chain):
            chain.append(behind)
            behind = behind.__cause__
        note: ErrorNote | None = None
        for one in reversed(chain[1:]):
            note = cls(type(one).__name__, _text(one), _param(one), note)
        return cls(type(error).__name__, _text(error), _param(error), note)

    def error(self, otherwise: type[Exception] = RequestFailed) -> Exception:
        """The error again; of a class that is not known here, one of class `otherwise` that names it."""
        error = self._ours() or self._pythons() or otherwise(f"{self.name}: {self.text}")
        error.__cause__ = None if self.cause is None else self.cause.error(RuntimeError)
        return error

    def _ours(self) -> Exception | None:
        kind = getattr(errors, self.name, None)
        if isinstance(kind, type) and issubclass(kind, GaplessError):
            return kind(self.text, param=self.param)
        return None

    def _pythons(self) -> Exception | None:
        kind = getattr(builtins, self.name, None)
        if not isinstance(kind, type) or not issubclass(kind, Exception):
            return None
        try:
            return kind(self.text)
        except TypeError:  # takes more than a text
            return None


def _text(error: BaseException) -> str:
    try:
        return _spelled(error.args[0] if len(error.args) == 1 and isinstance(error.args[0], str) else str(error))
    except Exception:  # its own `__str__` fails
        return "an error that cannot be shown"


def _param(error: BaseException) -> str | None:
    return _spelled(error.param) if isinstance(error, GaplessError) and error.param is not None else None


def _spelled(text: str) -> str:
    """What UTF-8 cannot spell (bytes of a file's name, half a surrogate pair) as an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


class News(msgspec.Struct, frozen=True, array_like=True):
    """An `Emission`."""

    request_id: int
    tokens: tuple[Token, ...] = ()
    metrics: Metrics | None = None
    """Of the finish, None before it."""
    reason: FinishReason | None = None
    error: ErrorNote | None = None

    @classmethod
    def of(cls, emission: Emission) -> News:
        """As a message."""
        finish = emission.finish
        if finish is None:
            return cls(emission.request_id, emission.tokens)
        error = None if finish.error is None else ErrorNote.of(finish.error)
        return cls(emission.request_id, emission.tokens, finish.metrics, finish.reason, error)

    def emission(self) -> Emission:
        """As a record."""
        if self.metrics is None:
            return Emission(self.request_id, self.tokens)
        error = None if self.error is None else self.error.error()
        return Emission(self.request_id, self.tokens, Finish(self.metrics, self.reason, error))


# -- to the engine -------------------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, tag=True):
    """Load this model."""

    opening: Opening


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A `Request`; `region` says where its picture lies, `insets` where those of its insets, each behind its `at`."""

    id: int
    ids: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    program: str
    sampling: Sampling
    host_masked: bool
    deadline: float | None
    submitted: float
    region: Region | None = None
    insets: tuple[tuple[int, Region], ...] = ()
    adapter: str | None = None
    """Key of its adapter."""
    grammar: str | None = None
    """Digest of its token table or guide, which was sent before."""

    @classmethod
    def of(cls, request: Request, regions: Sequence[Region]) -> Submit:
        """As a message; `regions` are those of all its pictures, in order."""
        prompt, front = request.prompt, 0 if request.prompt.picture is None else 1
        return cls(
            request.id,
            prompt.ids,
            prompt.values,
            request.program,
            request.sampling,
            request.host_masked,
            request.deadline,
            request.submitted or 0.0,
            regions[0] if front else None,
            tuple((inset.at, region) for inset, region in zip(prompt.insets, regions[front:], strict=True)),
            None if request.adapter is None else request.adapter.key,
            _digest(request),
        )


def _digest(request: Request) -> str | None:
    rule = request.grammar or request.guide
    return None if rule is None else rule.digest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a request."""

    id: int


class Shelve(msgspec.Struct, frozen=True, tag=True):
    """Load an adapter; answered with `Shelved` of this `order`."""

    order: int
    name: str
    path: str


class Discard(msgspec.Struct, frozen=True, tag=True):
    """No request that follows has the adapter of this key."""

    key: str


class Pin(msgspec.Struct, frozen=True, tag=True):
    """See `EngineHandle.pin`."""

    picture: str
    more: int


class Tell(msgspec.Struct, frozen=True, tag=True):
    """Send `Totals`. `watch`: also the steps that were watched so far, and watch so many more; 0 changes nothing."""

    watch: int = 0


class Close(msgspec.Struct, frozen=True, tag=True):
    """No request follows; end when there is nothing left to do. Without `drain` cancel all that run."""

    drain: bool


Downward = Open | Lesson | Submit | Cancel | Shelve | Discard | Pin | Tell | Close


# -- from the engine -----------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The process has begun and holds the arena."""


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """See `load.Progress`."""

    doing: str
    done: int
    total: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be loaded."""

    error: ErrorNote


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Requests may come. `rows`: how many run at once; `plan`: the fields of a `GpuPlan`."""

    rows: int
    prefix: int
    max_context: int
    totals: Accounting
    plan: dict[str, Any] | None = None
    adapters: dict[str, str] | None = None
    """Keys by name; None without slots for any."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """What a tick brought: `talk`, and behind it `news` in order; and where pictures lay that are not needed any
    more."""

    news: tuple[News, ...]
    freed: tuple[int, ...] = ()
    talk: tuple[Talk, ...] = ()


class Shelved(msgspec.Struct, frozen=True, tag=True):
    """The answer to one `Shelve`: a key, or why not."""

    order: int
    key: str = ""
    error: ErrorNote | None = None


class Totals(msgspec.Struct, frozen=True, tag=True):
    """The answer to one `Tell`."""

    totals: Accounting
    standing: Standing
    steps: tuple[StepTimes, ...] = ()


class Bye(msgspec.Struct, frozen=True, tag=True):
    """The last message of an engine that was closed."""

    totals: Accounting


class Died(msgspec.Struct, frozen=True, tag=True):
    """The last message of an engine that stopped because of an error."""

    error: ErrorNote


Upward = Hello | Progressed | Refused | Ready | Report | Shelved | Totals | Bye | Died

_encoder = msgspec.msgpack.Encoder()
_downward: msgspec.msgpack.Decoder[Downward] = msgspec.msgpack.Decoder(Downward)
_upward: msgspec.msgpack.Decoder[Upward] = msgspec.msgpack.Decoder(Upward)

encode = _encoder.encode


def decode_downward(frame: bytes) -> Downward:
    """Raises `ValueError` for anything but such a message."""
    return _downward.decode(frame)


def decode_upward(frame: bytes) -> Upward:
    """Raises `ValueError` for anything but such a message."""
    return _upward.decode(frame)


class Line:
    """One side's end of the pair. For one thread; sending never blocks, however slow the other side is."""

    def __init__(self, address: str, *, serves: bool) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # bounded by the requests' own token limits
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.LINGER, LINGER)
        (self.socket.bind if serves else self.socket.connect)(address)
        self._poller, self._bell = zmq.Poller(), -1
        self._poller.register(self.socket, zmq.POLLIN)

    def send(self, message: Downward | Upward) -> None:
        """Raises `zmq.Again` when the other side is gone."""
        self.socket.send(encode(message), zmq.NOBLOCK)

    def receive(self) -> bytes | None:
        """The next frame, None if none has come."""
        try:
            return self.socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def hear(self, bell: int) -> None:
        """From now on a byte to this pipe ends a wait too."""
        self._bell = bell
        self._poller.register(bell, zmq.POLLIN)

    def wait(self, seconds: float | None) -> None:
        """Block until a frame has come, at most so long."""
        if self._bell in dict(self._poller.poll(None if seconds is None else max(1, round(1e3 * seconds)))):
            os.read(self._bell, 4096)

    def close(self, linger: int = LINGER) -> None:
        """Nothing is sent after `linger` milliseconds."""
        self.socket.close(linger)
        self._context.term()
