"""docs/memory.md tells what the code computes."""

import re
from pathlib import Path

import pytest

from gapless.config import EngineConfig
from gapless.device.sizing import device_limits
from gapless.models.base import Model
from gapless.models.footprint import Footprint
from gapless.models.moondream.config import MOONDREAM_3, REVISION, REVISIONS, MoondreamConfig, read_config, with_context
from gapless.models.moondream.footprint import footprint
from gapless.models.moondream.inspecting import inspect
from gapless.models.registry import load_model
from gapless.weights.folder import CONFIG, read_json
from gapless.weights.hub import ASSETS, have

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "memory.md").read_text()
ROWS = (1, 8, 16, 32, 64)
KEPT = {"Moondream 2": REVISIONS[REVISION], "Moondream 3": REVISIONS[MOONDREAM_3]}
"""Those that the table has with keys and values in FP8, too."""
MODELS: dict[str, MoondreamConfig] = {
    "glint": read_config(read_json(ASSETS / "glint" / CONFIG)),
    "Moondream 2": REVISIONS[REVISION],
    "Moondream 3": REVISIONS[MOONDREAM_3],
    "Moondream 3, `max_context=32768`": with_context(REVISIONS[MOONDREAM_3], 32768),
}


def line(name: str, took: Footprint) -> str:
    rows = " | ".join(f"{took.cache(rows) / 1e9:.2f} GB" for rows in ROWS)
    return f"| {name} | {took.weights / 1e9:.2f} GB | {took.token:,} B | {rows} |"


def test_the_table_is_the_codes_own() -> None:
    told = re.findall(r"^\| (?!-|model\b).*$", PAGE, flags=re.M)
    head = " | ".join(f"{rows} row{'s' * (rows > 1)}" for rows in ROWS)
    assert f"| model | weights | a token | {head} |" in PAGE
    halves = [line(f'{name}, `kv_dtype="fp8"`', footprint(config, 2, kept=1)) for name, config in KEPT.items()]
    assert told == [line(name, footprint(config, 2)) for name, config in MODELS.items()] + halves


def test_what_a_picture_takes_on_the_gpu_and_on_the_host() -> None:
    page = " ".join((Path(__file__).resolve().parents[2] / "docs" / "cache.md").read_text().split())
    config = MODELS["Moondream 2"]
    took, picture = footprint(config, 2), (config.text.prefix_attn - 1) * config.text.dim * 2
    assert f"{took.prefix * took.token / 1e6:.0f} MB for Moondream 2 in bfloat16. What vision makes of it takes" in page
    assert f"takes {picture / 1e6:.0f} MB" in page
    assert f"8 GB hold {8 * 10**9 // picture} pictures of Moondream 2 or 3 in bfloat16" in page
    assert f"{picture / 1e6:.1f} MB each for Moondream 2 and 3 in bfloat16" in " ".join(PAGE.split())
    three = MODELS["Moondream 3"].text
    assert (three.prefix_attn, three.dim) == (config.text.prefix_attn, config.text.dim)
    glint = load_model("glint", "cpu").model
    size = (glint.prefix - 1) * MODELS["glint"].text.dim * glint.dtype.itemsize
    assert glint.picture_bytes == size


def test_what_is_told_is_what_is_taken() -> None:
    """The arithmetic against a model that was loaded, the ledger's sizes, and what an inspection adds up."""
    for kept in ("auto", "fp8"):
        model = load_model("glint", "cpu", kv_dtype=kept).model
        took = footprint(MODELS["glint"], model.dtype.itemsize, kept=model.kv_dtype.itemsize)
        check(model, took)
    assert inspect(have("glint")).facts.memory["float32"] == took.weights


def check(model: Model, took: Footprint) -> None:
    for rows in ROWS:
        limits = device_limits(model, EngineConfig(max_rows=rows), 2**62)
        assert limits.pages * model.page_bytes(limits.page_size) == took.cache(rows)


@pytest.mark.parametrize("rows", ROWS)
def test_memory_as_told_is_enough_for_so_many_rows(rows: int) -> None:
    model = load_model("glint", "cpu").model
    told = footprint(MODELS["glint"], model.dtype.itemsize).cache(rows)
    config = EngineConfig(max_rows=rows, kv_memory=told)
    assert device_limits(model, config, told).pages == device_limits(model, EngineConfig(max_rows=rows), 2**62).pages
