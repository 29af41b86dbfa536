"""Random checkpoints in the published layouts: what is written, how answers are judged, and, slow, all of it small."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from tests.fakes.adapters import random_pairs
from tests.fakes.starmie import write_tokenizer
from tests.gpu.checkpoint_asks import Heard, Question, misshapen, mixed, questions
from tests.gpu.checkpoint_proof import Judge, Proof, _compare
from tests.gpu.checkpoints import main
from tests.gpu.hub_folders import KINDS, RAISED, STRENGTH, write_adapters, write_checkpoint
from tests.gpu.near_tie import Divergence
from tests.weights.adapter_writers import finetune, named, original

from gapless.bench.asks import Ask
from gapless.models.moondream.adapters import read
from gapless.models.moondream.config import REVISIONS, read_config
from gapless.models.moondream.inspecting import inspect
from gapless.models.moondream.templates import Templates
from gapless.models.moondream.weights_map import tensor_shapes
from gapless.skills.own_tokenizer import check_tokenizer
from gapless.skills.tokenizer import Tokenizer
from gapless.weights.hub import have

FP8_LAYERS, EXPERTS = 20, 64 * 3 * 1024 * 2048
SETTINGS = {"finish_reason": "stop", "metrics": {"output_tokens": 3}}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "moondream3.1" else pytest.mark.slow) for name in KINDS]
)
def test_a_folder_is_what_it_is_made_after(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    written = write_checkpoint(kind, tmp_path / name, "cpu", micro=True, shard=8_000_000)
    found = inspect(have(str(tmp_path / name)))
    assert found.problems == () and found.config is not None
    assert (found.layout, found.config.revision) == (kind.layout, kind.behaves)
    assert (found.facts.tensors, found.facts.bytes) == (written["tensors"], written["bytes"])
    assert found.facts.parameters == written["parameters"]
    assert found.facts.dtypes.keys() == ({"BF16", "F8_E4M3", "F32"} if kind.quantised else {"BF16"})
    files = [path.name for path in found.files]
    assert files == (["model.safetensors"] if name != "moondream3" else [f["name"] for f in written["files"]])
    assert name != "moondream3" or (len(files) > 1 and files[0].startswith("model-00001-of-0000"))
    assert Templates.of(found.config) == Templates.of(REVISIONS[kind.behaves])


@pytest.mark.slow
def test_the_stand_in_tokenizer_has_a_text_for_every_id(tmp_path: Path) -> None:
    templates = Templates.of(REVISIONS["moondream3"])
    tokenizer = Tokenizer.from_file(write_tokenizer(tmp_path), templates.ids.all())
    check_tokenizer(templates, tokenizer)
    assert all(tokenizer.piece(i) for i in range(21, 51200)) and max(RAISED) < 21
    assert tokenizer.decode(tokenizer.encode("Wie viele Sterne? ☆")) == "Wie viele Sterne? ☆"


@pytest.mark.parametrize("name", list(KINDS))
def test_full_size_is_the_published_size(name: str) -> None:
    kind = KINDS[name]
    shapes = tensor_shapes(read_config(kind.config(micro=False), kind.behaves))
    size = 2 * sum(prod(shape) for shape in shapes.values())
    if kind.quantised:
        size += FP8_LAYERS * (64 * 4096 * 4 - EXPERTS)  # a byte less for each weight, a scale more for each row
        assert kind.tensors == len(shapes) - 24 + 2 * FP8_LAYERS
    else:
        assert kind.tensors == len(shapes)
    assert abs(size / kind.size - 1) < 0.001


@pytest.mark.parametrize("name", ["moondream2", "moondream3"])
def test_adapters_in_every_form_are_read_alike(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    config = read_config(kind.config(micro=True), kind.behaves)
    places = write_adapters(kind, config, tmp_path, "cpu")
    assert {file.name for path in places.values() for file in path.iterdir()} == {"adapter.safetensors", "final.pt"}
    for number, rank in ((1, kind.ranks[0]), (2, kind.ranks[1])):
        pairs = random_pairs(config.text, rank, number, torch.device("cpu"), torch.bfloat16, STRENGTH)
        found = read(places[f"tune{number}"], config)
        assert found.keys() == pairs.keys()
        assert all(torch.equal(x, y) for key in pairs for x, y in zip(found[key], pairs[key], strict=True))
    if kind.third:
        assert {"text_lora.dense.0.up_a", "text_lora.moe.2.down_b"} <= finetune(pairs).keys()
        assert {"text_lora.dense.0.up_a", "text_lora.moe.1.down_b"} <= finetune(pairs, counted=True).keys()
    else:
        assert "text_model.transformer.h.2.mixer.out_proj.parametrizations.weight.0.A" in original(pairs)
        assert "text.blocks.2.mlp.fc1.B" in named(pairs)


def test_a_mix_has_every_skill_and_every_adapter() -> None:
    asked = questions(Templates.of(REVISIONS["2025-06-21"]))
    found = mixed(asked, 64, 8, ["a", "b"])
    assert {one.name for one in found} == {one.name for one in asked} and len(found) == 64
    assert {one.adapter for one in found} == {None, "a", "b"}
    assert not [one for one in found if one.name.startswith("gaze") and one.adapter]
    third = questions(Templates.of(REVISIONS["moondream3"]))
    assert {one.name for one in third} - {one.name for one in asked} == {"segment"}
    assert [one for one in mixed(third, 64, 8, ["a", "b"]) if one.name.startswith("gaze") and one.adapter]


BOX = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.3, "y_max": 0.4}


@pytest.mark.parametrize(
    ("skill", "good", "bad"),
    [
        ("caption", {"caption": "a"}, {"caption": None}),
        ("point", {"points": [{"x": 0.0, "y": 1.0}]}, {"points": [{"x": 0.0, "y": 1.5}]}),
        ("detect", {"objects": [BOX]}, {"objects": [BOX | {"x_min": 0.9}]}),
        ("segment", {"path": "", "bbox": None}, {"path": "", "bbox": {"x_min": 0.1}}),
        ("gaze", {"gaze": None}, {"gaze": {"x": float("nan"), "y": 0.5}}),
        ("query", {"answer": ""}, {"answer": "a", "reasoning": {}}),
    ],
)
def test_answers_of_a_wrong_form_are_told(skill: str, good: dict, bad: dict) -> None:
    question = Question(skill, Ask(skill, "x", spatial_refs=[[0.5, 0.5]]))  # type: ignore[arg-type]
    assert misshapen(question, good | SETTINGS) == []
    assert misshapen(question, bad | SETTINGS) and misshapen(question, SETTINGS)
    assert misshapen(question, good | SETTINGS | {"finish_reason": None})
    assert misshapen(question, good | SETTINGS | {"metrics": {"output_tokens": 0}})


class Lenient(Judge):
    """Finds what it is told to find."""

    def __init__(self, *found: tuple[Divergence, bool]) -> None:
        self.found = list(found)

    def judge(self, one: Question, right: Heard, other: Heard) -> list[tuple[Divergence, bool]]:
        return self.found


def test_answers_that_differ_are_counted_by_how_close_the_choice_was() -> None:
    one = Question("caption", Ask("caption", "short"))
    said = [Heard({"caption": str(i)}, tokens=[[]]) for i in range(4)]
    changed = [*said[:3], Heard({"caption": "other"}, tokens=[[]])]
    near, wide, far = (Divergence(1, 2, "id", gap, 4.0) for gap in (0.01, 0.2, 2.0))
    for found, counts in (
        (((near, True),), (1, 0, 0)),
        (((wide, True),), (0, 1, 0)),
        (((far, False),), (0, 0, 1)),
        ((), (0, 0, 0)),
    ):
        proof = Proof()
        told = _compare([one] * 4, said, changed, Lenient(*found), proof, "a against b")
        assert (told["equal"], told["different_answers"]) == (3, 4)
        assert (told["near_ties"], told["near_by_the_wider_rule"], told["beyond"]) == counts
        assert bool(proof.problems) == (counts == (0, 0, 1) or not found)
    proof = Proof()
    assert _compare([one] * 4, said, said, Lenient(), proof, "")["equal"] == 4 and not proof.problems
    apart = [replace_answer(heard) for heard in said]
    assert _compare([one] * 4, said, apart, Lenient((near, True)), proof, "")["equal"] == 0
    assert any("only 0 of 4" in problem for problem in proof.problems)


def replace_answer(heard: Heard) -> Heard:
    return replace(heard, answer={"caption": "changed"})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(KINDS))
def test_all_of_it_small(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In float32 on a CPU every answer is equal, and eight adapters are eight."""
    out = tmp_path / "report.json"
    arguments = ["--micro", "--device", "cpu", "--count", "9", "--models", name, "--out", str(out)]
    assert main([*arguments, "--folder", str(tmp_path)]) == 0, capsys.readouterr().out
    report = json.loads(out.read_text())
    (found,) = report["models"]
    assert found["problems"] == [] and len(found["adapters"]) == 8
    assert found["mix"]["equal"] == found["mix"]["questions"] == 9
    assert found["skills"]["equal"] == found["skills"]["questions"] >= 14
    assert name in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
