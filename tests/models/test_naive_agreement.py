"""Drawn tiny models of both generations against the naive implementation: numbers in float32, and whole answers.

Answers come from the engine at depth 2 over the rehearsing CPU device, all programs in one batch.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fakes.refereed import Refereed
from tests.fakes.scene import Entry, Stage
from tests.fakes.sim_clock import SimClock
from tests.models.naive_moondream import ANSWER, COORD, END, SIZE, Naive, Row
from torch import Tensor

from gapless.config import EngineConfig, HostDeviceConfig
from gapless.constrain.masks import TableMasks
from gapless.constrain.table import build_table
from gapless.device.host import HostDevice
from gapless.engine.build import Engine
from gapless.engine.mailbox import ThreadMailbox
from gapless.kernels.graphed import Graphed
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.moondream.weights_map import OPTIONAL, tensor_shapes
from gapless.records import Inset, Picture, Prompt, Request, Sampling, Token
from gapless.skills.base import SkillContext
from gapless.skills.gaze import gaze
from gapless.skills.query import query

TOLERANCE = 5e-6
VOCAB = 40
PROGRAMS = ("text", "reason", "point", "forced-point", "detect", "segment", "segment")
NEAR = 1e-4
"""Where two choices are this near, float32 may choose the other one: such an answer is compared up to there."""
PLAIN = (-1.0, -1.0)


@st.composite
def configs(draw: st.DrawFn, tau: str, revision: str | None = None) -> dict[str, Any]:
    """A config.json with every number given."""
    heads, width = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([4, 8, 12]))
    dim, layers, grid = heads * width, draw(st.integers(1, 3)), draw(st.sampled_from([2, 3]))
    enc_heads = draw(st.integers(1, 2))
    text: dict[str, Any] = {
        "dim": dim, "ff_dim": draw(st.sampled_from([8, 20])), "n_layers": layers, "vocab_size": VOCAB,
        "max_context": draw(st.sampled_from([96, 200, 4096])), "n_heads": heads, "n_kv_heads": heads,
        "prefix_attn": grid**2 + 1, "rope_theta": draw(st.sampled_from([1e4, 1.5e6])),
        "tau": tau,
    }  # fmt: skip
    revision = revision or draw(st.sampled_from(["2025-06-21", "moondream3"]))
    if revision == "moondream3":
        experts = draw(st.integers(1, 6))
        text["moe"] = {
            "num_experts": experts, "start_layer": draw(st.integers(0, layers)),
            "experts_per_token": draw(st.integers(1, experts)), "expert_inner_dim": draw(st.sampled_from([4, 12])),
        }  # fmt: skip
    return {
        "revision": revision,
        "text": text,
        "vision": {
            "enc_dim": 8 * enc_heads, "enc_patch_size": 2, "enc_n_layers": draw(st.integers(1, 2)), "enc_ff_dim": 12,
            "enc_n_heads": enc_heads, "proj_out_dim": dim, "proj_inner_dim": 16, "crop_size": 2 * grid,
            "in_channels": 3, "max_crops": 4, "overlap_margin": draw(st.integers(0, (grid - 1) // 2)),
        },
        "region": {
            "dim": dim, "coord_feat_dim": 8, "coord_out_dim": draw(st.sampled_from([16, 64])), "size_feat_dim": 12,
            "size_out_dim": draw(st.sampled_from([32, 64])), "inner_dim": 16,
            "heads": draw(st.sampled_from(["mlp", "linear"])), "sizes": draw(st.sampled_from(["log", "linear"])),
        },
        "tokenizer": {
            "templates": {name: {"prefix": [1, 30, 2], "suffix": [3]} for name in ("query", "detect", "point")}
        },
    }  # fmt: skip


def drawn(raw: dict[str, Any], seed: int, bare: bool) -> dict[str, Tensor]:
    """Weights that keep activations about as large as they are; `bare`: without what a checkpoint may lack."""
    g = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(read_config(raw)).items():
        noise = torch.randn(shape, generator=g)
        if name.endswith(("ln.weight", "ln1.weight", "ln2.weight")):
            noise = 1 + 0.2 * noise
        elif name.endswith(".bias"):
            noise = 0.3 * noise
        elif name.endswith((".weight", "wq", "wv")):
            noise = noise * (1.3 / shape[-1] ** 0.5)
        tensors[name] = noise
    tensors["text.lm_head.bias"][[END, COORD, SIZE]] += torch.tensor([0.5, 1.0, 1.0])
    return {name: t for name, t in tensors.items() if not (bare and name in OPTIONAL)}


def picture_of(raw: dict[str, Any], seed: int) -> Picture:
    tiling, side = ((1, 1), (1, 2), (2, 2), (3, 1))[seed % 4], raw["vision"]["crop_size"]
    crops = np.random.default_rng(seed).integers(0, 256, (1 + tiling[0] * tiling[1], side, side, 3), dtype=np.uint8)
    return Picture(f"{seed:064x}", crops, tiling, side, side)


def off(actual: Tensor, right: Any) -> float:
    right = torch.as_tensor(np.array(right))
    return float((actual.double() - right).norm() / right.norm())


def made(raw: dict[str, Any], seed: int, bare: bool, kernels: Graphed | None = None) -> tuple[Moondream, Naive]:
    tensors = drawn(raw, seed, bare)
    naive = Naive(raw, {name: t.numpy() for name, t in tensors.items()})
    return Moondream(read_config(copy.deepcopy(raw)), tensors, kernels), naive


settled = settings(
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SETS = {"reference": None, "graphed": Graphed(), "fixed rows": Graphed(16)}
TAUS = ("none", "erf", "tanh")
SEEDS = st.integers(0, 1 << 30)


@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("tau", TAUS)
@settings(settled, max_examples=6)
@given(st.data(), SEEDS, st.booleans())
def test_numbers(tau: str, kernels: str, data: st.DataObject, seed: int, bare: bool) -> None:
    check_numbers(data.draw(configs(tau)), seed, bare, SETS[kernels])


@pytest.mark.slow
@pytest.mark.parametrize("kernels", SETS)
@pytest.mark.parametrize("tau", TAUS)
@settings(settled, max_examples=100)
@given(st.data(), SEEDS, st.booleans())
def test_many_numbers(tau: str, kernels: str, data: st.DataObject, seed: int, bare: bool) -> None:
    check_numbers(data.draw(configs(tau)), seed, bare, SETS[kernels])


def check_numbers(raw: dict[str, Any], seed: int, bare: bool, kernels: Graphed | None) -> None:
    """A picture in front, a prompt with places, a picture in its midst, and all heads."""
    with torch.inference_mode():
        m, naive = made(raw, seed, bare, kernels)
        fronts = [picture_of(raw, seed), picture_of(raw, seed + 1)]
        seen = [m.encode_picture(torch.from_numpy(p.crops), p.tiling) for p in fronts]
        right = [naive.picture(p.crops, p.tiling) for p in fronts]
        assert off(torch.cat(seen), right[0] + right[1]) < TOLERANCE
        rng = np.random.default_rng(seed)
        ids, values = [*rng.integers(10, VOCAB, 5).tolist(), 5, 6, 5], [PLAIN] * 5 + [(0.25, -1.0), (0.5, 0.125), PLAIN]
        cache, table = m.new_cache(24, 4), torch.from_numpy(rng.permutation(23) + 1)
        m.prefill_prefix(seen[0], cache, table)
        at = naive.text["prefix_attn"]
        places = torch.arange(at, at + 8)
        hidden = [m.forward(m.embed(torch.tensor(ids), torch.tensor(values)), places, table[None], cache)]
        m.prefill_inset(seen[1], at + 8, cache, table)
        last = torch.tensor([at + 8 + len(right[1])])
        hidden.append(m.forward(m.embed(torch.tensor([9]), torch.tensor([PLAIN])), last, table[None], cache))
        rows = [Row(naive.w["text.wte"][0], 0), *(Row(x, 0) for x in right[0])]
        rows += [naive.word(i) for i in ids[:5]] + [naive.place(0.25), naive.place(0.5, 0.125), naive.word(5)]
        rows += [Row(x, 1) for x in right[1]] + [naive.word(9)]
        truth = naive.hidden(rows)
        truth = truth[at : at + 8] + truth[-1:]
        h = torch.cat(hidden)
        assert off(h, truth) < TOLERANCE
        assert off(m.logits(h), [naive.logits(x) for x in truth]) < TOLERANCE
        coords, sizes = [naive.coord(x) for x in truth], [naive.size(x) for x in truth]
        sure = [i for i in range(9) if coords[i][1] > NEAR and sizes[i][1] > NEAR]
        assert len(sure) > 4
        assert off(m.coord_value(h)[sure] + 1, [coords[i][0] + 1 for i in sure]) < TOLERANCE
        assert off(m.size_value(h)[sure], [sizes[i][0] for i in sure]) < TOLERANCE


def requests(raw: dict[str, Any], seed: int, insets: bool) -> list[Request]:
    """One of each program; some without a picture, some with one inside."""
    rng, out = np.random.default_rng(seed), []
    for number, program in enumerate(PROGRAMS, start=1):
        front = picture_of(raw, seed + number % 2) if rng.random() < 0.7 else None
        ids = [*([] if front else [0]), *rng.integers(10, VOCAB, 3).tolist(), 5, *rng.integers(1, VOCAB, 2).tolist()]
        values: list[tuple[float, ...]] = [()] * len(ids)
        values[ids.index(5)] = (0.375,)
        inside: tuple[Inset, ...] = ()
        if insets and rng.random() < 0.5:
            inside = (Inset(len(ids), picture_of(raw, seed + 7)),)
            ids += [0] * (raw["text"]["prefix_attn"] - 1) + [11]
            values += [()] * (raw["text"]["prefix_attn"] - 1) + [()]
        sampling = Sampling(max_tokens=14 if program == "segment" else int(rng.integers(5, 9)), max_objects=2)
        out.append(Request(number, Prompt(tuple(ids), tuple(values), front, inside), program, sampling))
    return out


def rows_of(naive: Naive, prompt: Prompt) -> list[Row]:
    rows: list[Row] = []
    if prompt.picture is not None:
        block = naive.picture(prompt.picture.crops, prompt.picture.tiling)
        rows = [Row(x, 0) for x in (naive.w["text.wte"][0], *block)]
    inside = {inset.at: inset.picture for inset in prompt.insets}
    skip = 0
    for at, (id, value) in enumerate(zip(prompt.ids, prompt.values, strict=True)):
        if at in inside:
            block = naive.picture(inside[at].crops, inside[at].tiling)
            rows += [Row(x, 1 + at) for x in block]
            skip = len(block)
        if skip:
            skip -= 1
        else:
            rows.append(naive.place(*value) if value else naive.word(id))
    return rows


@pytest.mark.parametrize("tau", TAUS)
@settings(settled, max_examples=2)
@given(st.data(), SEEDS, st.booleans())
def test_answers(tau: str, data: st.DataObject, seed: int, bare: bool) -> None:
    check_answers(data.draw(configs(tau)), seed, bare)


@pytest.mark.slow
@pytest.mark.parametrize("tau", TAUS)
@settings(settled, max_examples=40)
@given(st.data(), SEEDS, st.booleans())
def test_many_answers(tau: str, data: st.DataObject, seed: int, bare: bool) -> None:
    check_answers(data.draw(configs(tau)), seed, bare)


class Letters:
    """A tokenizer for the skills: each letter an id of its own that is no special one."""

    def encode(self, text: str, param: str = "") -> tuple[int, ...]:
        return tuple(10 + ord(letter) % 30 for letter in text)

    def fewest(self, text: str) -> int:
        return len(text)

    def piece(self, id: int) -> bytes:
        return bytes([65 + id]) if id > 9 else b""

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.piece(id) for id in ids).decode()


@pytest.mark.parametrize("ends", [False, True], ids=["cut off", "ends"])
@pytest.mark.parametrize("revision", ["2025-06-21", "moondream3"])
@settings(settled, max_examples=2)
@given(st.data(), SEEDS)
def test_reasonings(revision: str, ends: bool, data: st.DataObject, seed: int) -> None:
    """Thoughts that point, with references in the question; `max_tokens` for the thoughts, and again for the answer.

    Thoughts that are cut off are followed by the answer id all the same. The result is told apart by hand.
    """
    raw = data.draw(configs(data.draw(st.sampled_from(TAUS)), revision))
    tensors = drawn(raw, seed, False)
    tensors["text.lm_head.bias"][[COORD, 7, 9]] += torch.tensor([3.0 if ends else 7.0, 2.0, 2.0])
    tensors["text.lm_head.bias"][[END, SIZE]] -= 1.0
    tensors["text.lm_head.bias"][ANSWER] += 5.0 if ends else -50.0
    m = Moondream(read_config(copy.deepcopy(raw)), tensors)
    naive = Naive(raw, {name: t.numpy() for name, t in tensors.items()})
    context = SkillContext(Templates.of(m.config), Letters(), m.prefix, m.max_context, revision)  # type: ignore[arg-type]
    refs = [[0.25, 0.5], [0.125, 0.25, 0.625, 0.75]]
    settings_ = {"temperature": 0, "max_tokens": 9}
    ask = query(context, picture_of(raw, seed), "Is it?", reasoning=True, spatial_refs=refs, settings=settings_)
    rows = rows_of(naive, ask.prompt)[m.prefix :]
    places = [(0.25,), (0.5,), (0.375,), (0.5,), (0.5, 0.5)]
    last = (4,) if revision == "moondream3" else (3, 4)
    words = [naive.word(i) for i in (1, 30, 2)], [naive.word(i) for i in (*Letters().encode("Is it?"), *last)]
    right = [*words[0], *(naive.place(*p) for p in places), *words[1]]
    assert len(rows) == len(right) and all(np.array_equal(a.x, b.x) for a, b in zip(rows, right, strict=True))
    (tokens,) = answered(m, naive, [Request(1, ask.prompt, ask.program, ask.sampling)])
    thoughts = [t.id for t in tokens].index(ANSWER)
    assert thoughts == 9 or (ends and thoughts < 9)
    assert thoughts < len(tokens) - 1 and len(tokens) - 1 - thoughts <= 9
    ask.reader.feed(tokens)
    ask.reader.finish()
    said = [t.id for t in tokens[thoughts + 1 :]]
    reasoning = told_apart(tokens[:thoughts])
    assert ask.reader.result() == {"answer": Letters().decode(said), "reasoning": reasoning}
    assert ends or reasoning["grounding"]


def told_apart(tokens: Sequence[Token]) -> dict[str, Any]:
    """A reasoning from its tokens, with an index for each token's stretch."""
    starts = list(itertools.accumulate(t.id in (7, 9) for t in tokens))
    text = "".join(Letters().decode([t.id]) for t in tokens)
    grounding = []
    for stretch in sorted(set(starts)):
        inside = [t for t, own in zip(tokens, starts, strict=True) if own == stretch]
        before = sum(t.id > 9 for t, own in zip(tokens, starts, strict=True) if own < stretch)
        values = [t.values[0] for t in inside if t.id == COORD]
        points = [[values[i], values[i + 1]] for i in range(0, len(values) - 1, 2)]
        if points:
            end = before + sum(t.id > 9 for t in inside)
            grounding.append({"start_idx": before, "end_idx": end, "points": points})
    return {"text": text, "grounding": grounding}


