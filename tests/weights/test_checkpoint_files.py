"""Safetensors files that fit, and every way in which they may not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gapless.errors import InvalidCheckpoint, ModelNotFound
from gapless.weights.checkpoint import LISTED, read_tensors
from gapless.weights.folder import find_files, read_json
from gapless.weights.recipes import Plain
from gapless.weights.stored import open_files

CPU = torch.device("cpu")
SHAPES: dict[str, tuple[int, ...]] = {"a": (2, 3), "b.weight": (4,), "c": (1, 2, 2)}


def good() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    return {f"model.{name}": torch.randn(shape, generator=g) for name, shape in SHAPES.items()}


def read(*files: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    with open_files(files) as stored:
        recipes = {name: Plain(f"model.{name}", shape) for name, shape in SHAPES.items()}
        return read_tensors(stored, recipes, dtype, CPU)


def refused(*files: Path) -> str:
    with pytest.raises(InvalidCheckpoint) as caught:
        read(*files)
    return str(caught.value)


def test_tensors_come_back_by_name_converted_and_owned(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    tensors = good()
    save_file({name: t.half() for name, t in tensors.items()}, path)
    back = read(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert back.keys() == SHAPES.keys()
    for name, tensor in back.items():
        assert tensor.dtype is torch.float32
        assert tensor.is_contiguous()
        assert torch.equal(tensor, tensors[f"model.{name}"].half().float())


def test_shards_are_read_together(tmp_path: Path) -> None:
    tensors = good()
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    save_file({"model.a": tensors["model.a"]}, first)
    save_file({name: tensors[name] for name in ("model.b.weight", "model.c")}, second)
    assert torch.equal(read(first, second)["c"], tensors["model.c"])
    assert "model.a is there twice (again in 1.safetensors)" in refused(first, first, second)


def test_everything_that_does_not_fit_is_named_in_one_error(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    bad = {"model.a": torch.zeros(3, 2), "model.c": torch.zeros(1, 2, 2, dtype=torch.int8), "model.d": torch.zeros(1)}
    save_file(bad, path)
    message = refused(path)
    for words in (
        str(path),
        "missing model.b.weight [4]",
        "unexpected model.d",
        "model.a has shape [3, 2], expected [2, 3]",
        "model.c is I8, expected one of F32, BF16, F16",
        "same model and revision",
    ):
        assert words in message


def test_a_long_list_of_faults_is_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({**good(), **{f"model.extra{i}": torch.zeros(1) for i in range(40)}}, path)
    message = refused(path)
    assert message.count("unexpected") == LISTED
    assert f"and {40 - LISTED} more" in message


@pytest.mark.parametrize("keep", [0, 4, 60, -1])
def test_a_truncated_file_is_named_with_its_size(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "m.safetensors"
    save_file(good(), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    message = refused(path)
    assert str(path) in message
    assert f"({len(whole[:keep])} bytes)" in message
    assert "Download it again" in message


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    torch.save(good(), path)
    assert "not a complete safetensors file" in refused(path)


@pytest.mark.parametrize("length", [2**60, 2**63, 2**64 - 1, 200_000_000])
def test_s_sec_08_a_header_that_claims_a_vast_length_is_refused_unallocated(tmp_path: Path, length: int) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + b'{"a":{}}' + bytes(64))
    assert "not a complete safetensors file" in refused(path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.ckpt", "model.SafeTensors", "model.safetensors.zip"])
def test_s_sec_05_07_08_weights_under_another_name_are_not_looked_at(tmp_path: Path, name: str) -> None:
    torch.save(good(), model_folder(tmp_path, "config.json", "tokenizer.json") / name)
    with pytest.raises(ModelNotFound, match=r"lacks model\.safetensors\."):
        find_files(tmp_path)


def test_s_sec_05_one_file_of_the_package_unpickles_and_only_tensors() -> None:
    source = Path(__file__).resolve().parents[2] / "src"
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        calls = [line for line in text.splitlines() if "torch.load(" in line or "pickle.load" in line]
        if path.name == "pickled.py":
            assert calls and all("torch.load(" in line and "weights_only=True" in line for line in calls)
        elif path.name == "compile_process.py":  # no file: what the process that started it sends it
            assert [line.strip() for line in calls] == ["jobs = pickle.loads(sys.stdin.buffer.read())"]
        else:
            assert not calls, path


def model_folder(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_a_folder_with_one_file_or_with_shards(tmp_path: Path) -> None:
    single = model_folder(tmp_path, "config.json", "tokenizer.json", "model.safetensors")
    assert find_files(single).weights == (single / "model.safetensors",)
    index = {"weight_map": {"x": "model-2.safetensors", "y": "model-1.safetensors", "z": "model-2.safetensors"}}
    (single / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelNotFound, match=r"lacks model-1\.safetensors, model-2\.safetensors\."):
        find_files(single)
    model_folder(single, "model-1.safetensors", "model-2.safetensors")
    assert [path.name for path in find_files(single).weights] == ["model-1.safetensors", "model-2.safetensors"]


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        find_files(model_folder(tmp_path, "config.json"))
    assert "tokenizer.json, model.safetensors" in str(caught.value)
    assert "config.json," not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../elsewhere.safetensors", "/etc/passwd", "sub/model.safetensors", "model.bin", f"{'a' * 300}.safetensors"],
)
def test_an_index_cannot_reach_out_of_its_folder(tmp_path: Path, name: str) -> None:
    model_folder(tmp_path, "config.json", "tokenizer.json")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(InvalidCheckpoint, match="outside its folder"):
        find_files(tmp_path)


def test_a_shard_that_no_file_system_could_hold_is_missing(tmp_path: Path) -> None:
    """Its name has fewer characters than the longest, and more bytes."""
    name = f"{'ä' * 200}.safetensors"
    model_folder(tmp_path, "config.json", "tokenizer.json")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelNotFound, match=f"lacks {name}"):
        find_files(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff\xfe"])
def test_json_that_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InvalidCheckpoint, match=r"config\.json"):
        read_json(path)
