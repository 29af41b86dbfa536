"""A hash model behind the real way of loading, in this process or in an engine's own.

`python -m tests.fakes.hash_served serve FOLDER ...` is `gapless serve` whose answers are a function of the picture's
pixels and the prompt.

FOLDER is a micro model's: its config and tokenizer are used, its weights are not. The variable `HASH_MANNER` says what
goes wrong, words apart by blanks: `slow:MS` (each forward takes that long), `fails:N` (decode number N raises), `oom:N`
(it raises torch's out-of-memory error), `memory:N` (it raises the machine's), `loads:S` (loading takes S seconds).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial

import torch
from tests.fakes.hash_language import HashSpec
from tests.fakes.hash_model import HashModel

from gapless.api import opening
from gapless.models.moondream.config import MoondreamConfig
from gapless.models.moondream.templates import Templates
from gapless.models.registry import Loaded

MANNER = "HASH_MANNER"
END_PERMILLE = 30
FAULTS = {
    "fails": ValueError("secret: a bug in a kernel"),
    "oom": torch.OutOfMemoryError("secret: tried to allocate 20.00 GiB"),
    "memory": MemoryError("secret: no more memory on this machine"),
}


def spec_of(config: MoondreamConfig) -> HashSpec:
    """The hash language with this model's ids and sizes."""
    rules, text = Templates.of(config).rules(), config.text
    return HashSpec(rules, text.prefix_attn, text.max_context, end_permille=END_PERMILLE)


def manner() -> dict[str, float]:
    """What `HASH_MANNER` says."""
    pairs = (word.split(":") for word in os.environ.get(MANNER, "").split())
    return {name: float(value) for name, value in pairs}


@dataclass
class MannerlyModel(HashModel):
    """See the module."""

    manner: dict[str, float] = field(default_factory=dict)
    decodes: int = 0

    def forward(self, x, positions, tables, cache):
        self.decodes += len(tables) > 1  # a prompt has one table for all its tokens
        time.sleep(self.manner.get("slow", 0.0) / 1e3)
        for name, error in FAULTS.items():
            if len(tables) > 1 and self.manner.get(name) == self.decodes:
                raise error
        return super().forward(x, positions, tables, cache)


def _load(real, asked, device, progress) -> Loaded:
    """In `opening._load_model`'s place."""
    loaded, how = real(asked, device, progress), manner()
    time.sleep(how.get("loads", 0.0))
    return Loaded(MannerlyModel(spec_of(loaded.config), manner=how), loaded.config, loaded.tokenizer_path, "hash", "")


def arrange() -> None:
    """From now on this process, and the engine processes that it starts, load hash models."""
    from gapless.api import spawn

    opening._load_model = partial(_load, opening._load_model)
    spawn.EngineProcess = partial(spawn.EngineProcess, module="tests.fakes.hash_served_child")


if __name__ == "__main__":
    from gapless.cli.main import main

    arrange()
    sys.exit(main(sys.argv[1:]))
