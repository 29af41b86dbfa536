"""What a Moondream checkpoint says about itself: dimensions, special ids, templates.

In: the parsed `config.json`. Out: a frozen, checked `MoondreamConfig`. Two layouts are read: this project's own
(sections `text`, `vision`, `region`, `tokenizer` at the top) and the Hugging Face one (`model_type`, and the sections
under `config`, mostly empty). What a file leaves out is the revision's, and a file that names no revision is Moondream
2 of 2025-06-21, or Moondream 3 if its `model_type` or a `text.moe` says so. Everything wrong is said in one error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gapless.errors import InvalidCheckpoint, InvalidRequest, shown
from gapless.models.moondream.limits import MOST_CAPTIONS, MOST_CONTEXT, MOST_IDS, expected

REVISION = "2025-06-21"
JANUARY = "2025-01-09"
"""The first revision of all: sizes in equal steps, captions short or normal."""
MOONDREAM_3 = "moondream3"
MODEL_TYPES = ("moondream1", "moondream2", MOONDREAM_3)
"""`moondream1` is what the published Moondream 2 checkpoints call themselves."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Layers from `start_layer` on choose `experts_per_token` of `num_experts` gated feed-forwards."""

    num_experts: int = 64
    start_layer: int = 4
    experts_per_token: int = 8
    expert_inner_dim: int = 1024


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The decoder. `prefix_attn`: positions of BOS + picture block, which see each other.

    `tau`: whether queries and values are scaled by token and position, and by which GELU of qkv. `moe` None: all layers
    are dense.
    """

    dim: int = 2048
    ff_dim: int = 8192
    n_layers: int = 24
    vocab_size: int = 51200
    max_context: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 32
    prefix_attn: int = 730
    rope_theta: float = 10_000.0
    tau: str = field(default="none", metadata={"choices": ("none", "erf", "tanh")})
    moe: MoeConfig | None = None

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.n_heads

    @property
    def rotary_dims(self) -> int:
        """How many dimensions of a head rotate: the first half."""
        return self.dim // (2 * self.n_heads)

    def experts(self, layer: int) -> MoeConfig | None:
        """The experts of a layer, None if it is dense."""
        return self.moe if self.moe is not None and layer >= self.moe.start_layer else None


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
    """The coordinate and size heads. Feature widths count cosines and sines; `size_out_dim` is width and height.

    `heads`: decoders of two layers (`inner_dim` between them), or of one behind a LayerNorm if the checkpoint has it.
    `sizes`: bins are powers of two, or equal steps.
    """

    dim: int = 2048
    coord_feat_dim: int = 256
    coord_out_dim: int = 1024
    size_feat_dim: int = 512
    size_out_dim: int = 2048
    inner_dim: int = 8192
    heads: str = field(default="mlp", metadata={"choices": ("mlp", "linear")})
    sizes: str = field(default="log", metadata={"choices": ("log", "linear")})


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
    """All of it. `revision` is the Moondream revision it behaves like."""

    text: TextConfig = field(default_factory=TextConfig)
    vision: VisionConfig = field(default_factory=VisionConfig)
    region: RegionConfig = field(default_factory=RegionConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    revision: str = REVISION


_PREVIEW = MoondreamConfig(
    text=TextConfig(max_context=4096, rope_theta=1_500_000.0, tau="erf", moe=MoeConfig()),
    region=RegionConfig(heads="linear"),
    tokenizer=TokenizerConfig(templates=TemplatesConfig(segment=Template((1, 17374, 2), (3,)))),
    revision=MOONDREAM_3,
)
_JANUARY = MoondreamConfig(
    region=RegionConfig(sizes="linear"),
    tokenizer=TokenizerConfig(
        bos_id=50256,
        eos_id=50256,
        answer_id=51194,
        thinking_id=51195,
        coord_id=51196,
        size_id=51197,
        start_ground_points_id=51198,
        end_ground_id=51199,
        templates=TemplatesConfig(
            caption={"short": (198, 198, 16438, 8305, 25), "normal": (198, 198, 24334, 1159, 25)},
            query=Template((198, 198, 24361, 25), (198, 198, 33706, 25)),  # "\n\nQuestion:" "\n\nAnswer:"
            detect=Template((198, 198, 47504, 25), (628,)),  # "\n\nDetect:" "\n\n"
            point=Template((198, 198, 12727, 25), (628,)),  # "\n\nPoint:" "\n\n"
        ),
    ),
    revision=JANUARY,
)
"""Templates in words. The ids of places are the vocabulary's last, which the GPT-2 tokenizer leaves without a text."""
_MARCH = replace(
    _JANUARY,
    region=RegionConfig(),
    tokenizer=replace(
        _JANUARY.tokenizer,
        templates=replace(
            _JANUARY.tokenizer.templates,
            caption={**(_JANUARY.tokenizer.templates.caption or {}), "long": (198, 198, 14617, 8305, 25)},
        ),
    ),
    revision="2025-03-27",
)
WORDED = (JANUARY, "2025-03-27", "2025-04-14")
"""Revisions that are asked in words and have a GPT-2 tokenizer."""
REVISIONS: Mapping[str, MoondreamConfig] = {
    JANUARY: _JANUARY,
    "2025-03-27": _MARCH,
    "2025-04-14": replace(_MARCH, revision="2025-04-14"),
    REVISION: MoondreamConfig(),
    MOONDREAM_3: _PREVIEW,
    "moondream3.1": replace(_PREVIEW, text=replace(_PREVIEW.text, tau="tanh"), revision="moondream3.1"),
}
"""What a checkpoint of each revision is where its file says nothing: published files hardly give a dimension."""


