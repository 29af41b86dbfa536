"""Many marks summed up: scores with their floors, groups, a confusion table, and where it goes wrong most.

In: marks. Out: plain dicts for the report's JSON. A score is {"value", "n"} and, where it is a share of independent
cases, "low" and "high": the 95 % Wilson interval. Wordings that were never trained count only under "unseen_...".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from recipes.glint import phrases as say
from recipes.glint.exam import Answer
from recipes.glint.marking import Mark, things_named

Score = dict[str, Any]
FLOORS: dict[str, tuple[float, float]] = {
    "query_exact": (0.90, 0.97), "point_precision": (0.90, 0.97), "point_recall": (0.90, 0.97),
    "detect_f1": (0.90, 0.97), "detect_mean_iou": (0.75, 0.88), "segment_mean_iou": (0.75, 0.88),
    "caption_object_f1": (0.90, 0.97), "absent_found": (0.05, 0.01), "caption_seconds": (2.0, 2.0),
}  # fmt: skip
"""(floor, aim) of each score; for the two in `LESS_IS_BETTER` the most it may be."""
LESS_IS_BETTER = ("absent_found", "caption_seconds")
FEWEST = 20
"""A category with fewer cases is not called one of the worst."""
WORST, EXAMPLES = 8, 6
GROUPS = ("pattern", "things", "overlap", "printed", "size", "file")
_Z = 1.959964


def wilson(hits: float, n: int) -> tuple[float, float]:
    """95 % interval of a share (E. B. Wilson, 1927); (0, 1) without cases."""
    if n == 0:
        return 0.0, 1.0
    p, z2 = hits / n, _Z * _Z
    middle, spread = p + z2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return max(0.0, (middle - spread) / (1 + z2 / n)), min(1.0, (middle + spread) / (1 + z2 / n))


def share(hits: int, n: int) -> Score:
    """A share with its interval; value None when nothing was asked."""
    low, high = wilson(hits, n)
    return {"value": round(hits / n, 4) if n else None, "n": n, "low": round(low, 4), "high": round(high, 4)}


def right(marks: Sequence[Mark]) -> Score:
    """The share of answers that are wholly right."""
    return share(sum(m.right for m in marks), len(marks))


def f1(marks: Sequence[Mark]) -> Score:
    """F1 of all places, or things named, together; n is the number wanted."""
    matched, found, wanted = (sum(getattr(m, name) for m in marks) for name in ("matched", "found", "wanted"))
    return {"value": round(2 * matched / (found + wanted), 4) if found + wanted else None, "n": wanted}


def mean(values: Iterable[float], n: int | None = None) -> Score:
    """The mean; with ``n``, over that many cases, those without a value counting 0."""
    listed = list(values)
    n = len(listed) if n is None else n
    return {"value": round(sum(listed) / n, 4) if n else None, "n": n}


def headline(marks: Sequence[Mark]) -> dict[str, Score]:
    """The scores that have floors, and their companions, of any set of marks."""
    by: dict[str, list[Mark]] = defaultdict(list)
    for m in marks:
        by["reason" if m.question.reasoning else m.question.skill].append(m)
    point, detect, segment = by["point"], by["detect"], by["segment"]
    matched = sum(m.matched for m in point)
    absent = [m for m in marks if m.absent]
    return {
        "query_exact": right(by["query"]),
        "spatial_refs_exact": right([m for m in by["query"] if m.question.refs]),
        "reasoning_exact": right(by["reason"]),
        "reasoning_points_f1": f1(by["reason"]),
        "point_precision": share(matched, sum(m.found for m in point)),
        "point_recall": share(matched, sum(m.wanted for m in point)),
        "point_all_right": right(point),
        "detect_f1": f1(detect),
        "detect_all_right": right(detect),
        "detect_mean_iou": mean(x for m in detect for x in m.overlaps),
        "detect_mean_iou_misses_0": mean((x for m in detect for x in m.overlaps), sum(m.wanted for m in detect)),
        "segment_mean_iou": mean(m.mask for m in segment if m.mask is not None),
        "segment_box_mean_iou": mean(
            (x for m in segment if not m.absent for x in m.overlaps), sum(not m.absent for m in segment)
        ),
        "caption_object_f1": f1(by["caption"]),
        "caption_exact": right(by["caption"]),
        "absent_found": share(sum(m.alarm for m in absent), len(absent)),
    }


def kinds(marks: Sequence[Mark]) -> dict[str, dict[str, Score]]:
    """Scores by kind of question: the share wholly right, and F1 where places or things are named."""
    out: dict[str, dict[str, Score]] = {}
    for kind, some in grouped((m.question.kind, m) for m in marks).items():
        out[kind] = {"right": right(some)}
        if any(m.wanted or m.found for m in some):
            out[kind]["f1"] = f1(some)
    return out


def grouped(keyed: Iterable[tuple[str, Mark]]) -> dict[str, list[Mark]]:
    """Marks by a key, in the keys' order."""
    out: dict[str, list[Mark]] = defaultdict(list)
    for key, m in keyed:
        out[key].append(m)
    return dict(sorted(out.items()))


def classes(marks: Iterable[Mark], name: str) -> dict[str, list[Mark]]:
    """Marks by the class of their pictures."""
    return grouped((m.groups.get(name, "?"), m) for m in marks)


def by_group(marks: Sequence[Mark]) -> dict[str, dict[str, dict[str, Score]]]:
    """The headline by class of picture."""
    return {name: {value: headline(some) for value, some in classes(marks, name).items()} for name in GROUPS}


