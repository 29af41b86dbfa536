"""A stand-in for the tokenizer of the published checkpoints: 51200 ids, the words of their templates where those are.

Ids 0..20 are reserved, 21..276 are the 256 bytes, the templates' words have their published ids, and every other id is
a made-up word behind a space. There are no merges: typed text is a byte an id, and any id can be read. Every id of the
logits has a text or is reserved, so none lies beyond the vocabulary.
"""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 51200
RESERVED = 21
WORDS = {
    15381: "query",
    32708: "describe",
    12492: "short",
    6382: "normal",
    4059: "long",
    7235: "det",
    476: "ect",
    2581: "point",
    17374: "segment",
}
"""What the templates of 2025-06-21 and of Moondream 3 are made of."""


def write_tokenizer(folder: Path) -> Path:
    """Write tokenizer.json into `folder` and return its path."""
    path = folder / "tokenizer.json"
    standin().save(str(path))
    return path


def standin() -> Tokenizer:
    """See the module."""
    reserved = ["<|endoftext|>", *(f"<|md_reserved_{i}|>" for i in range(RESERVED - 1))]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*reserved, *letters]
    words += [WORDS.get(i, f"Ġ{_made_up(i)}") for i in range(len(words), VOCAB)]
    assert len(set(words)) == VOCAB
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in reserved])
    return tokenizer


def _made_up(number: int) -> str:
    """Four letters, another word for every number."""
    letters = ""
    for _ in range(4):
        number, rest = divmod(number, 26)
        letters += string.ascii_lowercase[rest]
    return letters
