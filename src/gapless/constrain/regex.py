"""Regular expressions to language trees.

In: a pattern. Out: the tree of the texts that match it as a whole (`whole`), or that it is found in (`found_in`, the
way a schema's `pattern` is meant). Supported: literals, classes, `.`, escapes, groups, alternation, quantifiers, lazy
ones too (a language has no preference), and the anchors ^ $ \\A \\Z where a text begins and ends. What no table can do
(lookaround, back-references, word boundaries, flags) is refused with its position.

The classes \\d \\w \\s are those of ASCII, and `.` is any character but a newline: what Python's `re` means with
`re.ASCII`. For a schema `.` leaves out the other line ends of ECMA-262 too, so that either reading agrees.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gapless.constrain.charset import ANY, CharSet
from gapless.constrain.language import EMPTY, Chars, Node, Repeat, alt, seq
from gapless.constrain.limits import DEFAULT, Limits
from gapless.errors import InvalidRequest, shown

_DIGIT = CharSet.among("0123456789")
_WORD = CharSet.of((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = CharSet.among(" \t\n\r\f\v")
_CLASSES = {"d": _DIGIT, "D": ~_DIGIT, "w": _WORD, "W": ~_WORD, "s": _SPACE, "S": ~_SPACE}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_HEX = {"x": 2, "u": 4, "U": 8}
_GROUPS = {
    "?=": "a lookahead",
    "?!": "a lookahead",
    "?<=": "a lookbehind",
    "?<!": "a lookbehind",
    "?>": "an atomic group",
    "?P=": "a back-reference",
    "?(": "a conditional",
    "?#": "a comment",
}
_LONGEST = 32
"""Characters between a quantifier's curly brackets, at most."""
_POSIX = re.compile(r"\[[:.=]\^?[a-z]+[:.=]\]")
_MOST = 100_000
"""The largest number in a quantifier; sizes are judged by what is built, this only keeps numbers numbers."""
_DOT = ~CharSet.among("\n")
_DOT_IN_SCHEMAS = ~CharSet.among("\n\r\u2028\u2029")


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Where a text begins (`edge` 0) or ends (1); `at` in the pattern."""

    edge: int
    at: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Branches, each a run of parts; anchors may stand among them."""

    branches: tuple[tuple[_Part, ...], ...]


@dataclass(frozen=True, slots=True)
class _Quantified:
    """A part so many times."""

    part: _Part
    least: int
    most: int | None


_Part = _Anchor | _Group | _Quantified | Chars


def whole(pattern: str, limits: Limits = DEFAULT) -> Node:
    """The texts that match from begin to end. Raises `InvalidRequest` with the position of what it refuses."""
    return _resolve(_Parser(pattern, limits, _DOT).parse(), EMPTY, EMPTY, pattern)


def found_in(pattern: str, limits: Limits = DEFAULT) -> Node:
    """The texts in which a match is found: anything may stand before and after, where there is no anchor."""
    anything = Repeat(Chars(ANY), 0, None)
    return _resolve(_Parser(pattern, limits, _DOT_IN_SCHEMAS).parse(), anything, anything, pattern)


def _resolve(part: _Part, before: Node | None, after: Node | None, pattern: str) -> Node:
    """The tree of a part, with `before` in front of every branch that does not begin with an anchor, and so `after`.

    None: a text neither begins nor ends there, so anchors make no sense.
    """
    if isinstance(part, _Group):
        return alt(_branch(branch, before, after, pattern) for branch in part.branches)
    if isinstance(part, _Anchor):
        raise _misplaced(part, pattern)
    inner = part if isinstance(part, Chars) else Repeat(_resolve(part.part, None, None, pattern), part.least, part.most)
    return seq(*(node for node in (before, inner, after) if node is not None and node != EMPTY))


