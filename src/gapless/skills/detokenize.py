"""Text out of a growing list of ids, as early as it is certain.

In: ids as they are committed. Out: pieces of text whose concatenation equals `Tokenizer.decode` of all ids. Characters
come first, then stop strings, then words (`skills.answer` joins them). Invariants: no piece holds half a character, nor
a U+FFFD whose bytes may still be completed; each byte is decoded once, so a stream costs linear time.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from gapless.skills.tokenizer import Tokenizer

_IDEOGRAPHS = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x2F800, 0x2FA1F))


class Characters:
    """One stream of whole characters. Bytes that can never become one come out as U+FFFD, as in `decode`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Iterable[int]) -> str:
        """Take ids; return the characters that are complete now."""
        return self._decoder.decode(b"".join(self._tokenizer.piece(i) for i in ids))

    def broken_by(self, piece: bytes) -> bool:
        """Whether these bytes come behind the beginning of a character that they do not go on with: then that becomes
        a U+FFFD of its own, and they begin one of theirs."""
        begun, _ = self._decoder.getstate()
        try:
            codecs.getincrementaldecoder("utf-8")().decode(begun + piece[:1])
        except UnicodeDecodeError:
            return bool(begun)
        return False

    def finish(self) -> str:
        """Say that no id follows; return what bytes are left as U+FFFD."""
        return self._decoder.decode(b"", final=True)


class Words:
    """Holds text back to whole words: through the last space or newline, or all when it ends in an ideograph."""

    def __init__(self) -> None:
        self._held: list[str] = []

    def feed(self, text: str) -> str:
        """Take text; return what may be shown now (perhaps empty)."""
        if not text:
            return ""
        cut = len(text) if _ends_word(text[-1]) else max(text.rfind(" "), text.rfind("\n")) + 1
        if not cut:
            self._held.append(text)
            return ""
        ready = "".join([*self._held, text[:cut]])
        self._held = [text[cut:]] if cut < len(text) else []
        return ready

    def finish(self) -> str:
        """Return what is left."""
        ready, self._held = "".join(self._held), []
        return ready


def _ends_word(char: str) -> bool:
    """Scripts without spaces would wait for ever, so an ideograph ends a word."""
    return any(first <= ord(char) <= last for first, last in _IDEOGRAPHS)
