"""How JSON is written here: one way for every value, the way models write it.

In: trees of texts, values. Out: trees of JSON. Strings are in UTF-8, with the short escapes (of quote, backslash,
backspace, form feed, newline, return and tab) where JSON demands an escape, and no others; so other control characters
are in no string, save those that a schema itself spells out. Numbers see `digits`. Members stand in the order in which
a schema declares them. After each comma and colon there may be up to `spaces` spaces, and no other white space
anywhere: `{"a": 1, "b": [1, 2]}` and `{"a":1,"b":[1,2]}`, with the default of one.

Since every character of a string is written in one way, what a pattern or a length says of a text says the same of how
it is written, character by character (`spelled`).
"""

from __future__ import annotations

import json

from gapless.constrain.charset import ANY, CharSet
from gapless.constrain.language import EMPTY, Alt, Chars, Listed, Literal, Node, Repeat, Seq, alt, lexeme, seq
from gapless.constrain.regex import whole
from gapless.errors import InvalidRequest

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_RAW = ANY - CharSet.of((0, 0x1F)) - CharSet.among('"\\')
QUOTE = Literal(b'"')


class Spacing:
    """The separators, and JSON of given values."""

    def __init__(self, spaces: int) -> None:
        """`spaces`: see the module. Raises `InvalidRequest` for less than none or more than 8."""
        if not 0 <= spaces <= 8:
            raise InvalidRequest(f"spaces is {spaces}; it must be between 0 and 8", param="spaces")
        space: Node = Repeat(Literal(b" "), 0, spaces) if spaces else EMPTY
        self.comma = lexeme(seq(Literal(b","), space))
        self.colon = lexeme(seq(Literal(b":"), space))

    def value(self, value: object) -> Node:
        """JSON of a value, with any spacing."""
        if isinstance(value, dict):
            members = [seq(key(name), self.colon, self.value(inner)) for name, inner in value.items()]
            return seq(Literal(b"{"), self._all(members), Literal(b"}"))
        if isinstance(value, list):
            return seq(Literal(b"["), self._all([self.value(inner) for inner in value]), Literal(b"]"))
        return Literal(_dumped(value))

    def _all(self, parts: list[Node]) -> Node:
        return Listed(tuple(parts), None, len(parts), len(parts), self.comma)


def key(name: str) -> Node:
    """A member's name as a string."""
    return Literal(_dumped(name))


def _dumped(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # a lone surrogate, NaN, an infinity
        raise InvalidRequest(f"{value!a} cannot be written as JSON in UTF-8: {error}") from error


def characters(set: CharSet) -> Node:
    """One character of a string, out of a set, as it is written."""
    raw = Chars(set & _RAW)
    short = (Literal(escape.encode()) for char, escape in _SHORT.items() if ord(char) in set)
    return alt([*((raw,) if raw.set else ()), *short])


def spelled(text: Node) -> Node:
    """A language of texts as they are written between quotes. `text` has characters and what is made of them."""
    match text:
        case Chars(set):
            return characters(set)
        case Literal(b""):
            return text
        case Seq(parts):
            return seq(*(spelled(part) for part in parts))
        case Alt(options):
            return alt(spelled(option) for option in options)
        case Repeat(part, least, most):
            return Repeat(spelled(part), least, most)
        case _:
            raise AssertionError(f"{type(text).__name__} is no part of a regex")


def quoted(body: Node) -> Node:
    """A string."""
    return lexeme(seq(QUOTE, body, QUOTE))


CHARACTER = characters(ANY)
"""Any one character of a string."""

_DAY = (
    r"([1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    r"|([1-9]\d(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_CLOCK = r"T(\d{1,2}H(\d{1,2}M(\d{1,2}S)?)?|\d{1,2}M(\d{1,2}S)?|\d{1,2}S)"
_BYTE = r"(\d|[1-9]\d|1\d\d|2[0-4]\d|25[0-5])"
_LABEL = r"[a-zA-Z0-9]{1,15}(-[a-zA-Z0-9]{1,15})?"
_HOST = rf"({_LABEL}\.){{0,3}}[a-zA-Z]{{2,15}}"
_ATOM = r"[a-zA-Z0-9_+-]{1,20}"
_PATH = r"([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-F]{2})*"
_SITE = rf"https?://{_HOST}(:[1-9]\d{{0,3}})?"
_LONGEST_SITE = 8 + 3 * 32 + 15 + 5
_FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": rf"{_DAY}T{_TIME}",
    "duration": rf"P(\d{{1,3}}D({_CLOCK})?|{_CLOCK})",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": r"([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "email": rf"{_ATOM}(\.{_ATOM}){{0,2}}@({_LABEL}\.){{1,3}}[a-zA-Z]{{2,15}}",
    "hostname": _HOST,
    "uri": rf"{_SITE}(/{_PATH})*(\?{_PATH})?",
}
_FEWEST_ROOM, _MOST_ROOM = 8, 400
FORMATS = tuple(_FORMATS)
"""Formats that are written; each regex allows nothing that the format's standard does not, though not all that it does:
years have four digits and seconds end at 59, a duration has days, hours, minutes and seconds, an IPv6 address all its
groups, and a uri is one of http or https."""


def format_text(name: str, longest: int | None = None) -> Node:
    """The texts of a format of `FORMATS`, or enough of those of up to `longest` characters. Not all of these: counting
    a uri's characters as well as reading its host would take a state for each pair."""
    room = 0 if longest is None else (longest - _LONGEST_SITE) // 6
    if name != "uri" or room < _FEWEST_ROOM:
        return whole(_FORMATS[name])
    path = rf"([a-zA-Z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{{2}}){{0,{min(room, _MOST_ROOM) - 1}}}"
    return whole(rf"{_SITE}(/{path})?(\?{path})?")