def _branch(branch: tuple[_Part, ...], before: Node | None, after: Node | None, pattern: str) -> Node:
    if branch and isinstance(branch[0], _Anchor) and branch[0].edge == 0:
        if before is None:
            raise _misplaced(branch[0], pattern)
        before, branch = EMPTY, branch[1:]
    if branch and isinstance(branch[-1], _Anchor) and branch[-1].edge == 1:
        if after is None:
            raise _misplaced(branch[-1], pattern)
        after, branch = EMPTY, branch[:-1]
    if not branch:
        return seq(before or EMPTY, after or EMPTY)
    last = len(branch) - 1
    return seq(
        *(
            _resolve(part, before if i == 0 else None, after if i == last else None, pattern)
            for i, part in enumerate(branch)
        )
    )


def _misplaced(anchor: _Anchor, pattern: str) -> InvalidRequest:
    edge = ("begin", "end")[anchor.edge]
    return _refusal(pattern, anchor.at, f"the anchor of a text's {edge}, where none can {edge},")


def _refusal(pattern: str, at: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"the regex {shown(pattern)} has {what} at position {at}, which is not supported")


class _Parser:
    """Recursive descent. `_at` is the position of the next character."""

    def __init__(self, pattern: str, limits: Limits, dot: CharSet) -> None:
        self._pattern, self._limits, self._dot = pattern, limits, dot
        self._at = 0
        self._depth = 0

    def parse(self) -> _Part:
        group = self._group()
        if self._at < len(self._pattern):
            raise self._wrong(self._at, "an unopened ')'")
        return group

    def _wrong(self, at: int, what: str) -> InvalidRequest:
        return InvalidRequest(f"the regex {shown(self._pattern)} is malformed: {what} at position {at}")

    def _refused(self, at: int, what: str) -> InvalidRequest:
        return _refusal(self._pattern, at, what)

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        char = self._pattern[self._at : self._at + 1]
        self._at += 1
        return char

    def _group(self) -> _Group:
        self._depth += 1
        if self._depth > self._limits.depth:
            raise self._refused(self._at, f"groups nested more than {self._limits.depth} deep")
        branches = [self._run()]
        while self._take("|"):
            branches.append(self._run())
        self._depth -= 1
        return _Group(tuple(branches))

    def _run(self) -> tuple[_Part, ...]:
        parts: list[_Part] = []
        while self._at < len(self._pattern) and not self._peek("|") and not self._peek(")"):
            parts.append(self._quantified(self._one()))
        return tuple(parts)

    def _one(self) -> _Part:
        at, char = self._at, self._next()
        if char == "(":
            self._opening(at)
            group = self._group()
            if not self._take(")"):
                raise self._wrong(at, "an unclosed '('")
            return group
        if char in "^$":
            return _Anchor("^$".index(char), at)
        if char in "*+?":
            raise self._wrong(at, f"{char!r} with nothing to repeat")
        if char == ".":
            return Chars(self._dot)
        if char == "[":
            return Chars(self._class(at))
        if char == "\\":
            return self._escape(at)
        return Chars(CharSet.among(char))

    def _opening(self, at: int) -> None:
        """Read what stands after an opening bracket, of groups whose only meaning is that of a group."""
        if not self._peek("?") or self._take("?:"):
            return
        for opening in sorted(_GROUPS, key=len, reverse=True):
            if self._peek(opening):
                raise self._refused(at, _GROUPS[opening])
        if self._take("?P<") or self._take("?<"):
            close = self._pattern.find(">", self._at)
            if close < 0 or not self._pattern[self._at : close].isidentifier():
                raise self._wrong(at, "a group without a proper name")
            self._at = close + 1
            return
        raise self._refused(at, "inline flags")

    def _quantified(self, part: _Part) -> _Part:
        at = self._at
        bounds = self._bounds()
        if bounds is None:
            return part
        if isinstance(part, _Anchor):
            raise self._refused(part.at, "a repeated anchor")
        if self._take("+"):
            raise self._refused(at, "a possessive quantifier")
        self._take("?")
        again = self._at
        if self._bounds() is not None:
            raise self._wrong(again, "a quantifier behind a quantifier")
        return _Quantified(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        """The next quantifier; a curly bracket that begins none is an ordinary character."""
        at = self._at
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._take("{"):
            return None
        body, close, _ = self._pattern[self._at : self._at + _LONGEST].partition("}")
        low, comma, high = body.partition(",")
        if not close or not _number(low or "0") or not _number(high or "0") or not (low or high):
            self._at = at
            return None
        if not low and self._dot is _DOT_IN_SCHEMAS:
            raise self._refused(at, "'{,n}', which Python and ECMA-262 read differently (write {0,n}),")
        self._at += len(body) + 1
        least, most = int(low or 0), (int(high) if high else None) if comma else int(low)
        if max(least, most or 0) > _MOST:
            raise self._refused(at, f"a repetition of more than {_MOST}")
        if most is not None and most < least:
            raise self._wrong(at, f"a repetition of at least {least} and at most {most}")
        return least, most

    def _escape(self, at: int) -> _Part:
        char = self._pattern[self._at : self._at + 1]
        if char in ("A", "Z", "z"):
            self._at += 1
            return _Anchor(0 if char == "A" else 1, at)
        if char in ("b", "B"):
            raise self._refused(at, "a word boundary")
        if char in _CLASSES:
            self._at += 1
            return Chars(_CLASSES[char])
        return Chars(CharSet.among(self._escaped(at)))

    def _escaped(self, at: int) -> str:
        """The character that an escape stands for; `at` is its backslash, which has been read."""
        char = self._next()
        if not char:
            raise self._wrong(at, "a lone backslash")
        if char.isdigit() and (char != "0" or self._pattern[self._at : self._at + 1].isdigit()):
            raise self._refused(at, "a back-reference")
        if char in ("p", "P"):
            raise self._refused(at, "a Unicode property")
        if char == "k":
            raise self._refused(at, "a back-reference")
        if char in _HEX:
            return self._code(at, _HEX[char])
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char.isascii() and char.isalpha():
            raise self._refused(at, f"the escape \\{char}")
        return char

    def _code(self, at: int, digits: int) -> str:
        text = self._pattern[self._at : self._at + digits]
        if self._take("{"):
            text, close, _ = self._pattern[self._at :].partition("}")
            self._at += len(text) + len(close)
            digits = len(text) if close else -1
        else:
            self._at += digits
        if len(text) != digits or not text or not all(c in "0123456789abcdefABCDEF" for c in text[:9]):
            raise self._wrong(at, "an escape with too few hexadecimal digits")
        if len(text) > 8 or int(text, 16) > 0x10FFFF:
            raise self._wrong(at, "an escape beyond U+10FFFF")
        return chr(int(text, 16))

    def _class(self, at: int) -> CharSet:
        inverted = self._take("^")
        if self._peek("]"):
            raise self._refused(self._at, "']' as the first of a class (write \\])")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            if self._at >= len(self._pattern):
                raise self._wrong(at, "an unclosed '['")
            self._foreign()
            ranges += self._range().ranges
        found = CharSet.of(*ranges)
        return ~found if inverted else found

    def _foreign(self) -> None:
        """Refuse what other engines read as classes in classes and Python as characters: nobody means these."""
        if _POSIX.match(self._pattern, self._at):
            raise self._refused(self._at, "a POSIX class like [:alpha:] (write a-zA-Z)")
        if self._peek("&&["):
            raise self._refused(self._at, "an intersection of classes (escape the & if characters are meant)")

    def _range(self) -> CharSet:
        at = self._at
        first = self._member()
        if not self._peek("-") or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first if isinstance(first, CharSet) else CharSet.among(first)
        self._at += 1
        last = self._member()
        if isinstance(first, CharSet) or isinstance(last, CharSet):
            raise self._wrong(at, "a range with a class at its end")
        if last < first:
            raise self._wrong(at, "a range that runs backwards")
        return CharSet.of((ord(first), ord(last)))

    def _member(self) -> str | CharSet:
        at, char = self._at, self._next()
        if char != "\\":
            return char
        escaped = self._pattern[self._at : self._at + 1]
        if escaped in _CLASSES:
            self._at += 1
            return _CLASSES[escaped]
        if escaped == "b":
            self._at += 1
            return "\b"
        return self._escaped(at)


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12
