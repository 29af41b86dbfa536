"""The training model is the published architecture: names, sizes, and packed streams equal to one request at a time."""

from __future__ import annotations

import random

import pytest
import torch
from recipes.glint import prompts
from recipes.glint.ask import Ask
from recipes.glint.decode import greedy
from recipes.glint.export import LIMIT_BYTES, LIMIT_PARAMETERS, load_weights, named_tensors, save_weights
from recipes.glint.model import Glint, packed_mask, pooling
from recipes.glint.optim import Muon, split_parameters
from recipes.glint.scenes import make_scene
from recipes.glint.streams import PREFIX, Vocabulary, blank, pack_streams
from safetensors import safe_open


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary()


@pytest.fixture(scope="module")
def net(vocabulary) -> Glint:
    torch.manual_seed(0)
    return Glint(vocabulary.config).eval()


def expected_names(config) -> set[str]:
    linear = {"vision.patch_emb", "vision.post_ln", "text.post_ln", "text.lm_head"}
    linear |= {"region.coord_encoder", "region.size_encoder"}
    linear |= {f"{m}.{fc}" for m in ("vision.proj_mlp", "region.coord_decoder", "region.size_decoder")
               for fc in ("fc1", "fc2")}  # fmt: skip
    leaves = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    for i in range(config["vision"]["enc_n_layers"]):
        linear |= {f"vision.blocks.{i}.{leaf}" for leaf in (*leaves, "ln1", "ln2")}
    for i in range(config["text"]["n_layers"]):
        linear |= {f"text.blocks.{i}.{leaf}" for leaf in (*leaves, "ln")}
    names = {f"model.{n}.{end}" for n in linear for end in ("weight", "bias")}
    return names | {
        "model.vision.pos_emb",
        "model.text.wte",
        "model.region.coord_features",
        "model.region.size_features",
    }


def test_names_and_shapes(net, vocabulary, tmp_path):
    c = vocabulary.config
    tensors = named_tensors(net)
    assert set(tensors) == expected_names(c)
    assert sum(t.numel() for t in tensors.values()) <= LIMIT_PARAMETERS
    dim, inner = c["text"]["dim"], c["region"]["inner_dim"]
    assert tensors["model.region.coord_features"].shape == (1, c["region"]["coord_feat_dim"] // 2)
    assert tensors["model.region.size_features"].shape == (2, c["region"]["size_feat_dim"] // 2)
    assert tensors["model.region.size_decoder.fc2.weight"].shape == (2048, inner)
    assert tensors["model.text.blocks.0.attn.qkv.weight"].shape == (3 * dim, dim)
    path = tmp_path / "model.safetensors"
    save_weights(net, path)
    assert path.stat().st_size <= LIMIT_BYTES
    with safe_open(str(path), "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    load_weights(Glint(c), path)


def test_packed_streams_equal_single_requests(net, vocabulary):
    rng = random.Random(1)
    scene = make_scene(rng)
    some = prompts.fill(scene, rng, vocabulary, 120, 0.0)
    some.append(prompts.talk(text_only_ask(scene, vocabulary)))
    packed = blank(1, sum(len(s) for s in some) + 3)
    pack_streams(packed, 0, some, [0] * len(scene.things))
    t = {k: torch.from_numpy(v) for k, v in packed.items()}
    image = torch.randn(1, 256, vocabulary.config["text"]["dim"])
    with torch.no_grad():
        x = net.embed(t["ids"], t["coord"], t["size"])
        hidden = net.packed(image, x, t["position"], packed_mask(t["slot"], t["picture"], PREFIX).float())
        first = torch.arange(PREFIX)[None]
        _, cache = net.extend(net.prefix(image), first, None, None)
        start = 0
        for s in some:
            n = len(s)
            own = x[:, start : start + n]
            ban = torch.full((n, n), -1e9).triu(1)
            mask = torch.cat([torch.zeros(n, PREFIX), ban], 1) if s.picture else ban
            alone, _ = net.extend(
                own, t["position"][:, start : start + n], mask[None, None], cache if s.picture else None
            )
            assert torch.allclose(hidden[:, start : start + n], alone, atol=1e-4), s.skill
            start += n


def text_only_ask(scene, vocabulary):
    """An Ask whose small talk comes without a picture."""
    for seed in range(50):
        ask = Ask(scene, random.Random(seed), vocabulary)
        if not prompts.talk(Ask(scene, random.Random(seed), vocabulary)).picture:
            return ask
    raise AssertionError


def test_greedy_rows_do_not_depend_on_their_neighbours(net, vocabulary):
    scene = make_scene(random.Random(2))
    asked = [prompts.questions.count(Ask(scene, random.Random(i), vocabulary)) for i in range(3)]
    image = torch.randn(1, 256, vocabulary.config["text"]["dim"])
    together = greedy(net, image, [0, 0, 0], asked, 4)
    alone = [greedy(net, image, [0], [s], 4)[0] for s in asked]
    assert [r.ids for r in together] == [r.ids for r in alone]


def test_pooling_is_adaptive_average_pooling():
    x = torch.randn(1, 1, 28, 1)
    want = torch.nn.functional.adaptive_avg_pool2d(x, (16, 1))
    assert torch.allclose(torch.einsum("rh,abhc->abrc", pooling(28, 16), x), want, atol=1e-6)


def test_muon_moves_every_part_by_a_nearly_orthogonal_step():
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.zeros(96, 32))
    p.grad = torch.randn(96, 32)
    Muon([p], decay=0.0).step(1.0)
    for part in p.detach().chunk(3):
        values = torch.linalg.svdvals(part)
        assert values.max() < 1.5 and values.median() > 0.5


def test_every_trained_parameter_has_one_optimiser(net):
    muon, matrices, rest = split_parameters(net)
    total = sum(p.requires_grad for p in net.parameters())
    assert len({id(p) for p in [*muon, *matrices, *rest]}) == total
