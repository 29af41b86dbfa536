"""Reading config.json: defaults, both layouts, and one clear error for everything that is wrong."""

import copy
import math
import re
from dataclasses import fields, replace
from typing import Any

import pytest
from tests.fakes.micro import micro_config

from gapless.errors import InvalidCheckpoint, InvalidRequest
from gapless.models.moondream.config import (
    REVISIONS,
    MoeConfig,
    RegionConfig,
    Template,
    TextConfig,
    TokenizerConfig,
    VisionConfig,
    read_config,
    with_context,
)
from gapless.models.moondream.limits import bounds
from gapless.models.moondream.weights_map import tensor_shapes


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    config = copy.deepcopy(micro_config())
    for section, values in sections.items():
        config[section] |= values
    return config


@pytest.mark.parametrize("raw", [{}, {"model_type": "moondream1", "config": {}, "torch_dtype": "bfloat16"}])
def test_an_empty_config_is_moondream_2(raw: dict[str, Any]) -> None:
    config = read_config(raw)
    shapes = tensor_shapes(config)
    assert len(shapes) == 592
    assert sum(math.prod(shape) for shape in shapes.values()) == 1_927_237_104
    assert config.revision == "2025-06-21"
    assert config.text.prefix_attn == config.vision.grid**2 + 1 == 730
    assert (config.text.head_dim, config.text.rotary_dims) == (64, 32)
    assert config.tokenizer.templates.query == Template((1, 15381, 2), (3,))
    assert config.tokenizer.templates.segment is None


@pytest.mark.parametrize(
    ("raw", "revision", "tau"),
    [
        ({"model_type": "moondream3", "config": {"skills": ["query"]}}, "moondream3", "erf"),
        ({"model_type": "moondream3", "revision": "moondream3.1"}, "moondream3.1", "tanh"),
        ({"text": {"moe": {"num_experts": 64}}}, "moondream3", "erf"),
        ({"revision": "moondream3"}, "moondream3", "erf"),
    ],
)
def test_moondream_3_by_its_type_its_experts_or_its_name(raw: dict[str, Any], revision: str, tau: str) -> None:
    config = read_config(raw)
    assert (config.revision, config.text.tau) == (revision, tau)
    shapes = tensor_shapes(config)
    assert len(shapes) == 662
    assert sum(math.prod(shape) for shape in shapes.values()) == 9_268_626_928
    assert (config.text.rope_theta, config.region.heads, config.region.sizes) == (1_500_000.0, "linear", "log")
    assert [config.text.experts(i) is not None for i in (0, 3, 4, 23)] == [False, False, True, True]
    assert shapes["text.blocks.4.mlp.fc1.weight"] == (64, 2048, 2048)
    assert shapes["text.blocks.23.mlp.fc2.weight"] == (64, 2048, 1024)
    assert shapes["text.blocks.3.mlp.fc1.weight"] == (8192, 2048)
    assert config.tokenizer.templates.segment == Template((1, 17374, 2), (3,))


def test_the_bundled_dimensions_are_read() -> None:
    raw = changed(
        text={"max_context": 1024, "prefix_attn": 257},
        vision={"crop_size": 224, "overlap_margin": 2, "max_crops": 4},
    )
    config = read_config({"name": "glint", "revision": "2025-06-21", **raw})
    assert config.vision.grid == 16
    assert (config.vision.max_crops, config.vision.overlap_margin, config.text.max_context) == (4, 2, 1024)
    assert tensor_shapes(config)["vision.pos_emb"] == (1, 256, 32)


def test_sections_under_config_and_a_missing_number() -> None:
    raw = micro_config()
    del raw["text"]["n_layers"]
    config = read_config({"model_type": "moondream2", "config": raw})
    assert config.text.dim == 64
    assert config.text.n_layers == 24


def test_templates_name_the_skills_a_model_has() -> None:
    templates = {"caption": {"short": [1, 2]}, "query": {"prefix": [1], "suffix": [3]}}
    config = read_config(changed(tokenizer={"templates": templates}))
    assert config.tokenizer.templates.caption == {"short": (1, 2)}
    assert config.tokenizer.templates.query == Template((1,), (3,))
    assert config.tokenizer.templates.detect is None


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"model_type": "llava"}, ["llava"]),
        ({"revision": "2024-08-26"}, ["2024-08-26", "2025-06-21", "moondream3"]),
        (changed(text={"moe": {"num_experts": 3, "experts_per_token": 4}}), ["chooses 4 of 3"]),
        (changed(text={"moe": {"num_experts": 0}}), ["text.moe.num_experts is 0"]),
        (changed(text={"moe": [8]}), ["text.moe is not an object"]),
        (changed(text={"tau": "swish"}), ["text.tau is 'swish'", "none, erf, tanh"]),
        (changed(text={"max_context": 32769}), ["max_context is 32769", "32768"]),
        (changed(region={"heads": True, "sizes": []}), ["region.heads is True", "region.sizes is []"]),
        (changed(text={"n_kv_heads": 2}), ["n_kv_heads 2", "grouped-query"]),
        (changed(text={"dim": "64"}), ["text.dim is '64'"]),
        (changed(text={"n_layers": 0, "n_heads": True}), ["n_layers is 0", "n_heads is True"]),
        (changed(text={"prefix_attn": 18}), ["prefix_attn 18", "1 + 4^2"]),
        (changed(text={"max_context": 17}), ["max_context 17"]),
        (changed(vision={"crop_size": 57}), ["crop_size 57", "multiple"]),
        (changed(vision={"overlap_margin": 2}), ["overlap_margin 2"]),
        (changed(vision={"proj_out_dim": 32}), ["proj_out_dim 32", "text.dim 64"]),
        (changed(tokenizer={"coord_id": 128}), ["coord_id 128", "vocabulary of 128"]),
        (changed(tokenizer={"templates": {"query": {"prefix": [1]}}}), ["templates", "suffix"]),
        (changed(tokenizer={"templates": {"caption": {"short": ["a"]}}}), ["templates", "'a'"]),
        ({**micro_config(), "region": [1]}, ["region is not an object"]),
    ],
)
def test_what_is_wrong_is_named(raw: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidCheckpoint) as caught:
        read_config(raw)
    for word in words:
        assert word in str(caught.value)


