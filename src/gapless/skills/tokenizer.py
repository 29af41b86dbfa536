"""Text to ids and back.

In: a tokenizer.json (byte-level BPE) and the ids a model reserves. Out: ids for a user's text, text for a model's ids.
Invariants: `encode` never yields a special id, whatever a user types; `decode` of a whole stream equals what
`AnswerText` emits piece by piece, because both join the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers

from gapless.errors import InvalidCheckpoint, InvalidRequest

_SHRINK = 4
"""A Unicode normaliser may shorten a text to a third at most; used to bound token counts from below."""


class Tokenizer:
    """A byte-level BPE tokenizer that keeps users' text and control ids apart. Safe to share between threads."""

    def __init__(self, source: str, reserved: Iterable[int] = ()) -> None:
        """`source` is the text of a tokenizer.json; `reserved` ids count as special besides those flagged so there.

        Raises `InvalidCheckpoint` when the text is no byte-level BPE tokenizer.
        """
        data = _parse(source)
        vocab: dict[str, int] = data["model"]["vocab"]
        added = data.get("added_tokens") or []
        ids = set(reserved)
        controls = [t for t in added if _is_control(t, ids)]
        self.special = frozenset({t["id"] for t in controls} | ids)
        self._bytes = _byte_table(vocab, added, self.special)
        self._longest = max((len(piece) for piece in self._bytes.values()), default=1)
        self._shrink = _SHRINK if data.get("normalizer") else 1
        self._plain = _without_controls(data, controls, self.special)
        self._check([t["content"] for t in controls])

    @classmethod
    def from_file(cls, path: str | Path, reserved: Iterable[int] = ()) -> Tokenizer:
        """Read a tokenizer.json. Raises `InvalidCheckpoint` when it is missing or not usable."""
        try:
            source = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidCheckpoint(f"cannot read the tokenizer at {path}: {error}") from error
        try:
            return cls(source, reserved)
        except InvalidCheckpoint as error:
            raise InvalidCheckpoint(f"{path} is no tokenizer for this model: {error}") from error
        except Exception as error:  # a file may hold anything, at any depth
            raise InvalidCheckpoint(f"{path} is no tokenizer: it is malformed ({type(error).__name__})") from error

    @property
    def largest(self) -> int:
        """The largest id that stands for a text."""
        return max(self._bytes, default=-1)

    def encode(self, text: str, *, param: str | None = None) -> tuple[int, ...]:
        """Ids of `text` as ordinary text: no special id, nothing added, nothing cut off.

        Raises `InvalidRequest` for a lone surrogate, with its position.
        """
        utf8(text, param=param)
        return tuple(self._plain.encode(text, add_special_tokens=False).ids)

    def fewest(self, text: str) -> int:
        """A lower bound of `len(encode(text))` that costs next to nothing, for refusing huge texts at once."""
        return len(text) // (self._longest * self._shrink)

    def piece(self, token_id: int) -> bytes:
        """The bytes an id stands for; empty for special and unknown ids."""
        return self._bytes.get(token_id, b"")

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids` without the special ones; bytes that are not UTF-8 come out as U+FFFD."""
        return b"".join(self.piece(i) for i in ids).decode("utf-8", "replace")

    def _check(self, contents: Iterable[str]) -> None:
        """Prove on the tokenizer itself that no control string reaches a special id."""
        for text in contents:
            if not self.special.isdisjoint(self._plain.encode(text, add_special_tokens=False).ids):
                raise InvalidCheckpoint(f"tokenizer.json: typing {text!r} would yield a special id")


def utf8(text: str, *, param: str | None = None) -> bytes:
    """Encode, or raise `InvalidRequest` with the position of a lone surrogate."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise InvalidRequest(
            f"the text holds a lone surrogate U+{code:04X} at position {error.start}, which is no character; "
            "remove it or replace it with U+FFFD",
            param=param,
        ) from error


def _parse(source: str) -> dict[str, Any]:
    try:
        data = json.loads(source)
    except ValueError as error:
        raise InvalidCheckpoint(f"tokenizer.json is no JSON: {error}") from error
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise InvalidCheckpoint("tokenizer.json must hold a BPE model")
    decoder = data.get("decoder") or {}
    if "ByteLevel" not in {d.get("type") for d in [decoder, *decoder.get("decoders", [])]}:
        raise InvalidCheckpoint("tokenizer.json must be byte-level: its decoder is not ByteLevel")
    assert isinstance(data, dict)
    return data


def _is_control(token: dict[str, Any], reserved: set[int]) -> bool:
    """Whether an added token is a control id. Added runs of spaces are text; anything in brackets is not."""
    content = str(token["content"])
    bracketed = content[:1] + content[-1:] in ("<>", "[]")
    return bool(token.get("special")) or token["id"] in reserved or (bracketed and len(content) > 2)


def _without_controls(
    data: dict[str, Any], controls: list[dict[str, Any]], special: frozenset[int]
) -> tokenizers.Tokenizer:
    """The same tokenizer with control tokens gone from the list that is matched first and from the vocabulary.

    Added tokens that stay are put into the vocabulary, or the library would number them anew.
    """
    contents = {t["content"] for t in controls}
    kept = [t for t in data.get("added_tokens") or [] if t["content"] not in contents]
    vocab = {t: i for t, i in data["model"]["vocab"].items() if i not in special and t not in contents}
    vocab |= {t["content"]: t["id"] for t in kept}
    plain = data | {
        "added_tokens": kept,
        "model": data["model"] | {"vocab": vocab, "unk_token": None},
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises bare Exception
        raise InvalidCheckpoint(f"tokenizer.json cannot be loaded: {error}") from error


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: printable Latin-1 stands for itself, the other bytes for U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): b for n, b in enumerate(others)}


def _byte_table(vocab: dict[str, int], added: list[dict[str, Any]], special: frozenset[int]) -> dict[int, bytes]:
    """Bytes per text id. A piece with a character outside the byte alphabet stands for its own UTF-8."""
    alphabet = _byte_alphabet()
    table: dict[int, bytes] = {}
    for piece, token_id in [*vocab.items(), *((t["content"], t["id"]) for t in added)]:
        if token_id in special:
            continue
        known = all(char in alphabet for char in piece)
        table[token_id] = bytes(alphabet[c] for c in piece) if known else piece.encode("utf-8")
    return table
