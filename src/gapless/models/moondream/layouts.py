"""What is made of which tensor of a Moondream's files.

In: the headers of the files and the shapes a config asks for. Out: a recipe for each tensor of `tensor_shapes`, and the
names that nothing fits. Which layout a file is in does not matter here: `names.canonical` makes one of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from gapless.models.moondream.names import canonical
from gapless.models.moondream.weights_map import OPTIONAL, Shapes
from gapless.weights.recipes import GROUP, Kept, Nibbles, Part, Plain, Recipe, Rows, Turned, scale_part
from gapless.weights.stored import FP8, Header

EXPERTS = 3
"""Dimensions of a weight of experts, which alone may be FP8."""
_SIGN = "text_model.transformer."
_PLACES = "region."
"""What places are read with. The largest of scores that are no numbers is bin 0, a place like any other: nothing later
would notice that they are damaged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made of what. `missing`: tensors of the model that nothing in the files is like, with their shapes.

    `packed`: whether there are int4 weights.
    """

    recipes: Mapping[str, Recipe]
    missing: tuple[str, ...]
    packed: bool


def plan(headers: Mapping[str, Header], wanted: Shapes) -> Plan:
    """Choose a recipe for each tensor of `wanted` (those of `OPTIONAL` only if the files have them).

    FP8 experts come as they are, their scales beside them under `fc1.scale` and `fc2.scale`, float32 [experts, rows].
    """
    found: dict[str, str] = {}
    for name in headers:
        found.setdefault(canonical(name), name)
    recipes: dict[str, Recipe] = {}
    missing = []
    for name, shape in wanted.items():
        made = _recipes(name, shape, found, headers)
        recipes |= made
        if not made and not (name in OPTIONAL and found.keys().isdisjoint(OPTIONAL)):
            missing.append(f"{name} {list(shape)}")
    packed = any(isinstance(recipe, Nibbles) for recipe in recipes.values())
    return Plan(recipes, tuple(sorted(missing)), packed)


def _recipes(
    name: str, shape: tuple[int, ...], found: Mapping[str, str], headers: Mapping[str, Header]
) -> dict[str, Recipe]:
    """How to make one tensor of the model, and its scales if it has any. Empty if nothing is like it."""
    stem, _, part = name.rpartition(".")
    if name in found:
        return _direct(name, shape, found, headers[found[name]].dtype)
    if f"{name}.turned" in found:
        return {name: Turned(found[f"{name}.turned"], shape)}
    if f"{stem}.wqwv" in found and part in ("wq", "wv"):
        return {name: Rows(found[f"{stem}.wqwv"], shape, 0 if part == "wq" else shape[0], 2 * shape[0])}
    if f"{name}.packed" in found and prod(shape) % (2 * GROUP) == 0:
        return {name: Nibbles(found[f"{name}.packed"].removesuffix(".packed"), shape)}
    return {}


def _direct(name: str, shape: tuple[int, ...], found: Mapping[str, str], dtype: str) -> dict[str, Recipe]:
    """A tensor that the files have as the model wants it, unless it is FP8 with scales beside it."""
    scale = name.removesuffix(".weight") + ".scale"
    if dtype != FP8 or (scale not in found and len(shape) != EXPERTS):
        return {name: Plain(found[name], shape, finite=name.startswith(_PLACES))}
    beside = found.get(scale, _scale_beside(found[name], scale))
    return {name: Kept(found[name], Part(shape, (FP8,))), scale: Kept(beside, scale_part(shape))}


def _scale_beside(weight: str, scale: str) -> str:
    """The name that missing scales of experts would have in the file: in the internal layout they lie elsewhere."""
    block, internal, linear = weight.partition(".mlp.")
    if not (internal and _SIGN in block):
        return scale
    return f"{block}.moe_quant.{'down' if linear.startswith('output') else 'up'}_scale"
