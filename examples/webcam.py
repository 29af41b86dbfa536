"""Ask one question of a camera, again and again, each time about the newest frame.

    python examples/webcam.py 0 "Is anybody at the door?"
    python examples/webcam.py pictures/ "What is this?" --model glint

The answer is always about now: frames that came meanwhile are missed, not queued.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from frames import Latest, frames
from terminal import count, run

import gapless


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Ask one question of a camera, frame after frame.")
    parser.add_argument("source", help="a camera's number, a video or a folder of pictures")
    parser.add_argument("question")
    parser.add_argument("--model", default="glint", help="a name, a hub id or a folder")
    parser.add_argument("--max-tokens", type=count, default=32, help="short answers are fast answers")
    options = parser.parse_args(arguments)
    settings = {"temperature": 0, "max_tokens": options.max_tokens}
    with gapless.load(options.model) as vlm:
        camera, answered, began = Latest(frames(options.source, live=True)), 0, time.monotonic()
        while (frame := camera.next()) is not None:
            asked = time.monotonic()
            answer = vlm.query(frame, options.question, settings=settings)
            answered += 1
            now = time.monotonic()
            rate, missed = answered / (now - began), camera.seen - answered
            print(f"{answer['answer']}   [{1000 * (now - asked):.0f} ms, {rate:.1f}/s, {missed} missed]", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
