"""Loading by name and folder: what comes back, and what is said when it cannot be."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.fakes.micro import micro_config, micro_crops, micro_model, micro_tensors, write_micro

from gapless.errors import InvalidCheckpoint, InvalidRequest, ModelNotFound
from gapless.models import registry
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.weights_map import OPTIONAL
from gapless.models.registry import available, load_model
from gapless.weights import hub


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_micro(tmp_path_factory.mktemp("models") / "micro")


def test_a_folder_gives_the_model_that_was_written(folder: Path) -> None:
    loaded = load_model(folder)
    assert (loaded.name, loaded.revision) == ("micro", "2025-06-21")
    assert loaded.tokenizer_path == folder / "tokenizer.json"
    assert loaded.model.dtype is torch.float32
    assert loaded.model.device == torch.device("cpu")
    assert (loaded.model.vocab, loaded.model.prefix, loaded.model.max_context) == (128, 17, 192)
    crops = torch.from_numpy(micro_crops())
    with torch.inference_mode():
        assert torch.equal(loaded.model.encode_picture(crops, (1, 2)), micro_model().encode_picture(crops, (1, 2)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_come_in_the_dtype_asked_for(folder: Path, tmp_path: Path, dtype: str) -> None:
    assert load_model(str(folder), dtype=dtype).model.dtype is registry.DTYPES[dtype]
    half = write_micro(tmp_path / "half", dtype=torch.bfloat16)
    assert load_model(half, dtype=dtype).model.dtype is registry.DTYPES[dtype]


@pytest.mark.parametrize(("able", "large"), [(True, True), (True, False), (False, True)])
def test_a_cpu_that_multiplies_bfloat16_does_so_with_large_checkpoints_of_half_size(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool, large: bool
) -> None:
    monkeypatch.setattr(registry, "multiplies_bfloat16", lambda: able)
    monkeypatch.setattr(registry, "LARGE", 1000 if large else registry.LARGE)
    suits = torch.bfloat16 if able and large else torch.float32
    assert load_model(folder).model.dtype is torch.float32  # its weights would lose something
    for stored in (torch.bfloat16, torch.float16):
        half = write_micro(tmp_path / str(stored), dtype=stored)
        loaded = load_model(half)
        assert loaded.model.dtype is suits
        assert load_model(half, dtype="float32").model.dtype is torch.float32
        with torch.inference_mode():
            embedded = loaded.model.encode_picture(torch.from_numpy(micro_crops()), (1, 2))
        assert embedded.dtype is suits and embedded.isfinite().all()


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16"])
def test_either_instruction_will_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, object] = {"avx512_f": True, "cpu_name": "some", name: False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    assert not registry.multiplies_bfloat16()
    known[name] = True
    assert registry.multiplies_bfloat16()
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not registry.multiplies_bfloat16()


def test_the_same_folder_twice_gives_the_same_bits(folder: Path) -> None:
    crops = torch.from_numpy(micro_crops())
    with torch.inference_mode():
        first, second = (load_model(folder).model.encode_picture(crops, (1, 2)) for _ in range(2))
    assert torch.equal(first, second)


def test_a_bundled_name_loads_from_the_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "ASSETS", tmp_path)
    shutil.copytree(folder, tmp_path / "glint")
    loaded = load_model("glint")
    assert (loaded.name, loaded.revision) == ("glint", "2025-06-21")
    [model] = available()
    assert (model.name, model.folder, model.revision, model.problem) == (
        "glint",
        tmp_path / "glint",
        "2025-06-21",
        None,
    )


def test_an_incomplete_bundled_model_is_listed_with_its_problem(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "ASSETS", tmp_path)
    shutil.copytree(folder, tmp_path / "glint")
    (tmp_path / "glint" / "model.safetensors").unlink()
    [model] = available()
    assert model.problem is not None
    assert "model.safetensors" in model.problem
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        load_model("glint")


def test_a_config_that_does_not_fit_the_weights(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    config["text"]["n_layers"] = 3
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidCheckpoint, match=r"missing text\.blocks\.2\.attn\.proj\.bias \[64\]"):
        load_model(broken)


def test_an_unknown_device_or_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="'warp'"):
        load_model(folder, device="warp")
    with pytest.raises(InvalidRequest, match="'int3'"):
        load_model(folder, dtype="int3")  # type: ignore[arg-type]
    if not torch.cuda.is_available():
        with pytest.raises(InvalidRequest, match="no GPU"):
            load_model(folder, device="cuda")


@pytest.mark.parametrize(("left_out", "problem"), [((), None), (OPTIONAL, None), (OPTIONAL[:1], OPTIONAL[0])])
def test_moondream_3_may_lack_the_norm_before_its_heads_but_not_half_of_it(
    folder: Path, tmp_path: Path, left_out: tuple[str, ...], problem: str | None
) -> None:
    raw = micro_config(third=True)
    third = shutil.copytree(folder, tmp_path / "third")
    (third / "config.json").write_text(json.dumps(raw))
    tensors = {f"model.{name}": t for name, t in micro_tensors(raw).items() if name not in left_out}
    save_file(tensors, third / "model.safetensors")
    if problem is not None:
        with pytest.raises(InvalidCheckpoint, match=rf"missing {problem} \[64\]"):
            load_model(third)
        return
    loaded = load_model(third)
    assert loaded.revision == "moondream3"
    assert isinstance(loaded.model, Moondream)
    assert (loaded.model.region.ln is None) is bool(left_out)
