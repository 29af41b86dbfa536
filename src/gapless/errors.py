"""The tree of errors.

Every error says what was wrong, with the value, and what to do about it. `status` is the HTTP status a server
answers with; `param` names the offending argument where there is one. Nothing here imports another room.
"""

from __future__ import annotations

import reprlib
from typing import ClassVar


class _Short(reprlib.Repr):
    """`reprlib`, but for whole numbers of more digits than Python spells out."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"a whole number of {x.bit_length()} bits"


_short = _Short()
_short.maxstring = _short.maxother = 120  # most paths in full


def shown(value: object) -> str:
    """A caller's value as a message shows it: short, and never an error of its own, whatever it is."""
    try:
        return _short.repr(value)
    except Exception:  # its own repr, or one inside it, fails
        return f"a {type(value).__name__} that cannot be shown"


class GaplessError(Exception):
    """Root of all errors raised on purpose."""

    status: ClassVar[int] = 500

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(GaplessError):
    """The request cannot be served as it stands: a value is missing, malformed or out of range."""

    status: ClassVar[int] = 400


class InvalidImage(InvalidRequest):
    """The picture cannot be read: truncated, empty, of an unknown format, or too large."""


class InvalidAdapter(InvalidRequest):
    """An adapter's file is not there, is damaged, or does not fit the model; nothing was loaded."""


class PromptTooLong(InvalidRequest):
    """Picture + prompt + answer do not fit in the model's context."""


class RequestTooLarge(InvalidRequest):
    """The request needs more KV pages than the engine has in all, so waiting would not help."""

    status: ClassVar[int] = 413


class UnsupportedSkill(InvalidRequest):
    """The loaded model does not have the skill that was asked for."""

    status: ClassVar[int] = 501


class ModelNotFound(GaplessError):
    """No model of that name, or its folder lacks a file."""

    status: ClassVar[int] = 404


class InvalidCheckpoint(GaplessError):
    """A checkpoint's files do not fit its configuration."""


class RequestFailed(GaplessError):
    """This request failed inside the engine; others were not touched."""


class UnreadableAnswer(GaplessError):
    """No object can be made of an answer: it was cut off, or the caller's class refuses it. `answer`: its text."""

    def __init__(self, message: str, *, param: str | None = None, answer: str = "") -> None:
        super().__init__(message, param=param)
        self.answer = answer


class NonFiniteLogits(RequestFailed):
    """The model computed NaN or infinity for this request; nothing it says after that means anything."""


class RequestTimeout(GaplessError):
    """The request's own `timeout` ran out."""

    status: ClassVar[int] = 504


def overdue(waited: float, tokens: int) -> RequestTimeout:
    """What a request's timeout has cut off: so many tokens, `waited` seconds after it was handed to the engine."""
    if tokens:
        return RequestTimeout(
            f"the request's timeout ran out after {waited:.3f} s and {tokens} tokens; allow more time or lower "
            "max_tokens"
        )
    return RequestTimeout(
        f"the request's timeout ran out before its first token, {waited:.3f} s after the engine was given it (the "
        "picture is read before that); allow more time"
    )


class RequestCancelled(GaplessError):
    """The caller cancelled the request, or stopped reading its stream."""

    status: ClassVar[int] = 499


class EngineClosed(GaplessError):
    """The engine was closed, before the request or while it ran; load the model again to go on."""

    status: ClassVar[int] = 503


class EngineDead(GaplessError):
    """The engine stopped because of an error it cannot contain; the cause is chained."""

    status: ClassVar[int] = 503


class NotEnoughMemory(GaplessError):
    """The GPU, or for a CPU the machine, has too little memory for the model with these settings; the message has the
    numbers."""

    status: ClassVar[int] = 503


class StepFailed(GaplessError):
    """A device step failed. Only the requests riding on it are lost (I11)."""


class DeviceLost(GaplessError):
    """The device is in a state it cannot leave; the engine ends (I11)."""


class InvariantBroken(GaplessError):
    """A numbered invariant of the design does not hold. Always a bug; the engine stops rather than answer wrongly."""
