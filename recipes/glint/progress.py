"""How training is getting on: the trainer's own network, asked greedily about scenes rendered as training renders them.

In: a network and a number of scenes. Out: scores by skill. Quick enough to run in the middle of training; what the
published weights are worth is measured by ``evaluate.py``, through the engine and on real pictures.

python -m recipes.glint.progress --weights src/gapless/assets/glint/model.safetensors --scenes 96
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import torch
from recipes.glint import prompts
from recipes.glint.ask import Ask
from recipes.glint.data import Groups, Renderer, groups, random_aspect, scene_arrays
from recipes.glint.decode import Reply, greedy
from recipes.glint.model import Glint
from recipes.glint.scenes import Scene, make_scene
from recipes.glint.streams import ANSWER, COORD, SIZE, Stream, Vocabulary
from torch import Tensor

NEAR = 0.03
Box = tuple[float, float, float, float]
Questions = dict[str, list[tuple[int, Stream]]]
MAKERS: tuple[tuple[Callable[[Ask], Stream | None], int], ...] = tuple(
    (maker, 2 if weight > 1.25 else 1) for maker, weight in prompts.SKILLS.items()
)


def iou(a: Box, b: Box) -> float:
    """Overlap of two boxes given as centre and extent."""
    w = min(a[0] + a[2] / 2, b[0] + b[2] / 2) - max(a[0] - a[2] / 2, b[0] - b[2] / 2)
    h = min(a[1] + a[3] / 2, b[1] + b[3] / 2) - max(a[1] - a[3] / 2, b[1] - b[3] / 2)
    both = max(w, 0) * max(h, 0)
    return both / (a[2] * a[3] + b[2] * b[3] - both)


def truth(s: Stream) -> Reply:
    """The reply that a stream teaches."""
    n = s.prompt_length
    coords = [s.coord[i] for i in range(n, len(s)) if s.ids[i] == COORD]
    return Reply(s.answer_ids(), coords, [s.size[i] for i in range(n, len(s)) if s.ids[i] == SIZE])


def score_points(got: Reply, want: Reply) -> tuple[int, int, int]:
    """(matched, predicted, wanted) points within 0.03 in both axes."""
    left = list(zip(want.coords[::2], want.coords[1::2], strict=True))
    wanted, matched = len(left), 0
    found = list(zip(got.coords[::2], got.coords[1::2], strict=False))
    for x, y in found:
        near = [p for p in left if max(abs(p[0] - x), abs(p[1] - y)) <= NEAR]
        if near:
            left.remove(min(near, key=lambda p: math.hypot(p[0] - x, p[1] - y)))
            matched += 1
    return matched, len(found), wanted


def boxes_of(r: Reply) -> list[Box]:
    """Boxes of a detect or segment reply."""
    return [(x, y, w, h) for x, y, (w, h) in zip(r.coords[::2], r.coords[1::2], r.sizes, strict=False)]


def score_boxes(got: Reply, want: Reply, overlaps: list[float]) -> tuple[int, int, int]:
    """(matched, predicted, wanted) boxes at an overlap of 0.5."""
    left, found = boxes_of(want), boxes_of(got)
    wanted, matched = len(left), 0
    for box in found:
        best = max(left, key=lambda b: iou(box, b), default=None)
        if best and iou(box, best) >= 0.5:
            overlaps.append(iou(box, best))
            left.remove(best)
            matched += 1
    return matched, len(found), wanted


def descriptions(text: str) -> list[str]:
    """Descriptions of things in a caption."""
    parts = text.replace(" and ", ", ").replace(".", ",").lower().split(", ")
    return [" ".join(p.split()[:4]) for p in parts if p.strip().startswith("a ")]


def caption_overlap(got: str, want: str) -> tuple[int, int, int]:
    """(matched, predicted, wanted) descriptions, as multisets."""
    left = descriptions(want)
    wanted, matched, found = len(left), 0, descriptions(got)
    for item in found:
        if item in left:
            left.remove(item)
            matched += 1
    return matched, len(found), wanted


def f1(totals: list[tuple[int, int, int]]) -> float:
    """F1 of summed (matched, predicted, wanted)."""
    matched, predicted, wanted = (sum(t[i] for t in totals) for i in range(3))
    return 2 * matched / max(1, predicted + wanted)


def score(skill: str, v: Vocabulary, rows: list[tuple[Stream, Reply]]) -> dict[str, float]:
    """Numbers of one skill."""
    pairs = [(got, truth(s)) for s, got in rows]
    exact = sum(got.ids == want.ids for got, want in pairs) / len(pairs)
    if skill == "point":
        totals = [score_points(got, want) for got, want in pairs]
        empty = [bool(got.ids) for got, want in pairs if not want.ids]
        return {"F1": f1(totals), "exact": sum(m == p == w for m, p, w in totals) / len(totals),
                "false_when_absent": sum(empty) / max(1, len(empty))}  # fmt: skip
    if skill == "detect":
        overlaps: list[float] = []
        totals = [score_boxes(got, want, overlaps) for got, want in pairs]
        return {"F1": f1(totals), "exact": sum(m == p == w for m, p, w in totals) / len(totals),
                "mean_iou": sum(overlaps) / max(1, len(overlaps))}  # fmt: skip
    if skill == "segment":
        outline = sum(got.ids == want.ids for got, want in pairs) / len(pairs)
        return {"F1": f1([score_boxes(got, want, []) for got, want in pairs]), "outline": outline}
    if skill in ("caption_normal", "caption_long", "overview"):
        texts = [(v.tokenizer.decode(got.ids), v.tokenizer.decode(want.ids)) for got, want in pairs]
        return {"exact": exact, "objects_F1": f1([caption_overlap(a, b) for a, b in texts])}
    if skill.startswith("reason"):

        def answer(r: Reply) -> list[int]:
            return r.ids[r.ids.index(ANSWER) :] if ANSWER in r.ids else []

        return {"exact": sum(answer(a) == answer(b) for a, b in pairs) / len(pairs),
                "points_F1": f1([score_points(a, b) for a, b in pairs])}  # fmt: skip
    return {"exact": exact}


def make_questions(scenes: list[Scene], v: Vocabulary, seed: int) -> Questions:
    """Requests by skill: (index of the picture, stream)."""
    out: Questions = {}
    for i, scene in enumerate(scenes):
        rng = random.Random(seed * 100_003 + i)
        for maker, times in MAKERS:
            for _ in range(times):
                made = maker(Ask(scene, rng, v))
                if made is not None:
                    out.setdefault(made.skill, []).append((i, made))
    return dict(sorted(out.items()))


def held_out(count: int, seed: int = 7) -> tuple[list[Scene], Groups]:
    """Scenes for evaluation, in the order of their tilings."""
    tilings = groups(count)
    rng = random.Random(seed)
    return [make_scene(rng, random_aspect(rng, r, c)) for n, r, c in tilings for _ in range(n)], tilings


@torch.no_grad()
def evaluate(
    net: Glint, v: Vocabulary, count: int, device: torch.device, *, chunk: int = 256, samples: int = 0
) -> dict[str, dict[str, float]]:
    """Scores by skill on ``count`` fresh scenes rendered straight at the crops' resolution."""
    scenes, tilings = held_out(count)
    arrays = {k: torch.from_numpy(a).to(device) for k, a in scene_arrays(scenes).items()}
    image = net.features(Renderer(tilings, device)(arrays, (1.0, 1.5)), tilings)
    return ask_all(net, v, image, make_questions(scenes, v, 1), chunk=chunk, samples=samples)


