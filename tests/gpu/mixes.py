"""Mixes of requests for models of the Moondream kind: every skill, seeded.

What flows in: a model's config, a seed, a number. What flows out: scene entries, as for the hash model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.fakes.scene import Entry, with_insets
from tokenizers import Tokenizer

from gapless.bench.samples import read_samples
from gapless.config import ImageLimits
from gapless.constrain.table import PROGRAMS
from gapless.images.crops import CropSpec, cut
from gapless.images.decode import load_picture
from gapless.models.moondream.config import MoondreamConfig, TemplatesConfig
from gapless.records import Picture, Prompt, Request, Sampling

GLINT_INSET = 256
"""Positions of a picture of the bundled model."""
FIRST_WORD = 10
"""Ids below have meanings of their own."""


def mix(
    config: MoondreamConfig,
    seed: int,
    count: int,
    *,
    first: int = 1,
    greedy: bool = False,
    cancels: float = 0.0,
    host: float = 0.0,
    spread: int = 20,
    pictures: int = 3,
    longest: int = 40,
    insets: bool = False,
) -> list[Entry]:
    """`count` requests with ids from `first` on, arriving before ticks 0..spread. `greedy`: all of temperature 0, with
    the two best logprobs; `cancels`, `host`: the shares that are cancelled, and whose masks are built on the host;
    `insets`: up to two of the pictures stand inside each prompt too."""
    rng = random.Random(seed)
    shown = [_picture(config, seed * 1000 + i) for i in range(pictures)]
    entries = []
    for number in range(first, first + count):
        prompt = _prompt(config, rng, rng.choice(shown) if rng.random() < 0.8 else None)
        if insets:
            inside = [rng.choice(shown) for _ in range(rng.randrange(3))]
            prompt = with_insets(prompt, inside, config.text.prefix_attn - 1, rng)
        request = Request(number, prompt, rng.choice(PROGRAMS), _sampling(rng, greedy, longest))
        arrives = rng.randrange(spread + 1)
        cancelled = arrives + rng.randrange(60) if rng.random() < cancels else None
        entries.append(Entry(replace(request, host_masked=rng.random() < host), arrives, cancelled))
    return entries


def masked(entries: Sequence[Entry], share: float) -> list[Entry]:
    """The same requests, `share` of them with masks built on the host: the same rules, so the same answers."""
    rng = random.Random(7)
    return [replace(e, request=replace(e.request, host_masked=rng.random() < share)) for e in entries]


def _picture(config: MoondreamConfig, seed: int) -> Picture:
    side, tiling = config.vision.crop_size, (1, 1 + seed % 2)
    count = 1 + tiling[0] * tiling[1]
    crops = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return Picture(f"{seed:064x}", crops, tiling, side * tiling[1], side)


def _prompt(config: MoondreamConfig, rng: random.Random, picture: Picture | None) -> Prompt:
    tokenizer = config.tokenizer
    ids = [rng.randrange(FIRST_WORD, config.text.vocab_size) for _ in range(rng.randrange(1, 14))]
    values: list[tuple[float, ...]] = [() for _ in ids]
    if rng.random() < 0.3:
        bins = [rng.randrange(1, 1024) / 1024 for _ in range(4)]
        ids = [tokenizer.coord_id, tokenizer.coord_id, tokenizer.size_id, *ids]
        values = [(bins[0],), (bins[1],), (bins[2], bins[3]), *values]
    if picture is None:
        ids, values = [tokenizer.bos_id, *ids], [(), *values]
    return Prompt(tuple(ids), tuple(values), picture)


def _sampling(rng: random.Random, greedy: bool, longest: int) -> Sampling:
    drawn = Sampling(
        temperature=rng.choice([0.0, 0.0, 0.6, 1.3]),
        top_p=rng.choice([1.0, 0.9, 0.3]),
        max_tokens=rng.choice([1, 5, 9, 22, longest, longest]),
        max_objects=rng.choice([1, 3, 6, 10]),
        seed=rng.randrange(1 << 40),
        top_logprobs=rng.choice([-1, -1, 0, 3]),
    )
    return replace(drawn, temperature=0.0, top_logprobs=2) if greedy else drawn


def asked(config: MoondreamConfig, tokenizer: Tokenizer, *, greedy: bool) -> list[Entry]:
    """The bundled samples' questions over their pictures, with the templates the model learned: answers that mean
    something, long captions among them. Every third one is sampled unless `greedy`."""
    vision = config.vision
    spec = CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)
    questions = read_samples()
    pictures = {path: _cut(path, spec) for path in {question.picture for question in questions}}
    entries = []
    for number, question in enumerate(questions, start=1):
        skill, text = question.ask.skill, "long" if question.ask.skill == "caption" else question.ask.text
        ids = _templated(config.tokenizer.templates, tokenizer, skill, text)
        hot = 0.0 if greedy or number % 3 else 0.7
        sampling = Sampling(temperature=hot, top_p=0.9, max_tokens=60, max_objects=9, seed=number, top_logprobs=2)
        program = skill if skill in PROGRAMS else "text"
        prompt = Prompt(ids, ((),) * len(ids), pictures[question.picture])
        entries.append(Entry(Request(number, prompt, program, sampling), number % 12))
    return entries


def beside(entries: Sequence[Entry]) -> list[Entry]:
    """The same questions, every second one with the next one's picture inside its prompt."""
    pictures = [entry.request.prompt.picture for entry in entries]
    changed = []
    for i, entry in enumerate(entries):
        prompt, other = entry.request.prompt, pictures[(i + 1) % len(pictures)]
        if i % 2 and other is not None:
            prompt = with_insets(prompt, [other], GLINT_INSET, random.Random(i))
        changed.append(replace(entry, request=replace(entry.request, prompt=prompt)))
    return changed


def _cut(path: Path, spec: CropSpec) -> Picture:
    rgb = load_picture(path, ImageLimits())
    crops, tiles = cut(rgb, spec)
    return Picture(path.name, crops, tiles, rgb.shape[1], rgb.shape[0])


def _templated(templates: TemplatesConfig, tokenizer: Tokenizer, skill: str, text: str) -> tuple[int, ...]:
    if skill == "caption":
        assert templates.caption is not None
        return tuple(templates.caption[text])
    wrap = getattr(templates, skill)
    return (*wrap.prefix, *tokenizer.encode(f" {text}").ids, *wrap.suffix)