@pytest.mark.parametrize("revision", ["2025-06-21", "moondream3"])
@settings(settled, max_examples=2)
@given(st.data(), SEEDS)
def test_gazes(revision: str, data: st.DataObject, seed: int) -> None:
    """As the skill asks: an eye's two coordinates are embedded as places, and one point or none comes back."""
    raw = data.draw(configs(data.draw(st.sampled_from(TAUS)), revision))
    m, naive = made(raw, seed, False)
    context = SkillContext(Templates.of(m.config), Letters(), m.prefix, m.max_context, revision)  # type: ignore[arg-type]
    asks = [gaze(context, picture_of(raw, seed), (0.25, 0.625), force=force) for force in (False, True)]
    asked = [Request(i, ask.prompt, ask.program, ask.sampling) for i, ask in enumerate(asks, start=1)]
    words = [naive.word(i) for i in Letters().encode("\n\nPoint:")], [naive.word(i) for i in (1, 30, 2)]
    after = (
        [naive.word(i) for i in Letters().encode(" gaze\n\n")],
        [naive.word(i) for i in (*Letters().encode(" gaze"), 3)],
    )
    third = revision == "moondream3"
    rows = [*words[third], naive.place(0.25), naive.place(0.625), *after[third]]
    built = rows_of(naive, asks[0].prompt)[m.prefix :]
    assert len(built) == len(rows) and all(np.array_equal(a.x, b.x) for a, b in zip(built, rows, strict=True))
    for ask, tokens in zip(asks, answered(m, naive, asked), strict=True):
        ask.reader.feed(tokens)
        values = [t.values[0] for t in tokens if t.values]
        assert ask.reader.result() == {"gaze": {"x": values[0], "y": values[1]} if values else None}
        assert len(values) == 2 or (not values and ask.program == "point" and [t.id for t in tokens] == [END])