def ask_all(
    net: Glint, v: Vocabulary, image: Tensor, questions: Questions, *, chunk: int, samples: int = 0
) -> dict[str, dict[str, float]]:
    """Ask everything, skill by skill; prints ``samples`` replies of each."""
    out = {}
    for skill, asked in questions.items():
        rows: list[tuple[Stream, Reply]] = []
        for start in range(0, len(asked), chunk):
            part = asked[start : start + chunk]
            used = sorted({i for i, _ in part})
            again = [used.index(i) for i, _ in part]
            limit = max(len(s) - s.prompt_length for _, s in part) + 8
            replies = greedy(net, image[used], again, [s for _, s in part], limit)
            rows += [(s, r) for (_, s), r in zip(part, replies, strict=True)]
        for s, r in rows[:samples]:
            ids = [v.tokenizer.decode(list(x)) for x in (s.ids[: s.prompt_length], r.ids, s.answer_ids())]
            print(skill, "|", " | ".join(ids), [round(c, 3) for c in r.coords[:6]], flush=True)
        out[skill] = {"n": len(rows), **score(skill, v, rows)}
    return out


def show(scores: dict[str, dict[str, float]]) -> str:
    """One line per skill."""
    return "\n".join(
        f"  {skill:16s} " + "  ".join(f"{k} {x:.3f}" if k != "n" else f"n {int(x)}" for k, x in s.items())
        for skill, s in scores.items()
    )


def main() -> None:
    """Evaluate exported weights on the CPU or a GPU."""
    from recipes.glint.export import load_weights

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--scenes", type=int, default=96)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    v = Vocabulary()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    net = Glint(v.config).to(device).eval()
    load_weights(net, args.weights)
    scores = evaluate(net, v, args.scenes, device, chunk=args.chunk, samples=args.samples)
    print(show(scores))
    if args.json:
        args.json.write_text(json.dumps(scores, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