def read_config(raw: Mapping[str, Any], revision: str | None = None, where: str = "config.json") -> MoondreamConfig:
    """Check and type a parsed `config.json`. Raises `InvalidCheckpoint` naming every fault, and the file: `where`.

    `revision`: what it is known to be from elsewhere; it counts where the file itself names none.
    """
    sections = raw["config"] if isinstance(raw.get("config"), Mapping) else raw
    base = _base(raw, sections, revision, where)
    faults: list[str] = []
    if raw.get("config") is not None and sections is raw:
        faults.append(f"config is {shown(raw['config'])}, expected an object")
    config = MoondreamConfig(
        text=_text(sections, base.text, faults),
        vision=replace(base.vision, **_section(sections, "vision", VisionConfig, faults)),
        region=replace(base.region, **_section(sections, "region", RegionConfig, faults)),
        tokenizer=_tokenizer(sections, base.tokenizer, faults),
        revision=base.revision,
    )
    faults = faults or list(_faults(config))
    if faults:
        raise InvalidCheckpoint(f"{where}: {'; '.join(faults)}. Take the config.json that belongs to the weights.")
    return config


def with_context(config: MoondreamConfig, length: int) -> MoondreamConfig:
    """The same for prompts and answers of up to `length` positions in all: more than the checkpoint says is only for
    Moondream 3. Raises `InvalidRequest`."""
    text = config.text
    most = max(text.max_context, MOST_CONTEXT if config.revision.startswith(MOONDREAM_3) else 0)
    if not text.prefix_attn < length <= most:
        raise InvalidRequest(
            f"max_context is {length}, but must be from {text.prefix_attn + 1} (a picture takes {text.prefix_attn}) to "
            f"{most} with this model",
            param="max_context",
        )
    return replace(config, text=replace(text, max_context=length))


def _base(raw: Mapping[str, Any], sections: Mapping[str, Any], revision: str | None, where: str) -> MoondreamConfig:
    """The revision that a file says it is, or is known to be, or looks like."""
    kind, text = raw.get("model_type", MODEL_TYPES[0]), sections.get("text")
    if kind not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise InvalidCheckpoint(f"{where}: model_type {shown(kind)} is not supported; this version runs {known}.")
    third = kind == MOONDREAM_3 or (isinstance(text, Mapping) and bool(text.get("moe")))
    named = raw.get("revision") or revision or (MOONDREAM_3 if third else REVISION)
    if not isinstance(named, str) or named not in REVISIONS:
        runs = ", ".join(REVISIONS)
        raise InvalidCheckpoint(f"{where}: revision {shown(named)} is not supported; this version runs {runs}.")
    return REVISIONS[named]


