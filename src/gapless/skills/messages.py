"""A conversation as OpenAI's clients write it, checked and put in turns.

In: a list of messages {"role", "content"}, content a text or a list of parts. Out: `Conversation`: what was said, and
which pictures were shown when; the pictures themselves are left as they were given. An error names the place, like
messages[2].content[0].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gapless.errors import InvalidRequest, shown

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
UNSPEAKABLE = ("tool_calls", "function_call", "audio", "refusal")
"""Fields of a message that this model has no words for. Empty ones are skipped, as are fields that are not known."""


@dataclass(frozen=True, slots=True, eq=False)
class PicturePart:
    """`kind` image_url: `source` is a URL that must hold the picture; image: anything the library takes."""

    kind: Literal["image_url", "image"]
    source: object
    where: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user said and showed, and the answer if there is one already."""

    text: str
    pictures: tuple[PicturePart, ...]
    where: str
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """`system`: what was said before all, perhaps nothing. The last turn has no answer yet."""

    system: str
    turns: tuple[Turn, ...]

    @property
    def pictures(self) -> tuple[PicturePart, ...]:
        """All, in the order in which they stand."""
        return tuple(part for turn in self.turns for part in turn.pictures)

    def showing(self, images: Sequence[object]) -> Conversation:
        """The same with these pictures instead, one for each."""
        left = iter(images)
        turns = [
            replace(turn, pictures=tuple(replace(part, kind="image", source=next(left)) for part in turn.pictures))
            for turn in self.turns
        ]
        return replace(self, turns=tuple(turns))


@dataclass(slots=True)
class _Said:
    """One message, or several of one role in a row: they are one, with a line break between."""

    role: str
    texts: list[str]
    pictures: list[PicturePart]
    where: str

    def go_on(self, more: _Said) -> None:
        """Take in the next one. In place: a conversation may be of very many messages in a row."""
        self.texts += more.texts
        self.pictures += more.pictures
        self.where = more.where

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def read_messages(messages: object, *, wordless: bool = False) -> Conversation:
    """Check messages. Raises `InvalidRequest`. `wordless`: the last one may show a picture and say nothing.

    System messages come first, then users and assistants in turn; the last word is a user's. Only users show pictures,
    and they say something too.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise _wrong("messages", messages, "must be a list of messages that is not empty")
    said: list[_Said] = []
    for number, message in enumerate(messages):
        one = _read(message, f"messages[{number}]")
        if said and said[-1].role == one.role:
            said[-1].go_on(one)
        elif said and one.role == "system":
            raise InvalidRequest(f"{one.where} is a system message behind others; put it first", param=one.where)
        else:
            said.append(one)
    system = said.pop(0).text.strip() if said[0].role == "system" else ""
    return Conversation(system, _turns(said, wordless))


def _turns(said: list[_Said], wordless: bool) -> tuple[Turn, ...]:
    if not said or said[-1].role != "user":
        raise InvalidRequest("the last of the messages must be a user's: it is what is answered", param="messages")
    if said[0].role != "user":
        raise InvalidRequest(
            f"{said[0].where}: an assistant does not speak first; begin with a user's message", param=said[0].where
        )
    turns = []
    for number in range(0, len(said), 2):
        user = said[number]
        text = user.text.strip()
        if not text and not (wordless and user is said[-1]):
            raise InvalidRequest(f"{user.where}.content has no text; say what you want to know", param=user.where)
        answer = said[number + 1].text if number + 1 < len(said) else None
        turns.append(Turn(text, tuple(user.pictures), user.where, answer))
    return tuple(turns)


def _read(message: object, where: str) -> _Said:
    if not isinstance(message, Mapping):
        raise _wrong(where, message, 'must be an object like {"role": "user", "content": "..."}')
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", role, f"must be one of {', '.join(ROLES)}")
    for field in UNSPEAKABLE:
        if message.get(field):
            raise InvalidRequest(
                f"{where}.{field} is nothing this model can use; leave it out", param=f"{where}.{field}"
            )
    return _content(message.get("content"), ROLES[role], where)


def _content(content: object, role: str, where: str) -> _Said:
    here = f"{where}.content"
    if isinstance(content, str):
        return _Said(role, [content], [], where)
    if not isinstance(content, list | tuple) or not content:
        raise _wrong(here, content, "must be a text, or a list of parts that is not empty")
    texts: list[str] = []
    pictures: list[PicturePart] = []
    for number, part in enumerate(content):
        read = _part(part, f"{here}[{number}]")
        if isinstance(read, str):
            texts.append(read)
        elif role == "user":
            pictures.append(read)
        else:
            raise InvalidRequest(f"{read.where}: only a user shows pictures, not {role}", param=read.where)
    return _Said(role, texts, pictures, where)


def _part(part: object, where: str) -> str | PicturePart:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise _wrong(where, part, 'must be an object like {"type": "text", "text": "..."}')
    if kind == "text":
        if not isinstance(part.get("text"), str):
            raise _wrong(f"{where}.text", part.get("text"), "must be a text")
        return str(part["text"])
    if kind == "image_url":
        return PicturePart("image_url", _url(part.get("image_url"), f"{where}.image_url"), where)
    if kind == "image":
        return PicturePart("image", part.get("image"), where)
    raise _wrong(f"{where}.type", kind, "must be text, image_url or image")


def _url(value: object, where: str) -> str:
    """OpenAI's {"url", "detail"}, or the URL alone. The detail is not used: every picture is looked at in full."""
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise _wrong(where, value, 'must be an object like {"url": "data:image/png;base64,..."}')
    return url


def _wrong(where: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{where} {wanted}; got {shown(value)}", param=where)
