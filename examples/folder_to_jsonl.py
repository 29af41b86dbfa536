"""Caption a folder of pictures into a JSONL file, many at once; begun again, it goes on where it stopped.

    python examples/folder_to_jsonl.py pictures/ captions.jsonl
    python examples/folder_to_jsonl.py pictures/ answers.jsonl --question "What is the serial number?"

A line is written as soon as its answer is there. A picture that cannot be answered gets a line with `error`, and
`--retry` asks about those again. A last line that was cut off by a crash is dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from terminal import count, pictures_in, run

import gapless


def answered(out: Path, retry: bool) -> set[str]:
    """Names that the file has lines of. Leaves whole lines in it, and with `retry` no errors."""
    if not out.exists():
        return set()
    text = out.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    if retry:
        lines = [line for line in lines if "error" not in json.loads(line)]
    kept = "".join(lines)
    if kept != text:
        whole = out.with_suffix(".tmp")
        whole.write_text(kept, encoding="utf-8")
        whole.replace(out)
    return {json.loads(line)["file"] for line in lines}


async def ask(vlm: gapless.AsyncVLM, file: Path, question: str | None) -> dict[str, Any]:
    """One line."""
    try:
        if question is None:
            answer = await vlm.caption(str(file), settings={"temperature": 0})
            return {"file": file.name, "caption": answer["caption"]}
        answer = await vlm.query(str(file), question, settings={"temperature": 0})
        return {"file": file.name, "answer": answer["answer"]}
    except gapless.errors.InvalidRequest as error:  # of this picture alone; anything else ends the run
        return {"file": file.name, "error": str(error)}


async def work(vlm: gapless.AsyncVLM, files: list[Path], question: str | None, out: TextIO, at_once: int) -> None:
    """Ask about all of them, so many at once, and write lines in the order in which they come."""
    ahead = iter(files)

    async def caller() -> None:
        for file in ahead:
            out.write(json.dumps(await ask(vlm, file, question)) + "\n")
            out.flush()

    async with asyncio.TaskGroup() as callers:
        for _ in range(at_once):
            callers.create_task(caller())


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Caption a folder of pictures into a JSONL file.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--question", help="instead of a caption")
    parser.add_argument("--retry", action="store_true", help="ask again about pictures that have an error")
    parser.add_argument("--at-once", type=count, default=32, help="pictures in work")
    parser.add_argument("--model", default="glint", help="a name, a hub id or a folder")
    options = parser.parse_args(arguments)
    every = pictures_in(options.folder)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    done = answered(options.out, options.retry)
    files = [file for file in every if file.name not in done]
    print(f"{len(files)} of {len(every)} pictures are to be done", flush=True)
    if not files:
        return 0
    with gapless.load(options.model) as vlm, options.out.open("a", encoding="utf-8") as out:
        asyncio.run(work(gapless.AsyncVLM(vlm), files, options.question, out, options.at_once))
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
