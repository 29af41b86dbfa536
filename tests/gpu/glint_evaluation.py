"""glint's whole held-out evaluation on a GPU: by the kernels, many at once, beside torch's alone, answer by answer.

    PYTHONPATH=src:. python3 -m tests.gpu.glint_evaluation --out FILE             # all 2,000 scenes, 28,013 questions
    PYTHONPATH=src:. python3 -m tests.gpu.glint_evaluation --scenes 4 --device cpu  # the same steps without a GPU

Both are asked the questions of the committed evaluation (`recipes/glint/heldout.json`, its seed) in bfloat16, at
depth 2 and at depth 1; several processes ask about a share of the scenes each. Where two answers differ, the choice
must have been a near-tie (`near_tie`), or closer than what bfloat16 is seen to do to the scores at that very place; and
both must be right about as often. Ends with 1 if not; the report says where.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from recipes.glint.asking import ask
from recipes.glint.exam import Paper, Question, set_paper
from recipes.glint.marking import Mark, mark
from recipes.glint.report import headline
from recipes.glint.streams import Vocabulary
from tests.gpu.checkpoint_asks import Heard, noting
from tests.gpu.near_tie import ERRORS, SHARE, Reader, divergence

from gapless.api.desk import EncodedImage
from gapless.api.load import assemble
from gapless.api.vlm import VLM
from gapless.bench.gpu import clocks
from gapless.bench.report_file import save_to
from gapless.bench.rig import facts_of
from gapless.config import EngineConfig, ImageLimits
from gapless.constrain.table import build_table
from gapless.device.host import HostDevice
from gapless.kernels.choose import name_of
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.models.registry import Loaded, load_model

SCENES, SEED = 2000, 2026
ROWS, PAGES, PAGE_SIZE = 64, 4096, 16
ASKING = 64
SIDES = (("kernels", False, 2), ("torch", True, 1))
"""Name, whether with torch's kernels alone, depth."""
SCORES = 0.003
"""How far apart any score of the two may be."""


@dataclass(frozen=True)
class Asked:
    """A question of a scene, and what was heard."""

    paper: Paper
    question: Question
    heard: Heard


def drawn(seed: int, numbers: Sequence[int]) -> list[Paper]:
    """Scenes with their questions."""
    vocabulary = Vocabulary()
    return [set_paper(seed, number, vocabulary) for number in numbers]


@contextmanager
def opened(loaded: Loaded, depth: int, plain: bool) -> Iterator[VLM]:
    """The library around a model. `plain`: with torch's kernels alone, whatever the model's own are."""
    config = EngineConfig(depth=depth, max_rows=ROWS, pages=PAGES, page_size=PAGE_SIZE)
    table = build_table(Templates.of(loaded.config).rules())
    if loaded.model.device.type == "cpu":
        device: Any = HostDevice(loaded.model, table, config)
    else:
        from gapless.bench.cuda_rig import open_device

        device = open_device(loaded.model, table, config, plain=plain)
    plan = getattr(device, "plan", None)
    with assemble(loaded, device, table, config, ImageLimits(), plan) as vlm:
        yield vlm


def sit(vlm: VLM, all_papers: Sequence[Paper]) -> list[Asked]:
    """Every question, many at once."""
    with noting(vlm) as noted, ThreadPoolExecutor(ASKING) as pool:

        def one(paper: Paper, image: EncodedImage, question: Question) -> Asked:
            return Asked(paper, question, noted.hear(partial(ask, vlm, image, question)))

        waiting = []
        for paper in all_papers:
            image = vlm.encode_image(paper.file)
            waiting += [pool.submit(one, paper, image, question) for question in paper.questions]
        return [future.result() for future in waiting]


def marked(asked: Sequence[Asked]) -> list[Mark]:
    """How right each answer was."""
    return [mark(one.paper.number, one.question, one.heard.answer, one.paper.groups) for one in asked]


def scores(marks: Sequence[Mark]) -> dict[str, float]:
    """How often the answers were right."""
    found = headline([m for m in marks if not m.question.unseen])
    return {name: score["value"] for name, score in found.items() if score["value"] is not None}


def compared(loaded: Loaded, ours: Sequence[Asked], torchs: Sequence[Asked]) -> dict[str, Any]:
    """How many answers are the same, and what the others' choices were like; `wider`: by what bfloat16 does there."""
    assert isinstance(loaded.model, Moondream)
    reader, table = Reader(loaded.model), build_table(Templates.of(loaded.config).rules())
    same, near, wider, beyond = 0, [], [], []
    float32: Reader | None = None
    for one, other in zip(ours, torchs, strict=True):
        if one.heard.tokens == other.heard.tokens:
            same += 1
            continue
        for request, a, b in zip(one.heard.requests, one.heard.tokens, other.heard.tokens, strict=True):
            found = divergence(reader, table, request, a, b)
            if found is None:
                continue
            if not found.near and math.isfinite(found.gap):
                float32 = float32 or Reader(exact_model(loaded.model.device.type))
                found = divergence(reader, table, request, a, b, float32)
                assert found is not None
            gap = found.gap if math.isfinite(found.gap) else None
            told = {"scene": one.paper.number, "question": one.question.text, "what": found.what, "gap": gap}
            explained = near if found.near else wider if found.gap <= ERRORS * found.error else beyond
            explained.append({**told, "size": found.size, "error": found.error, "place": found.place})
    return {"same": same, "near_ties": len(near), "wider": wider, "beyond": beyond, "near": near[:40]}


