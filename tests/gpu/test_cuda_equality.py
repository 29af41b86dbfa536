"""Real arithmetic on a GPU: the answers are those of the blocking engine, whatever the depth, graphs and constraints.

In float32 with one pinned bucket they are the same, bit for bit. In bf16 with every bucket they may differ from a
near-tie on; divergences are judged one by one, counted and printed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.scene import Entry
from tests.gpu.mixes import asked, beside, masked, mix
from tests.gpu.near_tie import Reader, divergence, last_hidden
from tests.gpu.stage import PINNED, answers, cuda_stage, prove
from tokenizers import Tokenizer

from gapless.constrain.table import build_table
from gapless.kernels.choose import choose
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.registry import load_model
from gapless.weights.folder import TOKENIZER
from gapless.weights.hub import locate

pytestmark = pytest.mark.gpu
COUNT, ROWS = 24, 8
AMPLE, TINY = 600, 16
END_BIAS = 0.0
"""Of the micro model: its answers are long enough to run out of pages."""
SEED = 3
RUNS = ((1, True, 0.0), (2, True, 0.0), (2, True, 0.5), (2, False, 0.0), (3, True, 0.0), (4, True, 0.0))
"""Depth, graphs, share of host masks of the bf16 runs."""


def micro(dtype: torch.dtype, exact: bool, third: bool = False) -> Moondream:
    raw, device = micro_config(third=third), torch.device("cuda")
    tensors = {name: t.to(device, dtype) for name, t in micro_tensors(raw, end_bias=END_BIAS).items()}
    return Moondream(read_config(raw), tensors, choose(device, exact))


def micro3(dtype: torch.dtype, exact: bool) -> Moondream:
    """Of the third generation: experts and tau attention."""
    return micro(dtype, exact, third=True)


def glint(dtype: torch.dtype, exact: bool) -> Moondream:
    name = "float32" if dtype is torch.float32 else "bfloat16"
    model = load_model("glint", "cuda", name, exact=exact).model
    assert isinstance(model, Moondream)
    return model


MODELS: dict[str, Callable[[torch.dtype, bool], Moondream]] = {"micro": micro, "micro3": micro3, "glint": glint}


def scene(name: str, model: Moondream, greedy: bool) -> list[Entry]:
    """What is asked: glint is asked what it has learned, the micro model anything."""
    if name == "glint":
        folder = locate(name).folder
        return asked(model.config, Tokenizer.from_file(str(folder / TOKENIZER)), greedy=greedy)
    return mix(model.config, SEED, COUNT, greedy=greedy)


def table_for(model: Moondream):
    return build_table(Templates.of(model.config).rules())


@pytest.fixture(scope="module", params=sorted(MODELS))
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def exact(name):
    """A float32 model and what the blocking engine answers without graphs, with device tables."""
    model = MODELS[name](torch.float32, True)
    entries = scene(name, model, greedy=False)
    with cuda_stage(model, table_for(model), 1, graphs=False, rows=ROWS, pages=AMPLE) as played:
        right = answers(played.play(entries))
        prove(played, 1, False)
    assert len({said for said, _ in right.values()}) > len(entries) // 2, "the answers are too alike to prove anything"
    return model, entries, right


@pytest.mark.parametrize("host", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_float32_with_one_bucket_is_exact(exact, depth, graphs, host):
    if not graphs and host == 1.0:
        pytest.skip("host masks without graphs are covered at one half")
    model, entries, right = exact
    with cuda_stage(model, table_for(model), depth, graphs=graphs, rows=ROWS, pages=AMPLE) as played:
        assert answers(played.play(masked(entries, host))) == right
        prove(played, depth, graphs, landed=host < 1)
        assert (played.stage.engine.counters.parked > 0) == (host > 0)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_float32_after_preemption_is_exact(exact, name, depth):
    if name == "glint":
        pytest.skip("the bundled model's answers are too short to run out of pages")
    model, entries, right = exact
    with cuda_stage(model, table_for(model), depth, rows=ROWS, pages=TINY, lookahead=4) as played:
        assert answers(played.play(entries)) == right
        prove(played, depth, True)
        assert played.stage.engine.counters.preemptions > 0


@pytest.fixture(scope="module")
def several(name):
    """A float32 model, prompts with several pictures, and what the blocking engine answers without graphs."""
    model = MODELS[name](torch.float32, True)
    entries = mix(model.config, SEED, COUNT, insets=True) if name != "glint" else beside(scene(name, model, False))
    assert sum(len(entry.request.prompt.insets) for entry in entries) > COUNT // 2
    with cuda_stage(model, table_for(model), 1, graphs=False, rows=ROWS, pages=AMPLE) as played:
        return model, entries, answers(played.play(entries))


@pytest.mark.parametrize("pages", [AMPLE, TINY])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_several_pictures_in_a_prompt_are_exact_in_float32(several, name, depth, pages):
    if name == "glint" and pages == TINY:
        pytest.skip("one picture of the bundled model takes more than that")
    model, entries, right = several
    with cuda_stage(model, table_for(model), depth, rows=ROWS, pages=pages, lookahead=4) as played:
        assert answers(played.play(masked(entries, 0.2))) == right
        prove(played, depth, True)
        assert (played.stage.engine.counters.preemptions > 0) == (pages == TINY)


def test_several_pictures_in_a_prompt_are_read_as_on_a_cpu(several, name):
    """The hidden state that foretells the first token, fed part by part."""
    if name == "glint":
        pytest.skip("the micro models' weights are at hand on both")
    model, entries, _ = several
    raw = micro_config(third=name == "micro3")
    here = Moondream(read_config(raw), micro_tensors(raw, end_bias=END_BIAS))
    for entry in entries:
        there = last_hidden(model, entry.request, ()).cpu()
        torch.testing.assert_close(there, last_hidden(here, entry.request, ()), atol=1e-3, rtol=1e-3)


def test_bf16_differs_only_from_near_ties_on(name, record_property, capsys):
    model = MODELS[name](torch.bfloat16, False)
    table, entries = table_for(model), scene(name, model, greedy=True)
    with cuda_stage(model, table, 1, graphs=False, buckets=PINNED, rows=ROWS, pages=AMPLE) as played:
        right = played.play(entries)
        answers(right)
    tokens, found = 0, []
    for depth, graphs, host in RUNS:
        with cuda_stage(model, table, depth, graphs=graphs, buckets=None, rows=ROWS, pages=AMPLE) as played:
            heard = played.play(masked(entries, host))
            answers(heard)
            prove(played, depth, graphs)
        for entry in entries:
            id = entry.request.id
            tokens += len(heard[id].tokens)
            one = divergence(Reader(model), table, entry.request, right[id].tokens, heard[id].tokens)
            found += [] if one is None else [one]
    record_property(f"bf16_divergences_{name}", len(found))
    record_property(f"bf16_tokens_{name}", tokens)
    with capsys.disabled():
        print(f"\nbf16 {name}: {len(found)} divergences in {tokens} tokens; {[str(f) for f in found[:5]]}")
    assert not [f for f in found if not f.near]
    assert len(found) < len(RUNS) * len(entries) // 2
