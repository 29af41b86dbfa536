"""The two layouts of Moondream files, and what is made of which of their tensors.

In: the headers of the files and the shapes a config asks for. Out: a recipe for each tensor of `tensor_shapes`, and the
names that nothing fits. Every name of a file is first said in the terms of the Hugging Face layout without `model.`;
what has no counterpart there keeps a name beside it: `.turned` for a matrix that lies the other way round, `tau.wqwv`
for the two of tau in one, `fc1.scale` and `fc2.scale` for the scales of FP8 experts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gapless.models.moondream.weights_map import OPTIONAL, PREFIX, Shapes
from gapless.weights.recipes import FP8, GROUP, Kept, Nibbles, Part, Plain, Recipe, Rows, Scaled, Turned, scale_part
from gapless.weights.stored import Header

HUGGING_FACE, INTERNAL = "hugging face", "internal"
COMPILED = "._orig_mod"
"""What torch.compile leaves in names."""
_SIGN = "text_model.transformer."

_VISUAL = "vision_encoder.encoder.model.visual."
_HEAD = r"text_model\.transformer\.h\.(\d+)\."
_INTERNAL: tuple[tuple[str, str], ...] = (
    (re.escape(_VISUAL) + r"patch_embed\.linear\.", r"vision.patch_emb."),
    (re.escape(_VISUAL) + r"pos_embed$", r"vision.pos_emb"),
    (re.escape(_VISUAL) + r"blocks\.(\d+)\.norm([12])\.", r"vision.blocks.\1.ln\2."),
    (re.escape(_VISUAL) + r"blocks\.(\d+)\.", r"vision.blocks.\1."),
    (re.escape(_VISUAL) + r"norm\.", r"vision.post_ln."),
    (r"vision_encoder\.projection\.mlp\.", r"vision.proj_mlp."),
    (r"text_model\.transformer\.embd\.wte\.weight$", r"text.wte"),
    (_HEAD + r"mixer\.Wqkv\.", r"text.blocks.\1.attn.qkv."),
    (_HEAD + r"mixer\.out_proj\.", r"text.blocks.\1.attn.proj."),
    (_HEAD + r"tau_(wqwv|wq|wv|alpha)$", r"text.blocks.\1.attn.tau.\2"),
    (_HEAD + r"gate\.", r"text.blocks.\1.mlp.router."),
    (_HEAD + r"mlp\.experts\.", r"text.blocks.\1.mlp.fc1."),
    (_HEAD + r"mlp\.output_experts\.", r"text.blocks.\1.mlp.fc2."),
    (_HEAD + r"moe_quant\.up_scale$", r"text.blocks.\1.mlp.fc1.scale"),
    (_HEAD + r"moe_quant\.down_scale$", r"text.blocks.\1.mlp.fc2.scale"),
    (_HEAD + r"(ln|mlp)\.", r"text.blocks.\1.\2."),
    (r"text_model\.lm_head\.ln\.", r"text.post_ln."),
    (r"text_model\.lm_head\.linear\.", r"text.lm_head."),
    (r"region_model\.(coordinate|size)_features\.weight$", r"region.\1_features.turned"),
    (r"region_model\.(coordinate|size)_(encoder)\.", r"region.\1_\2."),
    (r"region_model\.(coordinate|size)_(?:head|decoder)\.", r"region.\1_decoder."),
    (r"region_model\.ln\.", r"region.ln."),
)
_RULES = tuple((re.compile(pattern), into) for pattern, into in _INTERNAL)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made of what. `missing`: tensors of the model that nothing in the files is like, with their shapes.

    `scaled`: whether there are FP8 weights; `packed`: whether there are int4 weights.
    """

    recipes: Mapping[str, Recipe]
    missing: tuple[str, ...]
    scaled: bool
    packed: bool


def layout_of(names: Mapping[str, Header]) -> str:
    """Which of the two layouts the names are in."""
    return INTERNAL if any(name.removeprefix(PREFIX).startswith(_SIGN) for name in names) else HUGGING_FACE


def canonical(name: str) -> str:
    """A name of either layout in the terms of the Hugging Face one; an unknown name is left as it is."""
    name = name.replace(COMPILED, "").removeprefix(PREFIX)
    for pattern, into in _RULES:
        if pattern.match(name):
            return pattern.sub(into, name, count=1).replace("region.coordinate_", "region.coord_")
    return name


def plan(headers: Mapping[str, Header], wanted: Shapes, *, keep_fp8: bool = False) -> Plan:
    """Choose a recipe for each tensor of `wanted` (those of `OPTIONAL` only if the files have them).

    `keep_fp8`: FP8 experts come as they are, their scales beside them under `fc1.scale` and `fc2.scale`, float32
    [experts, rows]; else they are dequantised.
    """
    found: dict[str, str] = {}
    for name in headers:
        found.setdefault(canonical(name), name)
    recipes: dict[str, Recipe] = {}
    missing = []
    for name, shape in wanted.items():
        made = _recipes(name, shape, found, headers, keep_fp8)
        recipes |= made
        if not made and not (name in OPTIONAL and found.keys().isdisjoint(OPTIONAL)):
            missing.append(f"{name} {list(shape)}")
    kinds = {type(recipe) for recipe in recipes.values()}
    return Plan(recipes, tuple(sorted(missing)), bool(kinds & {Scaled, Kept}), Nibbles in kinds)


def _recipes(
    name: str, shape: tuple[int, ...], found: Mapping[str, str], headers: Mapping[str, Header], keep_fp8: bool
) -> dict[str, Recipe]:
    """How to make one tensor of the model, and its scales if they are to be kept. Empty if nothing is like it."""
    stem, _, part = name.rpartition(".")
    if name in found:
        return _direct(name, shape, found, headers[found[name]].dtype, keep_fp8)
    if f"{name}.turned" in found:
        return {name: Turned(found[f"{name}.turned"], shape)}
    if f"{stem}.wqwv" in found and part in ("wq", "wv"):
        return {name: Rows(found[f"{stem}.wqwv"], shape, 0 if part == "wq" else shape[0], 2 * shape[0])}
    if f"{name}.packed" in found and prod(shape) % (2 * GROUP) == 0:
        return {name: Nibbles(found[f"{name}.packed"].removesuffix(".packed"), shape)}
    return {}


def _direct(
    name: str, shape: tuple[int, ...], found: Mapping[str, str], dtype: str, keep_fp8: bool
) -> dict[str, Recipe]:
    """A tensor that the files have as the model wants it, unless it is FP8 with scales beside it."""
    scale = name.removesuffix(".weight") + ".scale"
    if dtype != FP8 or scale not in found:
        return {name: Plain(found[name], shape)}
    if not keep_fp8:
        return {name: Scaled(found[name], found[scale], shape)}
    return {name: Kept(found[name], Part(shape, (FP8,))), scale: Kept(found[scale], scale_part(shape))}
