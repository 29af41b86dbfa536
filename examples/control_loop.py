"""A control loop with deadlines: a decision every tick, from the newest answer there is.

    python examples/control_loop.py 0 cross --hz 10

Each tick asks where the target is, with a timeout: an answer that comes too late is of no use, so its request ends and
makes room. Without a fresh answer the last one is held for a while, and then the loop stops moving. The loop itself
never waits for the model: `decide` runs on time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from frames import Frame, Latest, frames
from terminal import positive, run

import gapless
from gapless.errors import RequestTimeout


@dataclass
class Target:
    """Where it was seen, 0 to 1 of the picture's width and height, and when (seconds)."""

    x: float
    y: float
    at: float


def look(vlm: gapless.VLM, frame: Frame, name: str, timeout: float, at: float) -> Target | None:
    """The first place where it is in the frame; None if it is nowhere, or the answer came too late."""
    try:
        points = vlm.point(frame, name, settings={"timeout": timeout, "max_objects": 1})["points"]
    except RequestTimeout:
        return None
    return Target(points[0]["x"], points[0]["y"], at) if points else None


def decide(target: Target | None, now: float, hold: float) -> str:
    """What to do now: turn towards the target, or stop where nothing is known any more."""
    if target is None or now - target.at > hold:
        return "stop"
    turn = target.x - 0.5
    return "ahead" if abs(turn) < 0.05 else f"turn {turn:+.2f}"


def steer(vlm: gapless.VLM, camera: Latest, name: str, hz: float, timeout: float, hold: float) -> None:
    """Tick until the camera is over. One look is under way at a time; the next begins with the newest frame."""
    target: Target | None = None
    looking: Future[Target | None] | None = None
    with ThreadPoolExecutor(1) as eyes:
        due = time.monotonic()
        while looking is not None or not camera.over:
            if looking is None and (frame := camera.take()) is not None:
                looking = eyes.submit(look, vlm, frame, name, timeout, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
            if looking is not None and looking.done():
                target, looking = looking.result() or target, None
            now = time.monotonic()
            print(f"{decide(target, now, hold)}   [{1000 * (now - due):+.1f} ms]", flush=True)
            due = max(due + 1 / hz, now)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="Follow something with a camera, a decision every tick.")
    parser.add_argument("source", help="a camera's number, a video or a folder of pictures")
    parser.add_argument("target", help="what to follow")
    parser.add_argument("--hz", type=positive, default=10.0, help="decisions a second")
    parser.add_argument("--timeout", type=positive, default=0.5, help="seconds after which an answer is too late")
    parser.add_argument("--hold", type=positive, default=1.0, help="seconds for which the last place is believed")
    parser.add_argument("--model", default="glint", help="a name, a hub id or a folder")
    options = parser.parse_args(arguments)
    with gapless.load(options.model) as vlm:
        camera = Latest(frames(options.source, live=True))
        steer(vlm, camera, options.target, options.hz, options.timeout, options.hold)
    return 0


if __name__ == "__main__":
    raise SystemExit(run(main))
