"""What a Moondream checkpoint says about itself: dimensions, special ids, templates.

In: the parsed `config.json`. Out: a frozen, checked `MoondreamConfig`. Two layouts are read: this project's own
(sections `text`, `vision`, `region`, `tokenizer` at the top) and the Hugging Face one (`model_type`, and the sections
under `config`, mostly empty). What a file leaves out is Moondream 2, revision 2025-06-21. Everything wrong is said in
one error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gapless.errors import InvalidCheckpoint

REVISION = "2025-06-21"
MODEL_TYPES = ("moondream1", "moondream2")
"""`moondream1` is what the published Moondream 2 checkpoints call themselves."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The decoder. `prefix_attn`: positions of BOS + picture block, which see each other."""

    dim: int = 2048
    ff_dim: int = 8192
    n_layers: int = 24
    vocab_size: int = 51200
    max_context: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 32
    prefix_attn: int = 730
    rope_theta: float = 10_000.0

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.n_heads

    @property
    def rotary_dims(self) -> int:
        """How many dimensions of a head rotate: the first half."""
        return self.dim // (2 * self.n_heads)


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The picture tower. Sizes in pixels, `overlap_margin` in patches."""

    enc_dim: int = 1152
    enc_patch_size: int = 14
    enc_n_layers: int = 27
    enc_ff_dim: int = 4304
    enc_n_heads: int = 16
    proj_inner_dim: int = 8192
    proj_out_dim: int = 2048
    crop_size: int = 378
    in_channels: int = 3
    max_crops: int = 12
    overlap_margin: int = 4

    @property
    def grid(self) -> int:
        """Patches along a crop's side."""
        return self.crop_size // self.enc_patch_size


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """The coordinate and size heads. Feature widths count cosines and sines; `size_out_dim` is width and height."""

    dim: int = 2048
    coord_feat_dim: int = 256
    coord_out_dim: int = 1024
    size_feat_dim: int = 512
    size_out_dim: int = 2048
    inner_dim: int = 8192


@dataclass(frozen=True, slots=True)
class Template:
    """Ids around a question or an object."""

    prefix: Ids
    suffix: Ids


