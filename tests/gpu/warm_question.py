"""The first token of a first question about a picture, of a second one, and of a further turn: how long each takes.

In: a model's name or size, and a device. Out: JSON with medians in milliseconds, from the picture's bytes on, for
pictures of `SIZES`, the first of them at the top:
`cold`: a picture nobody asked about; `warm`: another question about it; `turn`: the next turn behind the first answer;
`host`: a question about a picture whose pages others took since, but what vision made of it is in host memory; `gone`:
the same without that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import gapless
from gapless.api.load import assemble
from gapless.api.vlm import VLM
from gapless.bench.pictures import jpegs
from gapless.bench.rig import facts_of
from gapless.config import EngineConfig, ImageLimits
from gapless.constrain.table import build_table
from gapless.images.crops import tiling
from gapless.models.moondream.templates import Templates

SAID = {"max_tokens": 8, "temperature": 0}
ROWS = 1
"""Fewer graphs to capture, and nobody else is there."""
WARMING = 2
HOST = 2**27
"""Bytes of host memory for pictures."""
SIZES = ((640, 480), (1024, 768), (378, 378))
"""Width and height: a usual one, as many crops as there are, as few."""
LEAST = 3
"""Rounds without which nothing is told."""


def random_vlm(size: str) -> VLM:
    """A full-size model of random weights that never ends by itself."""
    from gapless.bench.cuda_rig import open_device
    from gapless.models.registry import random_model

    loaded = random_model(size, "cuda", "bfloat16")
    table = build_table(Templates.of(loaded.config).rules())
    config = EngineConfig(max_rows=ROWS, picture_cache_host=HOST)
    device = open_device(loaded.model, table, config)
    return assemble(loaded, device, table, config, ImageLimits(), getattr(device, "plan", None))


def first_token(vlm: VLM, picture: bytes, messages: list[dict]) -> tuple[float, dict]:
    """Milliseconds from the picture's bytes to the first token, and the answer."""
    began = perf_counter()
    shown = vlm.encode_image(picture)
    prepared = 1e3 * (perf_counter() - began)
    front = {"type": "image", "image": shown}
    head = messages[0] | {"content": [front, {"type": "text", "text": messages[0]["content"]}]}
    answer = vlm.chat([head, *messages[1:]], settings=SAID)
    return prepared + answer["metrics"]["ttft_ms"], answer


def come_back(vlm: VLM, seen: list[bytes], kept: bool) -> list[float]:
    """Pictures that were asked about, the oldest first: each takes the pages of the ones that would come soon."""
    ask = [{"role": "user", "content": "How many things are there?"}]
    before, times = vlm.stats(), []
    for picture in seen:
        took, answer = first_token(vlm, picture, ask)
        if answer["metrics"]["cached_tokens"] == 0:
            times.append(took)
    hits = vlm.stats()["host_hits"] - before["host_hits"]
    assert times and hits == (len(times) if kept else 0), (times, hits)
    return times


def measure(vlm: VLM, rounds: int, until: float) -> Iterator[dict]:
    """Rounds as long as there is time, up to so many of each size; what is known so far, again and again."""
    spec = vlm.desk._crops
    told: dict = {}
    for size in SIZES:
        rows, columns = tiling(*size, spec)
        own = {"size": size, "crops": 1 + rows * columns}
        for found in of_size(vlm, size, rounds, until, told=not told):
            yield told | (own | found if not told else {"others": [*told.get("others", []), own | found]})
        told |= own | found if not told else {"others": [*told.get("others", []), own | found]}


def of_size(vlm: VLM, size: tuple[int, int], rounds: int, until: float, *, told: bool) -> Iterator[dict]:
    """The same of one size; `told`: of pictures that come back, too."""
    times: dict[str, list[float]] = {"cold": [], "warm": [], "turn": []}
    parts: dict[str, list[float]] = {"queue_ms": [], "prefill_time_ms": [], "device_ms": []}
    seen: list[bytes] = []
    for number, picture in enumerate(jpegs(0, rounds + WARMING, 0, size)):
        if number >= WARMING + LEAST and perf_counter() > until:
            break
        ask = [{"role": "user", "content": "What is in the picture, and where?"}]
        cold, answer = first_token(vlm, picture, ask)
        before = vlm.accounting()
        warm, second = first_token(vlm, picture, [{"role": "user", "content": "Is there anything that is red?"}])
        spent = second["metrics"] | {"device_ms": (vlm.accounting() - before).busy["prefill"]}
        for name, took in parts.items():
            took.append(spent[name])
        further = [*ask, answer["message"], {"role": "user", "content": "And what else?"}]
        turn, last = first_token(vlm, picture, further)
        for name, took in (("cold", cold), ("warm", warm), ("turn", turn)):
            times[name].append(took)
        seen.append(picture)
    of_warm = {name: round(statistics.median(took[WARMING:]), 2) for name, took in parts.items()}
    more = {"warm_parts": of_warm, "last_turn": last["metrics"]}
    yield summed(times) | more
    if not told:
        return
    times["host"] = come_back(vlm, seen, True)
    forget(vlm)
    times["gone"] = come_back(vlm, seen, False)
    stats = vlm.stats()
    names = ("cached_share", "prefix_hits", "host_hits", "pictures_asked", "pictures_decoded")
    yield summed(times) | more | {name: stats[name] for name in names}


def summed(times: dict[str, list[float]]) -> dict:
    """Medians without the first rounds, beside that of a cold question."""
    spread = {name: sorted(took[WARMING:]) for name, took in times.items()}
    medians = {name: statistics.median(took) for name, took in spread.items()}
    told = {f"{name}_ms": round(took, 2) for name, took in medians.items()}
    told |= {f"{name}_share": round(took / medians["cold"], 3) for name, took in medians.items() if name != "cold"}
    least = {name: round(took[0], 2) for name, took in spread.items()}
    return told | {"rounds": len(spread["cold"]), "least_ms": least}


def forget(vlm: VLM) -> None:
    """From now on nothing is found in host memory."""
    vlm.desk.runner._engine.ledgers.features.lease = no_place


def no_place(digest: str) -> None:
    """A picture has no slot."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="moondream-2")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=20.0, help="after so long no further round begins")
    parser.add_argument("--out")
    asked, began = parser.parse_args(), perf_counter()
    if asked.device == "cuda":
        vlm = random_vlm(asked.model)
    else:
        vlm = gapless.load(asked.model, device=asked.device, max_rows=ROWS, picture_cache_host=HOST)
    with vlm:
        import torch

        report = {"benchmark": "warm question", "model": asked.model, **facts_of(torch.device(asked.device))}
        words = " ".join(Path(word).name if word == asked.out else word for word in sys.argv[1:])
        report["command"] = f"python tests/gpu/warm_question.py {words}"
        report["start_s"] = round(perf_counter() - began, 1)
        for found in measure(vlm, asked.rounds, began + asked.seconds):
            if asked.out:
                Path(asked.out).write_text(json.dumps(report | found, default=str, indent=1) + "\n")
            print(json.dumps(report | found, default=str), flush=True)


if __name__ == "__main__":
    main()
