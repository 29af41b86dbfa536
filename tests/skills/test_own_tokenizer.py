"""Whether a tokenizer is a model's own: told by what the templates say in it, with the pieces of the real ones."""

import json
from pathlib import Path

import pytest

import gapless
from gapless.errors import InvalidCheckpoint
from gapless.models.moondream.config import REVISIONS, WORDED
from gapless.models.moondream.templates import Templates
from gapless.skills.own_tokenizer import check_tokenizer, open_tokenizer
from gapless.skills.tokenizer import Tokenizer

GPT2 = {"Ċ": 198, "ĊĊ": 628, ":": 25, "Short": 16438, "Ġcaption": 8305, "Ca": 24334, "ption": 1159, "Long": 14617}
GPT2 |= {"Question": 24361, "Answer": 33706, "Detect": 47504, "Point": 12727}
"""The pieces of GPT-2's vocabulary that the templates of the first revisions are made of."""
DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
GLINT = Path(gapless.__file__).parent / "assets" / "glint" / "tokenizer.json"


def words(pieces: dict[str, int]) -> str:
    model = {"type": "BPE", "vocab": pieces, "merges": []}
    return json.dumps({"version": "1.0", "added_tokens": [], "decoder": DECODER, "model": model})


@pytest.mark.parametrize("revision", WORDED)
def test_the_first_revisions_take_gpt2s_tokenizer(revision: str) -> None:
    """A caption of normal length is asked for with "Caption:", which does not name its length."""
    templates = Templates.of(REVISIONS[revision])
    tokenizer = Tokenizer(words(GPT2), templates.ids.all())
    check_tokenizer(templates, tokenizer)
    assert tokenizer.decode(templates.captions["normal"]) == "\n\nCaption:"
    assert tokenizer.decode(templates.captions["short"]) == "\n\nShort caption:"
    assert [reading.words for reading in templates.readings()][-4:] == ["Question:", "Answer:", "Detect:", "Point:"]


@pytest.mark.parametrize("piece", ["Short", "Ca", "Question", "Answer", "Detect", "Point"])
def test_one_word_that_is_another_tells_a_foreign_tokenizer(piece: str) -> None:
    templates = Templates.of(REVISIONS[WORDED[-1]])
    other = {("Kurz" if text == piece else text): i for text, i in GPT2.items()}
    with pytest.raises(InvalidCheckpoint, match=r"not this model's.*Kurz.*vikhyatk/moondream2 at 2024-08-26"):
        check_tokenizer(templates, Tokenizer(words(other), templates.ids.all()))


def test_more_ids_than_the_model_has_are_another_models() -> None:
    templates = Templates.of(REVISIONS[WORDED[0]])
    with pytest.raises(InvalidCheckpoint, match="ids up to 51200, and the model a vocabulary of 51200"):
        check_tokenizer(templates, Tokenizer(words(GPT2 | {"far": 51200}), templates.ids.all()))


@pytest.mark.parametrize(
    "content",
    [
        "{nope",
        "{}",
        "[1]",
        "[" * 5000,
        words({"a": "b"}),  # type: ignore[dict-item]
        words(GPT2).replace('"added_tokens": []', '"added_tokens": [7]'),
        words(GPT2).replace(json.dumps(DECODER), '"ByteLevel"'),
        GLINT.read_text(),
    ],
)
def test_what_is_no_tokenizer_of_the_model_is_told_with_path_and_remedy(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InvalidCheckpoint, match="moondream/starmie-v1") as told:
        open_tokenizer(Templates.of(REVISIONS["2025-06-21"]), path)
    assert str(path) in str(told.value)
