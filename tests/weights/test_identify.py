"""Which revision a folder is: what its config says, what was asked for, what its tensors look like."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gapless.errors import InvalidCheckpoint
from gapless.models.moondream.identify import identify
from gapless.weights.folder import find_files

BARE = {"model_type": "moondream1", "config": {}}
TAU = "text.blocks.0.attn.tau.wq"
HF = {"model.text.wte": torch.bfloat16}
FP8_INTERNAL = {
    "text_model.transformer.embd.wte.weight": torch.bfloat16,
    "text_model.transformer.h.0.tau_wqwv": torch.bfloat16,
    "text_model.transformer.h.4.mlp.experts.weight": torch.float8_e4m3fn,
}


def folder(path: Path, config: dict[str, Any], dtypes: dict[str, torch.dtype], file: str = "model.safetensors") -> Path:
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    tensors = {name: torch.zeros(2, 2).to(dtype) for name, dtype in dtypes.items()}
    if file.endswith(".pt"):
        torch.save(tensors, path / file)
    else:
        save_file(tensors, path / file)
    return path


@pytest.mark.parametrize(
    ("config", "dtypes", "file", "revision"),
    [
        (BARE, HF, "model.safetensors", "2025-06-21"),
        ({}, HF, "model.safetensors", "2025-06-21"),
        ({"model_type": "moondream3"}, HF | {f"model.{TAU}": torch.bfloat16}, "model.safetensors", "moondream3"),
        ({}, HF | {f"model.{TAU}": torch.bfloat16}, "model.safetensors", "moondream3"),
        (BARE, FP8_INTERNAL, "model.safetensors", "moondream3.1"),
        (BARE, FP8_INTERNAL, "model_fp8.pt", "moondream3"),
        (BARE | {"revision": "2025-03-27"}, {"model.text.wte": torch.float16}, "model.safetensors", "2025-03-27"),
    ],
)
def test_a_folder_is_recognised(
    config: dict[str, Any], dtypes: dict[str, torch.dtype], file: str, revision: str, tmp_path: Path
) -> None:
    assert identify(find_files(folder(tmp_path, config, dtypes, file))).revision == revision


def test_half_weights_without_a_revision_are_not_guessed(tmp_path: Path) -> None:
    files = find_files(folder(tmp_path, BARE, {"model.text.wte": torch.float16}))
    with pytest.raises(InvalidCheckpoint) as caught:
        identify(files)
    for words in ("2025-01-09, 2025-03-27, 2025-04-14", f"{tmp_path.name}@2025-04-14", "2025-06-21"):
        assert words in str(caught.value)
    sizes = {r: identify(files, r).region.sizes for r in ("2025-01-09", "2025-03-27", "2025-04-14", "2025-06-21")}
    assert sizes == {"2025-01-09": "linear", "2025-03-27": "log", "2025-04-14": "log", "2025-06-21": "log"}


def test_what_was_asked_for_must_be_what_the_file_says(tmp_path: Path) -> None:
    files = find_files(folder(tmp_path, BARE | {"revision": "2025-06-21"}, HF))
    assert identify(files, "2025-06-21").revision == "2025-06-21"
    with pytest.raises(InvalidCheckpoint, match="says it is '2025-06-21', not '2025-01-09'"):
        identify(files, "2025-01-09")
    with pytest.raises(InvalidCheckpoint, match="'2023' is not supported"):
        identify(find_files(folder(tmp_path, BARE, HF)), "2023")
