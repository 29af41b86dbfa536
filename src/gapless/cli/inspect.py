"""`gapless inspect`: what a checkpoint is, what it takes, and what of it does not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gapless.cli.models import LICENCE
from gapless.cli.options import KVDTypeChoice, ReportJsonOption
from gapless.cli.show import json_line
from gapless.cli.terminal import complain, one_line, table
from gapless.errors import GaplessError

if TYPE_CHECKING:
    from gapless.models.moondream.config import MoondreamConfig
    from gapless.models.moondream.inspecting import Inspected

OURS = f"{LICENCE}, as the package"
ROWS_TOLD = (1, 8, 16, 32, 64)
"""Requests at once, of which it is said what they take."""
KEPT = "fp8"
"""In which keys and values may be kept, whatever the weights are in."""
TWIN = "float16"
"""Takes what bfloat16 takes."""
SPELT_OUT = 20
"""Problems that are shown to people; the rest are counted."""

FolderArgument = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|NAME[@revision]", help="A model folder, a name that `gapless pull` has got, or an adapter."
    ),
]


KVDTypeOption = Annotated[
    KVDTypeChoice,
    typer.Option(
        "--kv-dtype", metavar="KIND", help="How the KV cache is kept in what all takes together: auto or fp8."
    ),
]


def inspect(
    folder: FolderArgument, kv_dtype: KVDTypeOption = KVDTypeChoice.AUTO, json: ReportJsonOption = False
) -> int:
    """Look at a checkpoint, or an adapter, without loading it. Ends with 1 if loading it would be refused."""
    from gapless.models.moondream.inspecting import inspect as look
    from gapless.weights.hub import have

    if (adapter := _adapter_at(folder)) is not None:
        if kv_dtype is not KVDTypeChoice.AUTO:
            raise typer.BadParameter(f"--kv-dtype is of a model's KV cache, and {folder} is an adapter; leave it out")
        return _inspect_adapter(adapter, json)
    located = have(folder)
    try:
        found = look(located)
        shown = _facts(found, located.name, (*found.problems, *_tokenizer_problems(found)), kv_dtype)
    except GaplessError as error:
        if not json:
            raise
        shown = {"folder": str(located.folder), "problems": [one_line(error)]}
    if json:
        json_line(shown)
    else:
        _show(shown)
    return 1 if shown["problems"] else 0


def _adapter_at(text: str) -> Path | None:
    """Where an adapter lies, if a text names one: a bundled one, a file of tensors, or a folder that is no model's."""
    from gapless.api.shelf import adapter_path
    from gapless.weights.adapters import FILES
    from gapless.weights.folder import CONFIG, WEIGHTS, is_file
    from gapless.weights.stored import PICKLED

    if not text or "\0" in text:
        return None
    path = Path(adapter_path(text))
    if is_file(path):
        return path if path.suffix in (Path(WEIGHTS).suffix, *PICKLED) else None
    holds = any(is_file(path / name) for name in FILES)
    return path if holds and not (path / CONFIG).exists() and not (path / WEIGHTS).exists() else None


def _inspect_adapter(path: Path, json: bool) -> int:
    from gapless.models.moondream.adapter_seen import inspect_adapter

    try:
        found = inspect_adapter(path)
        shown = asdict(found) | {"file": str(found.file), "problems": list(found.problems)}
    except GaplessError as error:
        if not json:
            raise
        shown = {"file": str(path), "problems": [one_line(error)]}
    if json:
        json_line({"adapter": True} | shown)
    else:
        size = f"{shown['tensors']}, {shown['bytes'] / 1e6:.3f} MB"
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in shown["dtypes"].items())
        fits = ", ".join(shown["fits"]) or "none of glint, Moondream 2 and Moondream 3 in their published sizes"
        rows = [("adapter", shown["file"]), ("rank", shown["rank"]), ("linears", shown["linears"]), ("tensors", size)]
        table(("", ""), [*rows, ("dtypes", dtypes), ("fits", fits)])
        _complain_of(shown["problems"])
    return 1 if shown["problems"] else 0


def _tokenizer_problems(found: Inspected) -> list[str]:
    """What loading would say of the tokenizer; that there is none is told already."""
    from gapless.models.moondream.templates import Templates
    from gapless.skills.own_tokenizer import open_tokenizer
    from gapless.weights.folder import is_file

    if found.config is None or not is_file(found.tokenizer):
        return []
    try:
        open_tokenizer(Templates.of(found.config), found.tokenizer)
    except GaplessError as error:
        return [str(error)]
    return []


