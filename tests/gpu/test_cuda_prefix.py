"""The prefix cache on a GPU: exact with the hash model, freed pages poisoned; real arithmetic in float32."""

from __future__ import annotations

import pytest
import torch
from tests.equal.test_prefix_cache import HOST, SIZE, SPEC, TINY, counted, happened, scene, turned
from tests.fakes.hash_model import HashModel
from tests.fakes.hash_prompts import PackingHashModel
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.scene import expected, table_of
from tests.fakes.verdict import judge_all
from tests.gpu.mixes import mix
from tests.gpu.stage import answers, cuda_stage, prove

from gapless.constrain.table import build_table
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", [HashModel, PackingHashModel])
@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_conversations_in_few_pages_are_exact(depth, graphs, kind):
    """With prompts one by one and side by side."""
    entries, model = scene(1), kind(SPEC, device=torch.device("cuda"))
    sizes = {"pages": TINY, "page_size": SIZE, "lookahead": 8, "adapters": 2, "host": HOST}
    with cuda_stage(model, table_of(SPEC), depth, graphs=graphs, seed=depth, **sizes) as played:
        judge_all(played.play(entries), expected(SPEC, entries), entries)
        prove(played, depth, graphs, landed=graphs)
        happened(counted(played.stage, played.device, entries))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_further_turn_in_float32_says_the_same_from_the_cache_as_computed_anew(depth):
    """Real arithmetic. Rounding may differ with the length of a prompt, so all but a near-tie must be equal."""
    config = read_config(micro_config())
    model = Moondream(config, {name: t.cuda() for name, t in micro_tensors(micro_config(), end_bias=-30.0).items()})
    rules = Templates.of(config).rules()
    entries = mix(config, 3, 6, greedy=True, longest=30, spread=2)
    said = {}
    for keep in (True, False):
        with cuda_stage(model, build_table(rules), depth, rows=4, pages=200) as played:
            played.stage.engine.ledgers.prefixes._keep = keep
            first = played.play(entries)
            further = [turned(entry, first[entry.request.id].tokens, rules.end) for entry in entries]
            said[keep] = answers(played.play(further))
            cached = [one.finish.metrics.cached_tokens for one in played.stage.heard.values()]
            assert (max(cached) > model.prefix) == keep
    same = sum(said[True][number] == said[False][number] for number in said[True])
    assert same >= len(said[True]) - 1
