"""Receipts to typed objects: every picture of a folder becomes a `Receipt`, and those whose sums are wrong are told.

    python examples/receipts.py receipts/ --model vikhyatk/moondream2

The answer has the form of the class because no other token can be chosen; whether it is true is the model's business,
so what can be checked is checked. The bundled model has never seen a receipt. Needs pydantic.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, Field
from terminal import count, pictures_in, run

import gapless

QUESTION = "Read this receipt: the shop, each item with its price, and the total."


class Item(BaseModel):
    """A line of a receipt."""

    name: str = Field(max_length=40)
    price: float = Field(ge=0, le=10_000)


class Receipt(BaseModel):
    """What is kept of a receipt. Everything has a bound, so an answer ends within it."""

    shop: str = Field(max_length=40)
    items: list[Item] = Field(max_length=20)
    total: float = Field(ge=0, le=100_000)

    @property
    def missing(self) -> float:
        """By how much the items' prices fall short of the total."""
        return round(self.total - sum(item.price for item in self.items), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Read a folder of receipts into typed objects.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="glint", help="a name, a hub id or a folder")
    parser.add_argument("--max-tokens", type=count, default=600, help="of one receipt")
    options = parser.parse_args(arguments)
    settings = {"temperature": 0, "max_tokens": options.max_tokens}
    files = pictures_in(options.folder)
    with gapless.load(options.model) as vlm:
        pictures = [str(file) for file in files]
        answers = vlm.query(pictures, QUESTION, settings=settings, schema=Receipt, on_error="return")
        for file, answer in zip(files, answers, strict=True):
            if isinstance(answer, gapless.errors.GaplessError):
                print(f"{file.name}: {answer}")
                continue
            receipt: Receipt = answer["object"]
            doubt = f", {receipt.missing:+.2f} to be explained" if receipt.missing else ""
            print(f"{file.name}: {receipt.shop!r}, {len(receipt.items)} items, {receipt.total:.2f}{doubt}")
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
