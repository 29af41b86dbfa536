"""Every published form of a checkpoint gives the numbers of the plain one."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.fakes.micro import micro_config, micro_tensors
from tests.weights.layout_writers import (
    SECOND,
    THIRD,
    Tensors,
    compiled,
    config_of,
    fp8,
    int4,
    internal,
    plain,
    prefixed,
    write,
)

from gapless.errors import InvalidCheckpoint
from gapless.kernels.stacks import Stack
from gapless.models.moondream.config import read_config
from gapless.models.moondream.inspecting import inspect
from gapless.models.moondream.reading import read_weights
from gapless.weights.folder import find_files
from gapless.weights.hub import have

CPU = torch.device("cpu")


def read(folder: Path, name: str, dtype: torch.dtype = torch.float32) -> Tensors:
    config = read_config(config_of(name))
    return read_weights(find_files(folder).weights, config, dtype, CPU)


def same(found: Tensors, expected: Tensors, dtype: torch.dtype = torch.float32) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype is dtype and tensor.is_contiguous(), name
        assert torch.equal(tensor, expected[name].to(dtype)), name


def fused(tensors: Tensors) -> Tensors:
    return internal(tensors, fused=True)


def compiled_internal(tensors: Tensors) -> Tensors:
    return compiled(internal(tensors))


FORMS: list[tuple[str, Callable[[Tensors], Tensors], str]] = [
    (SECOND, dict, "model.safetensors"),
    (SECOND, prefixed, "shards"),
    (SECOND, internal, "model.safetensors"),
    (SECOND, compiled_internal, "model.pt"),
    (THIRD, prefixed, "shards"),
    (THIRD, internal, "model.safetensors"),
    (THIRD, fused, "shards"),
    (THIRD, fused, "model.pt"),
]


@pytest.mark.parametrize(("name", "form", "file"), FORMS)
def test_every_form_gives_the_plain_numbers(
    name: str, form: Callable[[Tensors], Tensors], file: str, tmp_path: Path
) -> None:
    tensors = plain(name)
    same(read(write(tmp_path, form(tensors), config_of(name), file), name), tensors)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_float_type_is_read_as_it_is(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: t.to(dtype) for name, t in plain(SECOND).items()}
    same(read(write(tmp_path, internal(tensors), config_of(SECOND)), SECOND, dtype), tensors, dtype)


def test_the_first_moondream_3_has_no_norm_before_its_heads(tmp_path: Path) -> None:
    tensors = {name: t for name, t in plain(THIRD).items() if not name.startswith("region.ln")}
    same(read(write(tmp_path, internal(tensors), config_of(THIRD)), THIRD), tensors)
    half = {"region.ln.weight": torch.ones(64)}
    with pytest.raises(InvalidCheckpoint, match=r"missing region\.ln\.bias"):
        read(write(tmp_path, tensors | half, config_of(THIRD)), THIRD)


@pytest.mark.parametrize("file", ["model.safetensors", "model_fp8.pt"])
def test_fp8_experts_mean_what_they_say(file: str, tmp_path: Path) -> None:
    made, meant = fp8(plain(THIRD))
    found = read(write(tmp_path, made, config_of(THIRD), file), THIRD)
    for name in [name for name in found if name.endswith(".scale")]:
        weight = name.replace(".scale", ".weight")
        stack = Stack(found[weight], found.pop(name))
        found[weight] = torch.stack([stack.wide(expert, torch.float32) for expert in range(stack.count)])
    same(found, meant)


def test_fp8_experts_are_kept_with_their_scales(tmp_path: Path) -> None:
    made, _ = fp8(plain(THIRD))
    file = write(tmp_path, made, config_of(THIRD)) / "model.safetensors"
    found = read(tmp_path, THIRD, torch.bfloat16)
    file.write_bytes(b"\0" * file.stat().st_size)  # they are no views of it
    experts = sorted(name for name, t in found.items() if t.dtype is torch.float8_e4m3fn)
    assert experts == [f"text.blocks.{i}.mlp.{fc}.weight" for i in (2, 3) for fc in ("fc1", "fc2")]
    for name in experts:
        half, leaf = ("up", "experts") if "fc1" in name else ("down", "output_experts")
        start = f"text_model.transformer.h.{name.split('.')[2]}"
        assert torch.equal(found[name].float(), made[f"{start}.mlp.{leaf}.weight"].float())
        scale = found[name.replace(".weight", ".scale")]
        assert scale.dtype is torch.float32 and torch.equal(scale, made[f"{start}.moe_quant.{half}_scale"])
    assert found["text.wte"].dtype is torch.bfloat16


@pytest.mark.parametrize("form", [prefixed, dict])
def test_int4_is_dequantised(form: Callable[[Tensors], Tensors], tmp_path: Path) -> None:
    made, meant = int4(plain(SECOND))
    assert sum(name.endswith(".packed") for name in made) == 12
    same(read(write(tmp_path, form(made), config_of(SECOND)), SECOND), meant)


def spoil(tensors: Tensors, name: str, value: float) -> Tensors:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-1] = value
    return tensors


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_scale_that_is_not_finite_is_named(value: float, tmp_path: Path) -> None:
    scale = "text_model.transformer.h.3.moe_quant.down_scale"
    folder = write(tmp_path / "fp8", spoil(fp8(plain(THIRD))[0], scale, value), config_of(THIRD))
    with pytest.raises(InvalidCheckpoint, match=rf"{scale} has values that are not finite"):
        read(folder, THIRD)
    weight = "text_model.transformer.h.3.mlp.output_experts.weight"
    made = spoil(fp8(plain(THIRD))[0], weight, math.nan)
    made[weight].view(torch.uint8).view(-1)[-1] = 0x7F if math.isnan(value) else 0xFF  # it has two
    folder = write(tmp_path / "values", made, config_of(THIRD))
    with pytest.raises(InvalidCheckpoint, match=r"blocks\.3\.mlp\.fc2\.weight has FP8 values that are no numbers"):
        read(folder, THIRD)
    scale = "text.blocks.1.mlp.fc2.weight.scale"
    folder = write(tmp_path / "int4", spoil(int4(plain(SECOND))[0], scale, value), config_of(SECOND))
    with pytest.raises(InvalidCheckpoint, match=rf"{scale} has values that are not finite"):
        read(folder, SECOND)


@pytest.mark.parametrize("part", ["coord_decoder.fc2.bias", "size_decoder.fc1.weight", "ln.weight"])
def test_a_nan_in_what_places_are_read_with_is_named(part: str, tmp_path: Path) -> None:
    """The largest of scores that are no numbers would be bin 0: a place in the corner, and no error."""
    raw = micro_config(third=part == "ln.weight")
    tensors = spoil(micro_tensors(raw), f"region.{part}", math.nan)
    save_file(prefixed(tensors), tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=rf"model\.region\.{part} has values that are not finite"):
        read_weights((tmp_path / "model.safetensors",), read_config(raw), torch.bfloat16, CPU)


def test_what_does_not_fit_is_named_as_the_file_has_it(tmp_path: Path) -> None:
    made = fp8(plain(THIRD))[0]
    start = "text_model.transformer.h.2"
    made[f"{start}.tau_wqwv"] = made[f"{start}.tau_wqwv"][:-1]
    made["region_model.size_features.weight"] = made["region_model.size_features.weight"].t()
    made[f"{start}.moe_quant.up_scale"] = made[f"{start}.moe_quant.up_scale"].half()
    del made["text_model.lm_head.linear.bias"], made[f"{start}.moe_quant.down_scale"]
    made["text_model.transformer.h.9.ln.weight"] = torch.ones(64)
    width = made["region_model.size_features.weight"].shape[1]
    with pytest.raises(InvalidCheckpoint) as caught:
        read(write(tmp_path, made, config_of(THIRD)), THIRD)
    for words in (
        "missing text.lm_head.bias",
        "unexpected text_model.transformer.h.9.ln.weight",
        f"{start}.tau_wqwv has shape [3, 384], expected [4, 384]",
        f"region_model.size_features.weight has shape [2, {width}], expected [{width}, 2]",
        f"{start}.moe_quant.up_scale is F16, expected F32",
        f"missing {start}.moe_quant.down_scale",
    ):
        assert words in str(caught.value)


class Seen:
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def show(self, doing: str, done: int, total: int) -> None:
        self.told.append((doing, done, total))


def test_progress_is_told_in_bytes_to_the_end(tmp_path: Path) -> None:
    folder, seen = write(tmp_path, plain(SECOND), config_of(SECOND)), Seen()
    read_weights(find_files(folder).weights, read_config(config_of(SECOND)), torch.float32, CPU, progress=seen)
    total = (folder / "model.safetensors").stat().st_size // 10**6
    assert seen.told[0] == ("MB of weights", 0, total) and seen.told[-1] == ("MB of weights", total, total)
    assert [told[1] for told in seen.told] == sorted(told[1] for told in seen.told)
    assert 10 < len(seen.told) <= 52


@pytest.mark.parametrize("half", ["up", "down"])
def test_fp8_experts_without_their_scales_are_told_as_that(tmp_path: Path, half: str) -> None:
    """The files have what the model wants, in FP8: what is missing is what the numbers are multiplied with."""
    tensors = fp8(plain(THIRD))[0]
    (scale, *_) = sorted(name for name in tensors if name.endswith(f"{half}_scale"))
    shape = list(tensors.pop(scale).shape)
    folder = write(tmp_path, tensors, config_of(THIRD))
    with pytest.raises(InvalidCheckpoint, match=re.escape(f"missing {scale} {shape}")) as told:
        read(folder, THIRD)
    assert "F8_E4M3" not in str(told.value)
    problems = inspect(have(str(folder))).problems
    assert problems == (f"missing {scale} {shape}",)