def _facts(found: Inspected, name: str, problems: Sequence[str], kv_dtype: KVDTypeChoice) -> dict[str, Any]:
    from gapless.weights.catalogue import terms_of
    from gapless.weights.facts import MEMORY_IN
    from gapless.weights.hub import BUNDLED

    config, numbers = found.config, found.facts
    kept = {**MEMORY_IN, KEPT: 1}
    caches = {dtype: _cache(config, itemsize) for dtype, itemsize in kept.items()} if config else {}
    tables = _tables(config) if config else None
    dims = {part: asdict(getattr(config, part)) for part in ("text", "vision", "region")} if config else {}
    licence = OURS if name in BUNDLED else terms_of(name, config.revision if config else "")
    return {
        "folder": str(found.folder),
        "files": [path.name for path in found.files],
        "layout": found.layout,
        "revision": config.revision if config else None,
        "tensors": numbers.tensors,
        "bytes": numbers.bytes,
        "dtypes": dict(numbers.dtypes),
        "parameters": numbers.parameters,
        "memory": dict(numbers.memory),
        "kv_cache": caches,
        "token_tables": tables,
        "kv_dtype": kv_dtype.value,
        "in_all": _in_all(numbers.memory, caches, tables or 0, kv_dtype),
        "licence": licence,
        "dimensions": dims,
        "problems": list(problems),
    }


def _cache(config: MoondreamConfig, itemsize: int) -> dict[str, Any]:
    """Bytes of the KV cache: of one token, and of so many requests at the full context."""
    from gapless.models.moondream.footprint import footprint

    took = footprint(config, itemsize)
    return {"token": took.token, "context": took.max_context, "rows": {str(n): took.cache(n) for n in ROWS_TOLD}}


def _in_all(
    weights: Mapping[str, int], caches: Mapping[str, Any], tables: int, kv_dtype: KVDTypeChoice
) -> dict[str, dict[str, int]]:
    """Bytes of weights in a dtype, of the KV cache of so many requests, and of tables of rules, together."""
    kept = {dtype: caches.get(KEPT if kv_dtype is KVDTypeChoice.FP8 else dtype) for dtype in weights}
    return {
        dtype: {rows: weights[dtype] + cache + tables for rows, cache in each["rows"].items()}
        for dtype, each in kept.items()
        if each is not None
    }


def _tables(config: MoondreamConfig) -> int:
    """Bytes of all slots for rules."""
    from gapless.config import EngineConfig
    from gapless.models.footprint import token_tables

    usual = EngineConfig()
    return token_tables(config.text.vocab_size, usual.grammars, usual.grammar_memory)


def _show(shown: dict[str, Any]) -> None:
    dims, problems = shown["dimensions"], shown["problems"]
    rows = [(key, shown[key] or "not known") for key in ("folder", "layout", "revision", "licence")]
    rows += [("files", ", ".join(shown["files"])), ("tensors", f"{shown['tensors']}, {shown['bytes'] / 1e9:.3f} GB")]
    rows += [("dtypes", ", ".join(f"{count} {dtype}" for dtype, count in shown["dtypes"].items()))]
    rows += [(part, _dimensions(values)) for part, values in dims.items()]
    if dims:
        memory = ", ".join(f"{size / 1e9:.3f} GB in {dtype}" for dtype, size in shown["memory"].items())
        rows += [("parameters", f"{shown['parameters']:,}"), ("weights take", memory)]
        rows += [(f"KV cache, {dtype}", _told(cache)) for dtype, cache in shown["kv_cache"].items() if dtype != TWIN]
        rows += [("tables of rules", f"{shown['token_tables'] / 1e9:.3f} GB")]
        cached = f", KV cache in {KEPT}" if shown["kv_dtype"] == KEPT else ""
        rows += [(f"all, {dtype}{cached}", _of_rows(each)) for dtype, each in shown["in_all"].items() if dtype != TWIN]
    table(("", ""), rows)
    _complain_of(problems)


def _complain_of(problems: Sequence[str]) -> None:
    for problem in problems[:SPELT_OUT]:
        complain(problem)
    if len(problems) > SPELT_OUT:
        complain(f"and {len(problems) - SPELT_OUT} more problems")


def _told(cache: dict[str, Any]) -> str:
    rows = _of_rows(cache["rows"])
    return f"{cache['token']:,} bytes a token; requests at the full context of {cache['context']}: {rows}"


def _of_rows(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{size / 1e9:.3f} GB for {count}" for count, size in sizes.items())


def _dimensions(values: dict[str, Any]) -> str:
    """Those that there are: a dense model has no experts."""
    return ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