def test_all_faults_are_named_at_once() -> None:
    raw = changed(text={"dim": -1}, vision={"crop_size": None, "enc_dim": 1.5}, region={"inner_dim": []})
    with pytest.raises(InvalidCheckpoint) as caught:
        read_config(raw)
    for word in ("text.dim", "vision.enc_dim", "region.inner_dim"):
        assert word in str(caught.value)
    assert "crop_size" not in str(caught.value), "null means the default"


@pytest.mark.parametrize(
    ("revision", "least", "most"), [("2025-06-21", 731, 2048), ("moondream3", 731, 32768), ("moondream3.1", 731, 32768)]
)
def test_a_context_can_be_chosen(revision, least, most):
    config = REVISIONS[revision]
    for length in (least, 1500, most):
        chosen = with_context(config, length)
        assert chosen.text.max_context == length
        assert replace(chosen, text=replace(chosen.text, max_context=config.text.max_context)) == config
    for length in (least - 1, most + 1):
        with pytest.raises(InvalidRequest, match=f"from 731 .* to {most} ") as raised:
            with_context(config, length)
        assert raised.value.param == "max_context"


NUMBERS = [
    (section, f.name)
    for section, kind in (("text", TextConfig), ("vision", VisionConfig), ("region", RegionConfig))
    for f in fields(kind)
    if f.type in ("int", "float")
]


def test_every_number_has_a_least_and_a_most() -> None:
    """Counts are looped over and widths allocated: none is taken without bound, and none that is not finite."""
    tested = [*NUMBERS, *(("moe", f.name) for f in fields(MoeConfig))]
    tested += [("tokenizer", f.name) for f in fields(TokenizerConfig) if f.name != "templates"]
    assert len(tested) == 38
    for section, name in tested:
        low, high = bounds(name)
        assert high <= 2**20 or name == "rope_theta"
        wrong = [low - 1, 10**9 if high < 10**9 else 10**30, 10**400, math.inf, -math.inf, math.nan, "x", True, []]
        for value in wrong:
            raw = changed(text={"moe": {name: value}}) if section == "moe" else changed(**{section: {name: value}})
            with pytest.raises(InvalidCheckpoint) as told:
                read_config(raw, where="/models/x/config.json")
            wanted = (
                rf"/models/x/config\.json: (text\.)?{section}\.{name} is .+, expected a (whole )?number from {low} to"
            )
            assert re.match(wanted, str(told.value)), str(told.value)


def test_a_billion_layers_are_refused_with_field_value_and_limit() -> None:
    with pytest.raises(InvalidCheckpoint, match=r"text\.n_layers is 1000000000, expected a whole number from 1 to 256"):
        read_config(changed(text={"n_layers": 10**9}))
    with pytest.raises(InvalidCheckpoint, match=r"vision\.max_crops is 1000000, expected a whole number from 1 to 64"):
        read_config(changed(vision={"max_crops": 10**6}))
    with pytest.raises(InvalidCheckpoint, match=r"text\.rope_theta is inf, expected a number from 1 to 1000000000000"):
        read_config(changed(text={"rope_theta": math.inf}))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"config": [1]}, "config is [1], expected an object"),
        ({"revision": ["2025-06-21"]}, "revision ['2025-06-21'] is not supported"),
        ({"model_type": {}}, "model_type {} is not supported"),
        ({"tokenizer": {"templates": {"caption": {str(i): [1] for i in range(17)}}}}, "17 lengths of captions"),
        ({"tokenizer": {"templates": {"point": {"prefix": [1] * 65, "suffix": []}}}}, "at most 64 token ids"),
        ({"tokenizer": {"templates": {"point": {"prefix": "12", "suffix": []}}}}, "at most 64 token ids"),
        ({"tokenizer": {"templates": {"point": {"prefix": [True], "suffix": []}}}}, "expected token ids"),
    ],
)
def test_other_values_of_the_wrong_kind(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=re.escape(words)):
        read_config(raw)
