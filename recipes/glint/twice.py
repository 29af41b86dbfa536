"""glint's evaluation over both kinds of KV cache, answer by answer: in the model's dtype, and in FP8.

python -m recipes.glint.twice --scenes 400 --seed 2026 --json recipes/glint/kept.json

In: a number of scenes and a seed, as `evaluate` takes them. Out: the scores of both, and how many answers are the same
to the letter, on the terminal and as JSON; exit code 1 if more than `APART` of the answers are right with one cache
and not with the other, on balance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.glint import evaluate, report
from recipes.glint.marking import Mark

from gapless.config import KVDType

APART = 0.003
KINDS: tuple[KVDType, ...] = ("auto", "fp8")


def marked(scenes: int, seed: int, kind: KVDType) -> list[Mark]:
    """All marks over one kind of cache, scene by scene."""
    plan = evaluate.Plan(evaluate.BUNDLED.resolve(), scenes, seed, "cpu", 1, kind)
    with evaluate.open_model(plan) as vlm:
        return [mark for some in evaluate.sit(vlm, plan, range(scenes)) for mark in some]


def compared(auto: Sequence[Mark], fp8: Sequence[Mark], scenes: int, seed: int) -> dict[str, Any]:
    """The report. Questions of both are the same, in the same order."""
    pairs = list(zip(auto, fp8, strict=True))
    assert all(a.question == b.question for a, b in pairs)
    shares = {
        kind: sum(mark.right for mark in marks) / len(marks) for kind, marks in zip(KINDS, (auto, fp8), strict=True)
    }
    return {
        "model": evaluate.digest(evaluate.BUNDLED),
        "seed": seed,
        "scenes": scenes,
        "requests": len(pairs),
        "versions": evaluate.versions(),
        "right": {kind: round(share, 5) for kind, share in shares.items()},
        "apart": round(shares["fp8"] - shares["auto"], 5),
        "same_answers": sum(a.got == b.got for a, b in pairs),
        "right_with_auto_alone": sum(a.right and not b.right for a, b in pairs),
        "right_with_fp8_alone": sum(b.right and not a.right for a, b in pairs),
        "scores": {
            kind: report.headline([mark for mark in marks if not mark.question.unseen])
            for kind, marks in zip(KINDS, (auto, fp8), strict=True)
        },
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Ask everything twice; 1 if one cache costs answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=evaluate.positive, default=400)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--json", type=Path, help="write the report here, too")
    args = parser.parse_args(argv)
    found = compared(*(marked(args.scenes, args.seed, kind) for kind in KINDS), args.scenes, args.seed)
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if args.json:
        args.json.write_text(text, encoding="utf-8")
    return 1 if abs(found["apart"]) > APART else 0


if __name__ == "__main__":
    sys.exit(main())
