"""Random weights: right names and shapes, activations that stay in range, and ends when they are asked for."""

import pytest
import torch
from tests.fakes.capture_watch import DEVICE
from tests.fakes.micro import micro_crops

from gapless.config import EngineConfig
from gapless.device.sizing import device_limits
from gapless.errors import InvalidRequest
from gapless.kernels import reference
from gapless.models.moondream.config import MoondreamConfig, RegionConfig, TextConfig, TokenizerConfig, VisionConfig
from gapless.models.moondream.layers import Experts
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.random_weights import SIZES, has_fp8, random_bytes, random_config, random_tensors
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


def small(size: str = "small", **settings: float) -> tuple[Moondream, Loaded]:
    loaded = random_model(size, "cpu", "bfloat16", seed=3, end_bias=settings.get("end_bias", -100.0))
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
    with pytest.raises(
        InvalidRequest,
        match=r"no random model 'huge'; use moondream-2 or moondream-3 or moondream-3\.1 or small or",
    ):
        random_model("huge")


def test_fp8_experts_are_the_others_rounded() -> None:
    (narrow, _), (wide, _) = small("small-3.1"), small("small-3")
    one, other = narrow.text.blocks[1].mlp, wide.text.blocks[1].mlp
    assert isinstance(one, Experts) and isinstance(other, Experts)
    for a, b in ((one.up, other.up), (one.down, other.down)):
        assert (a.values.dtype, a.values.itemsize, b.values.dtype) == (torch.float8_e4m3fn, 1, torch.bfloat16)
        for expert in range(a.count):
            near = a.wide(expert, torch.float32) - b.wide(expert, torch.float32).float()
            assert 0 < near.norm() < 2**-4 * b.values[expert].float().norm()
    assert (narrow.expert_itemsize, wide.expert_itemsize) == (1, 2)
    assert torch.equal(narrow.text.wte, wide.text.wte)
    logits = narrow.logits(hidden_of(narrow, torch.arange(100, 140)))
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits, wide.logits(hidden_of(wide, torch.arange(100, 140))))


def test_moondream_3_at_full_size_and_what_it_takes() -> None:
    """18.5 GB of bfloat16, and the same cache as Moondream 2."""
    config = random_config("moondream-3")
    shapes = tensor_shapes(config)
    assert sum(torch.empty(shape, device=DEVICE).numel() for shape in shapes.values()) == 9_268_626_928
    with torch.inference_mode():
        m = Moondream(config, {n: torch.empty(s, dtype=torch.bfloat16, device=DEVICE) for n, s in shapes.items()})
    assert m.page_bytes(1) == 196_608
    assert [isinstance(block.mlp, Experts) for block in m.text.blocks] == [False] * 4 + [True] * 20
    assert all(block.tau is not None and block.tau.gelu == "erf" for block in m.text.blocks)
    tables = [m.text.cos, m.text.sin, *(block.tau.levels for block in m.text.blocks if block.tau)]
    assert sum(t.numel() * t.itemsize for t in tables) < 10e6
    config = EngineConfig(max_rows=64)
    assert device_limits(m, config, 2**62).pages == 64 * 257 + 1
    assert device_limits(m, config, 128 * 10**9).pages == 128 * 10**9 // 4 // (16 * 196_608)


@pytest.mark.parametrize("size", ["small", "small-3"])
def test_a_seed_is_a_model(size: str) -> None:
    config, cpu = random_config(size), torch.device("cpu")
    one, same, other = (random_tensors(config, cpu, torch.float32, seed) for seed in (1, 1, 2))
    assert {name: tuple(t.shape) for name, t in one.items()} == tensor_shapes(config)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["text.wte"], other["text.wte"])


@pytest.mark.parametrize("size", ["small", "small-3"])
def test_activations_keep_their_size_through_many_layers(size: str) -> None:
    base = random_config(size)
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


@pytest.mark.parametrize("size", [size for size in SIZES if size.startswith("small")])
def test_how_much_they_will_take_is_known_beforehand(size: str) -> None:
    made = random_tensors(random_config(size), torch.device("cpu"), torch.float32, fp8=has_fp8(size))
    taken = sum(tensor.nbytes for name, tensor in made.items() if not name.endswith(".scale"))
    assert random_bytes(size, 4) == taken