@dataclass(frozen=True, slots=True)
class TemplatesConfig:
    """Ids that ask for each skill; None where the model lacks it. `caption` is keyed by length."""

    caption: Mapping[str, Ids] | None = field(
        default_factory=lambda: {
            "short": (1, 32708, 2, 12492, 3),
            "normal": (1, 32708, 2, 6382, 3),
            "long": (1, 32708, 2, 4059, 3),
        }
    )
    query: Template | None = Template((1, 15381, 2), (3,))
    detect: Template | None = Template((1, 7235, 476, 2), (3,))
    point: Template | None = Template((1, 2581, 2), (3,))
    segment: Template | None = None


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Ids with a meaning of their own."""

    bos_id: int = 0
    eos_id: int = 0
    answer_id: int = 3
    thinking_id: int = 4
    coord_id: int = 5
    size_id: int = 6
    start_ground_points_id: int = 7
    end_ground_id: int = 9
    templates: TemplatesConfig = field(default_factory=TemplatesConfig)


@dataclass(frozen=True, slots=True)
class MoondreamConfig:
    """All of it. `mask_answer`: see `constrain.table.Rules`; `revision` is the Moondream revision it behaves like."""

    text: TextConfig
    vision: VisionConfig
    region: RegionConfig
    tokenizer: TokenizerConfig
    revision: str = REVISION
    mask_answer: bool = True


def read_config(raw: Mapping[str, Any]) -> MoondreamConfig:
    """Check and type a parsed `config.json`. Raises `InvalidCheckpoint` naming every fault."""
    sections = raw["config"] if isinstance(raw.get("config"), Mapping) else raw
    _refuse_unsupported(raw, sections)
    faults: list[str] = []
    config = MoondreamConfig(
        text=TextConfig(**_section(sections, "text", TextConfig, faults)),
        vision=VisionConfig(**_section(sections, "vision", VisionConfig, faults)),
        region=RegionConfig(**_section(sections, "region", RegionConfig, faults)),
        tokenizer=_tokenizer(sections, faults),
    )
    faults = faults or list(_faults(config))
    if faults:
        raise InvalidCheckpoint(f"config.json: {'; '.join(faults)}. Take the config.json that belongs to the weights.")
    return config


def _refuse_unsupported(raw: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
    kind, revision = raw.get("model_type", MODEL_TYPES[0]), raw.get("revision", REVISION)
    if kind not in MODEL_TYPES:
        raise InvalidCheckpoint(
            f"model_type {kind!r} is not supported; this version runs {', '.join(MODEL_TYPES)} (Moondream 2)."
        )
    if revision != REVISION:
        raise InvalidCheckpoint(f"Revision {revision!r} is not supported; this version runs revision {REVISION}.")
    text = sections.get("text")
    if isinstance(text, Mapping) and text.get("moe"):
        raise InvalidCheckpoint(
            "text.moe: mixture-of-experts layers (Moondream 3) are not supported; load a dense Moondream 2 checkpoint."
        )


def _section(sections: Mapping[str, Any], name: str, into: type, faults: list[str]) -> dict[str, Any]:
    """The known numbers of one section; unknown keys are left alone, as newer files may carry more."""
    given = sections.get(name, {})
    if not isinstance(given, Mapping):
        faults.append(f"{name} is not an object")
        return {}
    numbers: dict[str, Any] = {}
    for f in fields(into):
        value = given.get(f.name)
        if value is None or f.name == "templates":
            continue
        allowed = (int, float) if f.type == "float" else (int,)
        low = 0 if f.name.endswith("_id") or f.name == "overlap_margin" else 1
        if isinstance(value, bool) or not isinstance(value, allowed) or value < low:
            faults.append(f"{name}.{f.name} is {value!r}, expected a number of at least {low}")
        else:
            numbers[f.name] = value
    return numbers


def _tokenizer(sections: Mapping[str, Any], faults: list[str]) -> TokenizerConfig:
    numbers = _section(sections, "tokenizer", TokenizerConfig, faults)
    given = sections.get("tokenizer", {})
    templates = given.get("templates") if isinstance(given, Mapping) else None
    if templates is None:
        return TokenizerConfig(**numbers)
    try:
        return TokenizerConfig(**numbers, templates=_templates(templates))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        faults.append(f"tokenizer.templates is malformed ({error!r})")
        return TokenizerConfig(**numbers)


def _templates(given: Mapping[str, Any]) -> TemplatesConfig:
    """Templates as a file gives them: a skill that is not named is one the model lacks."""
    caption = given.get("caption")
    around = {
        skill: Template(_ids(given[skill]["prefix"]), _ids(given[skill]["suffix"])) if given.get(skill) else None
        for skill in ("query", "detect", "point", "segment")
    }
    lengths = {str(length): _ids(ids) for length, ids in caption.items()} if caption else None
    return TemplatesConfig(caption=lengths, **around)


def _ids(given: Any) -> Ids:
    if not all(isinstance(i, int) and i >= 0 for i in given):
        raise ValueError(f"expected token ids, got {given!r}")
    return tuple(given)


def _faults(c: MoondreamConfig) -> Iterator[str]:
    """What does not fit together. Yields one sentence each."""
    text, vision, region, ids = c.text, c.vision, c.region, c.tokenizer
    if text.n_kv_heads != text.n_heads:
        yield f"text.n_kv_heads {text.n_kv_heads} is not n_heads {text.n_heads}: grouped-query heads are not supported"
    if text.dim % (4 * text.n_heads):
        yield f"text.dim {text.dim} is not a multiple of 4 * n_heads ({4 * text.n_heads})"
    if vision.enc_dim % vision.enc_n_heads:
        yield f"vision.enc_dim {vision.enc_dim} is not a multiple of enc_n_heads {vision.enc_n_heads}"
    if vision.crop_size % vision.enc_patch_size:
        yield f"vision.crop_size {vision.crop_size} is not a multiple of enc_patch_size {vision.enc_patch_size}"
    elif text.prefix_attn != vision.grid**2 + 1:
        yield f"text.prefix_attn {text.prefix_attn} is not 1 + {vision.grid}^2 (BOS and one position per patch)"
    if 2 * vision.overlap_margin >= vision.grid:
        yield f"vision.overlap_margin {vision.overlap_margin} leaves nothing of a grid of {vision.grid}"
    if vision.in_channels != 3:
        yield f"vision.in_channels is {vision.in_channels}, pictures have 3"
    if vision.proj_out_dim != text.dim or region.dim != text.dim:
        yield f"vision.proj_out_dim {vision.proj_out_dim} and region.dim {region.dim} must equal text.dim {text.dim}"
    if text.max_context <= text.prefix_attn:
        yield f"text.max_context {text.max_context} does not hold the picture block of {text.prefix_attn}"
    if region.coord_feat_dim % 2 or region.size_feat_dim % 2 or region.size_out_dim % 2:
        yield "region feature and size widths must be even"
    out = [f"{name} {i}" for name, i in _all_ids(ids) if i >= text.vocab_size]
    if out:
        yield f"ids outside the vocabulary of {text.vocab_size}: {', '.join(out[:8])}"


def _all_ids(ids: TokenizerConfig) -> Iterator[tuple[str, int]]:
    for f in fields(TokenizerConfig):
        if f.name.endswith("_id"):
            yield f.name, getattr(ids, f.name)
    templates = ids.templates
    for length, caption in (templates.caption or {}).items():
        yield from ((f"caption.{length}", i) for i in caption)
    for skill in ("query", "detect", "point", "segment"):
        template: Template | None = getattr(templates, skill)
        if template is not None:
            yield from ((skill, i) for i in template.prefix + template.suffix)