def check_answers(raw: dict[str, Any], seed: int, bare: bool) -> None:
    m, naive = made(raw, seed, bare)
    answered(m, naive, requests(raw, seed, insets=True))


def answered(m: Moondream, naive: Naive, asked: list[Request]) -> list[tuple[Token, ...]]:
    """What the engine says to all of them at once, after a look whether it is right."""
    table = build_table(Templates.of(m.config).rules())
    config = EngineConfig(depth=2, max_rows=4, page_size=4, pages=120, lookahead=8)
    clock, mailbox = SimClock(), ThreadMailbox()
    device = Refereed(HostDevice(m, table, config, HostDeviceConfig(threads=1, poison=True)), table)
    try:
        stage = Stage(Engine(device, table, config, TableMasks(), mailbox, clock), mailbox, clock)
        heard = stage.play([Entry(request) for request in asked])
    finally:
        device.close()
    for request in asked:
        one, sampling = heard[request.id], request.sampling
        assert one.finish is not None and one.finish.error is None
        rows = rows_of(naive, request.prompt)
        right = naive.answer(request.program, rows, sampling.max_tokens, sampling.max_objects)
        certain = next((i for i, said in enumerate(right) if said.gap < NEAR), len(right))
        assert [t.id for t in one.tokens[:certain]] == [said.id for said in right[:certain]]
        assert len(one.tokens) == len(right) or certain < len(right)
        for token, said in zip(one.tokens[:certain], right, strict=False):
            assert np.allclose(token.values, said.values, rtol=TOLERANCE)
    return [tuple(heard[request.id].tokens) for request in asked]