def unseen(marks: Sequence[Mark]) -> dict[str, Score]:
    """Shares wholly right of questions whose wording was never trained, together and by kind."""
    some = [m for m in marks if m.question.unseen]
    out = {kind: right(part) for kind, part in grouped((m.question.kind, m) for m in some).items()}
    return {"all": right(some), **out} if some else {}


def reading(marks: Iterable[Mark]) -> dict[str, Score]:
    """Shares read exactly where something is printed: seen words, numbers and random letters apart."""
    some = [m for m in marks if m.question.kind == "read" and m.question.want.text == m.question.want.text.upper()]
    return {f"reading_{name}_exact": right(part) for name, part in classes(some, "printed").items()}


def confusion(marks: Iterable[Mark]) -> dict[str, dict[str, dict[str, int]]]:
    """Counts wanted x answered of colour, shape, size and ground, from every question whose answer names one."""
    tables: dict[str, dict[str, Counter[str]]] = {}
    for m in marks:
        if m.question.skill != "query" or m.question.kind == "ink":  # a text's black or white is no ground
            continue
        want, got = attributes(m.question.want), attributes(m.got)
        for name, value in want.items():
            tables.setdefault(name, {}).setdefault(value, Counter())[got.get(name, "other")] += 1
    names = {"colour": say.COLOURS, "shape": say.KINDS, "size": say.SIZES, "ground": say.GROUNDS}
    return {
        name: {value: dict(tables[name][value].most_common()) for value in values if value in tables[name]}
        for name, values in names.items()
        if name in tables
    }


def attributes(answer: Answer) -> dict[str, str]:
    """What an answer says of one thing: ``red``, ``a large red circle``; nothing for lists."""
    text = answer.text.strip()
    tables = {"colour": say.COLOURS, "shape": say.KINDS, "size": say.SIZES, "ground": say.GROUNDS}
    for name, values in tables.items():
        if text in values:
            return {name: text}
    named = things_named(text)
    if not text.startswith("a") or len(named) != 1:
        return {}
    words = named[0].split()
    return {name: word for name, values in tables.items() for word in words if word in values}


def targets(scores: dict[str, Score], *, small: bool = False) -> list[dict[str, Any]]:
    """Each floor with its score: met or not, and the aim.

    ``small``: a sample too small to tell; a share misses its floor only when its whole 95 % interval does, and a mean
    or an F1 when it is more than 0.08 short.
    """
    out = []
    for name, (floor, aim) in FLOORS.items():
        score = scores.get(name, {"value": None, "n": 0})
        value, sign = score["value"], -1 if name in LESS_IS_BETTER else 1
        best = value
        if small and value is not None and name != "caption_seconds":
            best = score.get("low" if sign < 0 else "high", value + sign * 0.08)
        out.append({
            "name": name, "value": value, "n": score["n"], "floor": floor, "aim": aim,
            "met": value is not None and sign * best >= sign * floor,
            "aim_met": value is not None and sign * value >= sign * aim,
        })  # fmt: skip
    return out


def categories(marks: Sequence[Mark]) -> dict[str, list[Mark]]:
    """Kinds of questions, classes of pictures, and what was to be named: all that may be called weak."""
    out = grouped((f"kind {m.question.kind}", m) for m in marks)
    out |= grouped((f"unseen wording of {m.question.skill}", m) for m in marks if m.question.unseen)
    for name in GROUPS:
        out |= {f"{name} {value}": some for value, some in classes(marks, name).items()}
    return out | grouped(
        (f"{name} {value}", m)
        for m in marks
        if m.question.skill == "query" and m.question.kind != "ink"
        for name, value in attributes(m.question.want).items()
    )


def worst(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """The categories with the smallest shares of wholly right answers, each with examples that can be redrawn."""
    ranked = sorted(
        ((right(some), name, some) for name, some in categories(marks).items() if len(some) >= FEWEST),
        key=lambda entry: (entry[0]["value"], entry[1]),
    )
    return [
        {"category": name, "right": score, "examples": examples(some)}
        for score, name, some in ranked[:WORST]
        if score["value"] < 1
    ]


def examples(marks: Sequence[Mark]) -> list[dict[str, Any]]:
    """A few wrong answers, from as many scenes as there are."""
    wrong = [m for m in marks if not m.right]
    seen: Counter[int] = Counter()
    turns = []
    for m in wrong:
        turns.append(seen[m.number])
        seen[m.number] += 1
    order = sorted(range(len(wrong)), key=turns.__getitem__)
    return [example(wrong[i]) for i in order[:EXAMPLES]]


def example(m: Mark) -> dict[str, Any]:
    """A wrong answer: the scene's number, and asked, wanted, got."""
    q = m.question
    return {"scene": m.number, "skill": q.skill, "kind": q.kind, "asked": q.text, "refs": [list(r) for r in q.refs],
            "want": shown(q.want), "got": shown(m.got)}  # fmt: skip


def shown(answer: Answer) -> dict[str, Any]:
    """The parts of an answer that are not empty, places rounded to three digits."""
    out: dict[str, Any] = {"text": answer.text} if answer.text else {}
    for name, places in (("points", answer.points), ("boxes", answer.boxes)):
        if places:
            out[name] = [[round(v, 3) for v in place] for place in places]
    return out | ({"path": answer.path} if answer.path else {})
