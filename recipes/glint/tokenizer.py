"""Build ``tokenizer.json`` and ``config.json``: byte-level BPE of 2048 ids, and the dimensions with their templates.

    python -m recipes.glint.tokenizer --out src/gapless/assets/glint

Layout of the ids: 0..20 are special (0 ends a text, 5 and 6 stand for a coordinate and a size, see ``config.json``),
then the 256 bytes, then every integer 10..960, then merges learnt from the recipe's own phrases and from English
docstrings. Digits come as runs of at most three that never join other characters, so ``"12"`` is one token anywhere and
the numbers of an outline are one token each. Which docstrings a Python ships moves the last few hundred merges; the
committed ``tokenizer.json`` is the one the weights belong to.
"""

from __future__ import annotations

import argparse
import ast
import json
import sysconfig
from pathlib import Path
from typing import Any

from recipes.glint import phrases
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 2048
LAST_INTEGER = 960
SPECIAL = ["<|endoftext|>", *[f"<|md_reserved_{i}|>" for i in range(20)]]
SPLIT = r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DOCSTRING_MODULES = ("argparse", "asyncio", "collections", "csv", "email", "json", "logging", "random", "statistics",
                     "tkinter", "turtle", "typing", "unittest", "urllib", "zipfile")  # fmt: skip


def pre_tokenizer(single_digits: bool = False) -> pre_tokenizers.PreTokenizer:
    """Words with their leading space, runs of at most three digits, punctuation; then bytes as printable characters."""
    pattern = SPLIT.replace("{1,3}", "") if single_digits else SPLIT
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def integer_merges() -> list[tuple[str, str]]:
    """Merges that make every integer 10..960 one token.

    Two-digit merges rank by value, so which pair of a three-digit number joins first is known: the smaller one (the
    left one when equal, and a pair with a leading zero never joins).
    """
    merges = [(str(n)[0], str(n)[1]) for n in range(10, 100)]
    for n in range(100, LAST_INTEGER + 1):
        a, b, c = list(str(n))
        left, right = int(a + b), int(b + c)
        merges.append((a + b, c) if b == "0" or left <= right else (a, b + c))
    return merges


def docstrings(limit: int = 600_000) -> list[str]:
    """English prose found in the standard library of the running Python, at most ``limit`` characters."""
    root, found, total = Path(sysconfig.get_paths()["stdlib"]), [], 0
    for name in DOCSTRING_MODULES:
        path = root / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [root / f"{name}.py"]:
            if not file.exists():
                continue
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    text = ast.get_docstring(node) or ""
                    found.append(text)
                    total += len(text)
            if total > limit:
                return found
    return found


def learn_merges(count: int) -> list[tuple[str, str]]:
    """The first ``count`` merges of a BPE trained on the phrases (weighted up) and the docstrings."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizer(single_digits=True)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 4 * count, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    learner.train_from_iterator([*phrases.words() * 400, *docstrings()], trainer)
    return [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in _model(learner)["merges"]][:count]


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def build() -> Tokenizer:
    """The tokenizer, assembled from the special ids, the bytes, the integers and the learnt merges."""
    vocab = {token: i for i, token in enumerate(SPECIAL)}
    for char in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[char] = len(vocab)
    merges: list[tuple[str, str]] = []
    numbers = integer_merges()
    for left, right in [*numbers, *learn_merges(VOCAB - len(vocab) - len(numbers))]:
        merges.append((left, right))
        vocab.setdefault(left + right, len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def config(tokenizer: Tokenizer) -> dict[str, Any]:
    """Dimensions, special ids and templates, in the layout of ``config.json``."""

    def opening(word: str) -> list[int]:
        return [1, *tokenizer.encode(word).ids, 2]

    skills = {name: {"prefix": opening(name), "suffix": [3]} for name in ("query", "detect", "point", "segment")}
    captions = {n: [*opening("describe"), *tokenizer.encode(n).ids, 3] for n in ("short", "normal", "long")}
    return {
        "name": "glint",
        "revision": "2025-06-21",
        "text": {
            "dim": 256, "ff_dim": 512, "n_layers": 6, "vocab_size": VOCAB, "max_context": 1024,
            "n_heads": 4, "n_kv_heads": 4, "prefix_attn": 257,
        },
        "vision": {
            "enc_dim": 192, "enc_patch_size": 14, "enc_n_layers": 5, "enc_ff_dim": 384, "enc_n_heads": 3,
            "proj_out_dim": 256, "crop_size": 224, "in_channels": 3, "max_crops": 4, "overlap_margin": 2,
            "proj_inner_dim": 512,
        },
        "region": {
            "dim": 256, "coord_feat_dim": 128, "coord_out_dim": 1024, "size_feat_dim": 256, "size_out_dim": 2048,
            "inner_dim": 128,
        },
        "tokenizer": {
            "bos_id": 0, "eos_id": 0, "answer_id": 3, "thinking_id": 4, "coord_id": 5, "size_id": 6,
            "start_ground_points_id": 7, "end_ground_id": 9, "templates": {"caption": captions, **skills},
        },
    }  # fmt: skip


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("src/gapless/assets/glint"))
    parser.add_argument("--config-only", action="store_true", help="keep the tokenizer.json that is there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "tokenizer.json"
    if not args.config_only:
        build().save(str(path))
    text = json.dumps(config(Tokenizer.from_file(str(path))), indent=1)
    (args.out / "config.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