def _text(sections: Mapping[str, Any], base: TextConfig, faults: list[str]) -> TextConfig:
    """The decoder's section, with the experts' within it."""
    text = replace(base, **_section(sections, "text", TextConfig, faults))
    given = sections.get("text")
    if isinstance(given, Mapping) and given.get("moe") is not None:
        text = replace(text, moe=replace(text.moe or MoeConfig(), **_section(given, "moe", MoeConfig, faults, "text.")))
    return text


def _section(sections: Mapping[str, Any], name: str, into: type, faults: list[str], within: str = "") -> dict[str, Any]:
    """The known numbers and words of one section; unknown keys are left alone, as newer files may carry more."""
    given = sections.get(name, {})
    if not isinstance(given, Mapping):
        faults.append(f"{within}{name} is not an object")
        return {}
    known: dict[str, Any] = {}
    for f in fields(into):
        value = given.get(f.name)
        if value is None or f.name in ("templates", "moe"):
            continue
        wanted = expected(f.name, str(f.type), f.metadata.get("choices"), value)
        if wanted is None:
            known[f.name] = value
        else:
            faults.append(f"{within}{name}.{f.name} is {shown(value)}, expected {wanted}")
    return known


def _tokenizer(sections: Mapping[str, Any], base: TokenizerConfig, faults: list[str]) -> TokenizerConfig:
    tokenizer = replace(base, **_section(sections, "tokenizer", TokenizerConfig, faults))
    given = sections.get("tokenizer", {})
    templates = given.get("templates") if isinstance(given, Mapping) else None
    if templates is None:
        return tokenizer
    try:
        return replace(tokenizer, templates=_templates(templates))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        faults.append(f"tokenizer.templates is malformed ({type(error).__name__}: {error})")
        return tokenizer


def _templates(given: Mapping[str, Any]) -> TemplatesConfig:
    """Templates as a file gives them: a skill that is not named is one the model lacks."""
    caption = given.get("caption")
    around = {
        skill: Template(_ids(given[skill]["prefix"]), _ids(given[skill]["suffix"])) if given.get(skill) else None
        for skill in ("query", "detect", "point", "segment")
    }
    if caption and len(caption) > MOST_CAPTIONS:
        raise ValueError(f"{len(caption)} lengths of captions, at most {MOST_CAPTIONS}")
    lengths = {str(length): _ids(ids) for length, ids in caption.items()} if caption else None
    return TemplatesConfig(caption=lengths, **around)


def _ids(given: Any) -> Ids:
    if not isinstance(given, list) or len(given) > MOST_IDS:
        raise ValueError(f"expected a list of at most {MOST_IDS} token ids, got {shown(given)}")
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in given):
        raise ValueError(f"expected token ids, got {shown(given)}")
    return tuple(given)


def _faults(c: MoondreamConfig) -> Iterator[str]:
    """What does not fit together. Yields one sentence each."""
    text, vision, region, ids = c.text, c.vision, c.region, c.tokenizer
    yield from _text_faults(text)
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
    if region.coord_feat_dim % 2 or region.size_feat_dim % 2 or region.size_out_dim % 2:
        yield "region feature and size widths must be even"
    out = [f"{name} {i}" for name, i in _all_ids(ids) if i >= text.vocab_size]
    if out:
        yield f"ids outside the vocabulary of {text.vocab_size}: {', '.join(out[:8])}"


def _text_faults(text: TextConfig) -> Iterator[str]:
    if text.n_kv_heads != text.n_heads:
        yield f"text.n_kv_heads {text.n_kv_heads} is not n_heads {text.n_heads}: grouped-query heads are not supported"
    if text.dim % (4 * text.n_heads):
        yield f"text.dim {text.dim} is not a multiple of 4 * n_heads ({4 * text.n_heads})"
    if text.max_context <= text.prefix_attn:
        yield f"text.max_context {text.max_context} does not hold the picture block of {text.prefix_attn}"
    if text.moe is not None and text.moe.experts_per_token > text.moe.num_experts:
        yield f"text.moe chooses {text.moe.experts_per_token} of {text.moe.num_experts} experts"


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
