"""The names that tensors have in the two layouts of Moondream files.

In: a name as a file has it. Out: the same in the terms of the Hugging Face layout without `model.`. What has no
counterpart there keeps a name beside it: `.turned` for a matrix that lies the other way round, `tau.wqwv` for the two
of tau in one, `fc1.scale` and `fc2.scale` for the scales of FP8 experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gapless.models.moondream.weights_map import PREFIX

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


def layout_of(names: Iterable[str]) -> str:
    """Which of the two layouts the names are in."""
    return INTERNAL if any(name.removeprefix(PREFIX).startswith(_SIGN) for name in names) else HUGGING_FACE


def canonical(name: str) -> str:
    """A name of either layout in the terms of the Hugging Face one; an unknown name is left as it is."""
    name = name.replace(COMPILED, "").removeprefix(PREFIX)
    for pattern, into in _RULES:
        if pattern.match(name):
            return pattern.sub(into, name, count=1).replace("region.coordinate_", "region.coord_")
    return name
