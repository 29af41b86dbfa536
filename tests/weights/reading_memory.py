"""Run by itself: read a checkpoint of its own making, and print what the host held beside the map and the tensors."""

import sys
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from gapless.weights.checkpoint import read_tensors
from gapless.weights.recipes import Kept, Part, scale_part
from gapless.weights.stored import FP8, open_files

EXPERTS, ROWS = 16, 512


def anonymous() -> int:
    """Bytes of this process that no file backs."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith("RssAnon")))


def main(folder: Path, megabytes: int) -> None:
    columns = megabytes * 10**6 // (4 * EXPERTS * ROWS)
    path, shape = folder / "model.safetensors", (EXPERTS, ROWS, columns)
    weights = {f"w{i}": torch.zeros(shape, dtype=torch.float8_e4m3fn) for i in range(4)}
    save_file(weights | {f"s{i}": torch.ones(EXPERTS, ROWS) for i in range(4)}, path)
    size, weights = path.stat().st_size, {}
    torch.empty(1).float()
    before, most, over = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], anonymous())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with open_files((path,)) as stored:
        recipes = {f"w{i}": Kept(f"w{i}", Part(shape, (FP8,))) for i in range(4)}
        recipes |= {f"s{i}": Kept(f"s{i}", scale_part(shape)) for i in range(4)}
        tensors = read_tensors(stored, recipes, torch.bfloat16, torch.device("cpu"))
    over.set()
    watcher.join()
    held = sum(t.numel() * t.element_size() for t in tensors.values())
    print(size, held, max(most[0], anonymous()) - before - held)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
