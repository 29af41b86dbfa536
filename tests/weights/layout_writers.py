"""Checkpoints in every published form, written from plain tensors named as in the Hugging Face layout.

The names are spelled out here once more, independent of those that the package reads.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
SECOND, THIRD = "moondream2-2025-06-21-a", "moondream3-a"


def plain(name: str) -> Tensors:
    """A golden checkpoint's tensors without the prefix."""
    return {key.removeprefix("model."): t for key, t in load_file(GOLDEN / name / "model.safetensors").items()}


def config_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / name / "config.json").read_text())
    return content


def prefixed(tensors: Tensors) -> Tensors:
    return {f"model.{name}": t for name, t in tensors.items()}


def internal_name(name: str) -> str:
    """What the internal layout calls a tensor of the Hugging Face layout."""
    visual, head = "vision_encoder.encoder.model.visual", "text_model.transformer"
    fixed = {"vision.pos_emb": f"{visual}.pos_embed", "text.wte": f"{head}.embd.wte.weight"}
    for part in ("coord", "size"):
        fixed[f"region.{part}_features"] = f"region_model.{'coordinate' if part == 'coord' else part}_features.weight"
    if name in fixed:
        return fixed[name]
    starts = (
        ("vision.patch_emb.", f"{visual}.patch_embed.linear."),
        ("vision.post_ln.", f"{visual}.norm."),
        ("vision.proj_mlp.", "vision_encoder.projection.mlp."),
        ("vision.blocks.", f"{visual}.blocks."),
        ("text.blocks.", f"{head}.h."),
        ("text.post_ln.", "text_model.lm_head.ln."),
        ("text.lm_head.", "text_model.lm_head.linear."),
        ("region.coord_", "region_model.coordinate_"),
        ("region.", "region_model."),
    )
    start, into = next(pair for pair in starts if name.startswith(pair[0]))
    name = into + name.removeprefix(start)
    if name.startswith(visual):
        return re.sub(r"\.ln([12])\.", r".norm\1.", name)
    for leaf, said in ((".attn.qkv.", ".mixer.Wqkv."), (".attn.proj.", ".mixer.out_proj."), (".attn.tau.", ".tau_"),
                       (".mlp.router.", ".gate.")):  # fmt: skip
        name = name.replace(leaf, said)
    return name


def internal(tensors: Tensors, *, fused: bool = False) -> Tensors:
    """The internal layout; `fused`: tau's two matrices in one."""
    made: Tensors = {}
    for name, tensor in tensors.items():
        said = internal_name(name)
        if name.endswith(("fc1.weight", "fc2.weight")) and tensor.ndim == 3:
            said = said.replace("fc1", "experts").replace("fc2", "output_experts")
        if name.startswith("region.") and name.split(".")[1].endswith("_decoder") and name.count(".") == 2:
            said = said.replace("_decoder", "_head")
        made[said] = tensor.t().contiguous() if name.endswith("_features") else tensor
    for name in [n for n in made if n.endswith("tau_wq")] if fused else ():
        made[f"{name}wv"] = torch.cat((made.pop(name), made.pop(name[:-1] + "v")))
    return made


def compiled(tensors: Tensors) -> Tensors:
    """As torch.compile leaves names."""
    return {
        re.sub(r"^(vision_encoder\.encoder|text_model\.transformer)\.", r"\1._orig_mod.", name): t
        for name, t in tensors.items()
    }


def fp8(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Internal layout with FP8 experts, and what the plain tensors are then (float32)."""
    made, meant = internal(tensors, fused=True), {name: t.float() for name, t in tensors.items()}
    for name, tensor in tensors.items():
        if tensor.ndim == 3 and ".mlp.fc" in name:
            scale = tensor.float().abs().amax(-1) / 448 + 1e-6
            quantised = (tensor.float() / scale[..., None]).to(torch.float8_e4m3fn)
            layer, leaf = name.split(".")[2], "experts" if "fc1" in name else "output_experts"
            made[f"text_model.transformer.h.{layer}.mlp.{leaf}.weight"] = quantised
            half = "up" if "fc1" in name else "down"
            made[f"text_model.transformer.h.{layer}.moe_quant.{half}_scale"] = scale
            meant[name] = quantised.float() * scale[..., None]
    return made, meant


def int4(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Text linears in four bits, and what the plain tensors are then (bfloat16 values)."""
    made, meant = {}, dict(tensors)
    for name, tensor in tensors.items():
        if not re.fullmatch(r"text\.blocks\.\d+\.(attn|mlp)\.\w+\.weight", name):
            made[name] = tensor
            continue
        groups = tensor.float().reshape(-1, 128)
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        scale = ((high - low) / 15).bfloat16()
        zero = (-low / scale.float()).round().bfloat16()
        q = (groups / scale.float() + zero.float()).round().clamp(0, 15).to(torch.uint8)
        half = len(q) // 2
        made[f"{name}.packed"] = q[:half] * 16 + q[half:]
        made[f"{name}.scale"], made[f"{name}.zero_point"] = scale, zero
        meant[name] = ((q.bfloat16() - zero) * scale).reshape(tensor.shape)
    return made, meant


def write(folder: Path, tensors: Tensors, config: dict[str, Any], file: str = "model.safetensors") -> Path:
    """A folder of one file, or of two shards with an index if `file` is "shards"."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_bytes((GOLDEN / SECOND / "tokenizer.json").read_bytes())
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    if file == "shards":
        names = sorted(tensors)
        cut = {f"model-0000{i}-of-00002.safetensors": names[i - 1 :: 2] for i in (1, 2)}
        for shard, of in cut.items():
            save_file({name: tensors[name] for name in of}, folder / shard)
        index = {"weight_map": {name: shard for shard, of in cut.items() for name in of}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif file.endswith(".pt"):
        torch.save(tensors, folder / file)
    else:
        save_file(tensors, folder / file)
    return folder