def exact_model(device: str) -> Moondream:
    """glint in float32, with torch's kernels."""
    model = load_model("glint", device, "float32", plain=True).model
    assert isinstance(model, Moondream)
    return model


@dataclass
class Sat:
    """A share of the scenes, asked by both: how right the answers were, what they were made by, what differs."""

    marks: dict[str, list[Mark]]
    sides: dict[str, dict[str, Any]]
    found: dict[str, Any]


def share(seed: int, device: str, numbers: Sequence[int]) -> Sat:
    """Ask both about these scenes."""
    every, asked, told = drawn(seed, numbers), {}, {}
    for name, plain, depth in SIDES:
        loaded = load_model("glint", device, "bfloat16", plain=plain)
        assert isinstance(loaded.model, Moondream)
        with opened(loaded, depth, plain) as vlm:
            asked[name] = sit(vlm, every)
            tally = vlm.accounting().as_dict()
        told[name] = {"of": name_of(loaded.model.kernels), "tiles": loaded.tiles, "depth": depth, "accounting": tally}
        print(f"-- scenes {numbers[0]} to {numbers[-1]}: asked by {name}", flush=True)
    found = compared(loaded, asked["kernels"], asked["torch"])
    return Sat({name: marked(one) for name, one in asked.items()}, told, found)


def shared(seed: int, device: str, numbers: Sequence[int], processes: int) -> list[Sat]:
    """These scenes, asked by several processes at once; a single one is this one."""
    shares = [numbers[start::processes] for start in range(min(processes, len(numbers)))]
    if len(shares) == 1:
        return [share(seed, device, shares[0])]
    with ProcessPoolExecutor(len(shares), mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(partial(share, seed, device), shares))


def merged(sat: Sequence[Sat]) -> dict[str, Any]:
    """The shares as one report."""
    report: dict[str, Any] = {}
    for name, _, _ in SIDES:
        marks = [m for one in sat for m in one.marks[name]]
        report[name] = {
            **{key: value for key, value in sat[0].sides[name].items() if key != "accounting"},
            "scores": scores(marks),
            "accounting": [one.sides[name]["accounting"] for one in sat],
        }
        report["questions"] = len(marks)
    for key in ("same", "near_ties"):
        report[key] = sum(one.found[key] for one in sat)
    for key in ("wider", "beyond"):
        report[key] = [told for one in sat for told in one.found[key]]
    report["near"] = [told for one in sat for told in one.found["near"]][:40]
    ours, torchs = report["kernels"]["scores"], report["torch"]["scores"]
    report["largest_difference_of_a_score"] = max(abs(ours[name] - torchs[name]) for name in ours)
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="glint's evaluation by the kernels and by torch alone.")
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of scenes, instead of the first so many")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--device", default="cuda", help="cuda, or cpu")
    parser.add_argument("--processes", type=int, default=8, help="that share the scenes")
    parser.add_argument("--out", type=Path, help="file for the report")
    options = parser.parse_args(arguments)
    save, began, gpu = save_to(options.out), time.monotonic(), options.device != "cpu"
    given = sys.argv[1:] if arguments is None else arguments
    numbers = options.only or range(options.scenes)
    report: dict[str, Any] = {
        "benchmark": "glint's evaluation",
        **facts_of(torch.device(options.device)),
        "command": shlex.join(["python3", "-m", "tests.gpu.glint_evaluation", *given]),
        "scenes": len(numbers),
        "seed": options.seed,
        "rule": {"near": SHARE, "errors": ERRORS, "scores": SCORES},
        **({"clocks": clocks()} if gpu else {}),
    }
    report |= merged(shared(options.seed, options.device, numbers, options.processes))
    report["seconds"] = round(time.monotonic() - began, 1)
    save(report)
    print(
        {
            key: report[key]
            for key in ("questions", "same", "near_ties", "wider", "beyond", "largest_difference_of_a_score")
        }
    )
    print(report["kernels"]["scores"], report["torch"]["scores"], sep="\n")
    return 1 if report["beyond"] or report["largest_difference_of_a_score"] > SCORES else 0


if __name__ == "__main__":
    raise SystemExit(main())
