"""Sheets of wrong answers for the model card: one per weak category, wanted places in green, those found in red.

In: the worst categories of a report, whose examples name scenes that are drawn again from the seed. Out: PNG files.

python -m recipes.glint.contact recipes/glint/heldout.json --out sheets --only says caption_long
"""

from __future__ import annotations

import argparse
import io
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from recipes.glint.exam import set_paper
from recipes.glint.streams import Vocabulary

from gapless.images.path import placed

TILE, PICTURE, COLUMNS, PAD = 330, 300, 3, 8
LETTERS, LINES, LINE = 52, 8, 13
WANT, GOT, INK, PAPER = (0, 160, 60), (220, 30, 30), (24, 24, 24), (255, 255, 255)


def write_sheets(worst: Sequence[Mapping[str, Any]], seed: int, vocabulary: Vocabulary, folder: Path) -> Iterator[Path]:
    """Write one sheet per category with wrong answers; yields the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, entry in enumerate(worst, 1):
        if entry["examples"]:
            name = "".join(c if c.isalnum() else "_" for c in entry["category"])
            path = folder / f"worst_{rank}_{name}.png"
            sheet(entry["examples"], seed, vocabulary).save(path, optimize=True)
            yield path


def sheet(examples: Sequence[Mapping[str, Any]], seed: int, vocabulary: Vocabulary) -> Image.Image:
    """The examples in rows of three."""
    tiles = [_tile(example, seed, vocabulary) for example in examples]
    rows = [tiles[i : i + COLUMNS] for i in range(0, len(tiles), COLUMNS)]
    heights = [max(tile.height for tile in row) for row in rows]
    out = Image.new("RGB", (min(COLUMNS, len(tiles)) * TILE, sum(heights)), PAPER)
    top = 0
    for row, height in zip(rows, heights, strict=True):
        for i, tile in enumerate(row):
            out.paste(tile, (i * TILE, top))
        top += height
    return out


def _tile(example: Mapping[str, Any], seed: int, vocabulary: Vocabulary) -> Image.Image:
    """One picture with what was wanted and what was got, and the words under it."""
    paper = set_paper(seed, example["scene"], vocabulary)
    picture = Image.open(io.BytesIO(paper.file)).convert("RGB")
    scale = min((TILE - 2 * PAD) / picture.width, PICTURE / picture.height)
    picture = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    draw_places(picture, example["want"], WANT)
    draw_places(picture, example["got"], GOT)
    draw_places(picture, {"points": [r for r in example["refs"] if len(r) == 2],
                          "boxes": [r for r in example["refs"] if len(r) == 4]}, INK)  # fmt: skip
    said = [(f"scene {example['scene']}: {example['skill']} {example['asked']}", INK)]
    said += [(f"want: {in_words(example['want'])}", WANT), (f"got: {in_words(example['got'])}", GOT)]
    lines = [(line, ink) for text, ink in said for line in textwrap.wrap(text, LETTERS)[:LINES]]
    tile = Image.new("RGB", (TILE, picture.height + len(lines) * LINE + 3 * PAD), PAPER)
    tile.paste(picture, (PAD, PAD))
    pen, font = ImageDraw.Draw(tile), ImageFont.load_default(size=11)
    for i, (line, ink) in enumerate(lines):
        pen.text((PAD, picture.height + 2 * PAD + i * LINE), line, font=font, fill=ink)
    return tile


def in_words(answer: Mapping[str, Any]) -> str:
    """An answer's text, or how many places it has."""
    if answer.get("text"):
        return str(answer["text"])
    count = len(answer.get("points", ())) + len(answer.get("boxes", ()))
    return "nothing" if count == 0 else f"{count} place{'s' if count > 1 else ''}"


def draw_places(picture: Image.Image, answer: Mapping[str, Any], ink: tuple[int, int, int]) -> None:
    """Points as crosses, boxes as frames, an outline as a line."""
    pen, (w, h) = ImageDraw.Draw(picture), picture.size
    for x, y in answer.get("points", ()):
        for dx, dy in ((6, 6), (6, -6)):
            pen.line((x * w - dx, y * h - dy, x * w + dx, y * h + dy), fill=ink, width=2)
    for x0, y0, x1, y1 in answer.get("boxes", ()):
        pen.rectangle((x0 * w, y0 * h, max(x0, x1) * w, max(y0, y1) * h), outline=ink, width=2)
        edges = {"x_min": x0, "y_min": y0, "x_max": x1, "y_max": y1}
        for polygon in placed(answer.get("path", ""), edges, w, h):
            pen.line([(float(x), float(y)) for x, y in [*polygon, polygon[0]]], fill=ink, width=2)


def main() -> None:
    """Draw the sheets of a report again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="KIND", help="some of the worst kinds of request")
    args = parser.parse_args()
    report = json.loads(args.report.read_text(encoding="utf-8"))
    wanted = [e for e in report["worst"] if not args.only or e["category"].removeprefix("kind ") in args.only]
    for path in write_sheets(wanted, report["seed"], Vocabulary(), args.out):
        print(path)


if __name__ == "__main__":
    main()
