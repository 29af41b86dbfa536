"""Names and shapes of a Moondream checkpoint's tensors, in the Hugging Face layout.

In: a config. Out: every tensor the model needs, by its name after the `model.` prefix, with its shape.
"""

from __future__ import annotations

from gapless.models.moondream.config import MoeConfig, MoondreamConfig

PREFIX = "model."

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: MoondreamConfig) -> Shapes:
    """Every tensor of the checkpoint with its shape, those of `OPTIONAL` too."""
    return {**_vision(config), **_text(config), **_region(config)}


OPTIONAL = ("region.ln.weight", "region.ln.bias")
"""Tensors that a checkpoint may lack, all of them together: the first Moondream 3 has no norm before its heads."""


def _vision(config: MoondreamConfig) -> Shapes:
    v = config.vision
    shapes: Shapes = {"vision.pos_emb": (1, v.grid**2, v.enc_dim)}
    shapes |= _linear("vision.patch_emb", v.in_channels * v.enc_patch_size**2, v.enc_dim)
    for i in range(v.enc_n_layers):
        block = f"vision.blocks.{i}"
        shapes |= _norm(f"{block}.ln1", v.enc_dim) | _norm(f"{block}.ln2", v.enc_dim)
        shapes |= _attention(block, v.enc_dim) | _mlp(f"{block}.mlp", v.enc_dim, v.enc_ff_dim, v.enc_dim)
    shapes |= _norm("vision.post_ln", v.enc_dim)
    return shapes | _mlp("vision.proj_mlp", 2 * v.enc_dim, v.proj_inner_dim, v.proj_out_dim)


def _text(config: MoondreamConfig) -> Shapes:
    t = config.text
    shapes: Shapes = {"text.wte": (t.vocab_size, t.dim)}
    for i in range(t.n_layers):
        block = f"text.blocks.{i}"
        shapes |= _norm(f"{block}.ln", t.dim)
        shapes |= _attention(block, t.dim)
        if t.tau != "none":
            shapes |= {f"{block}.attn.tau.{part}": (t.n_heads, 3 * t.dim) for part in ("wq", "wv")}
            shapes[f"{block}.attn.tau.alpha"] = (t.n_heads,)
        moe = t.experts(i)
        shapes |= _experts(f"{block}.mlp", t.dim, moe) if moe else _mlp(f"{block}.mlp", t.dim, t.ff_dim, t.dim)
    return shapes | _norm("text.post_ln", t.dim) | _linear("text.lm_head", t.dim, t.vocab_size)


def _region(config: MoondreamConfig) -> Shapes:
    r = config.region
    shapes: Shapes = {
        "region.coord_features": (1, r.coord_feat_dim // 2),
        "region.size_features": (2, r.size_feat_dim // 2),
    }
    shapes |= _linear("region.coord_encoder", r.coord_feat_dim, r.dim)
    shapes |= _linear("region.size_encoder", r.size_feat_dim, r.dim)
    for name, out in (("region.coord_decoder", r.coord_out_dim), ("region.size_decoder", r.size_out_dim)):
        shapes |= _mlp(name, r.dim, r.inner_dim, out) if r.heads == "mlp" else _linear(name, r.dim, out)
    return shapes if r.heads == "mlp" else shapes | _norm("region.ln", r.dim)


def _linear(name: str, into: int, out: int) -> Shapes:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name: str, dim: int) -> Shapes:
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def _attention(block: str, dim: int) -> Shapes:
    return _linear(f"{block}.attn.qkv", dim, 3 * dim) | _linear(f"{block}.attn.proj", dim, dim)


def _mlp(name: str, into: int, inner: int, out: int) -> Shapes:
    return _linear(f"{name}.fc1", into, inner) | _linear(f"{name}.fc2", inner, out)


def _experts(name: str, dim: int, moe: MoeConfig) -> Shapes:
    """Activated rows, then gates, in fc1."""
    count, inner = moe.num_experts, moe.expert_inner_dim
    up, down = (count, 2 * inner, dim), (count, dim, inner)
    return _linear(f"{name}.router", dim, count) | {f"{name}.fc1.weight": up, f"{name}.fc2.weight": down}
