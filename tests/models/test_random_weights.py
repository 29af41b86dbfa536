"""Random weights: right names and shapes, activations that stay in range, and ends when they are asked for."""

import pytest
import torch
from tests.fakes.capture_watch import DEVICE
from tests.fakes.micro import micro_crops

from gapless.errors import InvalidRequest
from gapless.kernels import reference
from gapless.models.moondream.config import MoondreamConfig, RegionConfig, TextConfig, TokenizerConfig, VisionConfig
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import random_config, random_tensors
from gapless.models.moondream.templates import Templates
from gapless.models.moondream.weights_map import tensor_shapes
from gapless.models.registry import Loaded, random_model

PLAIN = torch.full((1, 2), -1.0)


def hidden_of(m: Moondream, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        cache, table = m.new_cache(20, 16), torch.arange(1, 20)
        m.prefill_prefix(m.encode_picture(torch.from_numpy(micro_crops()), (1, 2)), cache, table)
        x = m.embed(ids, PLAIN.expand(len(ids), -1))
        return m.forward(x, torch.arange(17, 17 + len(ids)), table.expand(len(ids), -1), cache)


def small(**settings: float) -> tuple[Moondream, Loaded]:
    loaded = random_model("small", "cpu", "bfloat16", seed=3, end_bias=settings.get("end_bias", -100.0))
    assert isinstance(loaded.model, Moondream)
    return loaded.model, loaded


def test_the_published_dimensions_are_moondream_2s() -> None:
    config = random_config("moondream-2")
    expected = MoondreamConfig(TextConfig(), VisionConfig(), RegionConfig(), TokenizerConfig())
    assert config == expected
    count = sum(torch.empty(shape, device=DEVICE).numel() for shape in tensor_shapes(config).values())
    assert 1.9e9 < count < 2.0e9


def test_a_loaded_model_says_what_it_is() -> None:
    m, loaded = small()
    assert loaded.name == "small (random weights)"
    assert loaded.tokenizer_path.parts[-2:] == ("glint", "tokenizer.json")
    assert (m.dtype, m.device, m.kernels) == (torch.bfloat16, torch.device("cpu"), reference)
    rules = Templates.of(loaded.config).rules()
    assert (rules.vocab, rules.end, rules.coord, rules.size) == (2048, 0, 5, 6)
    with pytest.raises(InvalidRequest, match="no random model 'huge'; use moondream-2 or small"):
        random_model("huge")


def test_a_seed_is_a_model() -> None:
    config, cpu = random_config("small"), torch.device("cpu")
    one, same, other = (random_tensors(config, cpu, torch.float32, seed) for seed in (1, 1, 2))
    assert {name: tuple(t.shape) for name, t in one.items()} == tensor_shapes(config)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["text.wte"], other["text.wte"])


def test_activations_keep_their_size_through_many_layers() -> None:
    base = random_config("small")
    text = TextConfig(**{f: getattr(base.text, f) for f in TextConfig.__slots__} | {"n_layers": 24})
    config = MoondreamConfig(text, base.vision, base.region, base.tokenizer)
    m = Moondream(config, random_tensors(config, torch.device("cpu"), torch.bfloat16, seed=1))
    hidden = hidden_of(m, torch.arange(100, 140))
    logits = m.logits(hidden)
    assert torch.isfinite(logits).all()
    assert 0.5 < hidden.float().std() < 4
    assert 0.7 < logits[:, 1:].std() < 1.4
    assert logits.argmax(dim=-1).unique().numel() > 20


@pytest.mark.parametrize(("end_bias", "ends"), [(-100.0, False), (100.0, True)])
def test_the_bias_says_when_answers_end(end_bias: float, ends: bool) -> None:
    m, _ = small(end_bias=end_bias)
    chosen = m.logits(hidden_of(m, torch.arange(100, 140))).argmax(dim=-1)
    assert bool((chosen == 0).all()) is ends
    assert bool((chosen == 0).any()) is ends
