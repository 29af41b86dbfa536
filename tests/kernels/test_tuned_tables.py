"""Files that `gapless tune` keeps: found for the card and sizes they are for; else passed by, with a word, once."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gapless.config import tune_folder
from gapless.kernels.triton import tuned
from gapless.kernels.triton.choices import Dims, Gpu
from gapless.kernels.triton.sparse_choices import Own, SparseDims, choice
from gapless.kernels.triton.table import Table, built_in, parse
from gapless.kernels.triton.tuned import Card, Sizes, Tuned

CARD = Card("NVIDIA H200", (9, 0))
NEW = Card("NVIDIA B300 SXM6 AC / rev. 2", (10, 3))
SIZES = Sizes.decode(Dims(2048, 8192, 32, 32, 51200), torch.bfloat16)
VERSIONS = {"gapless": "0", "torch": "0", "cuda": "0"}
USUAL = built_in((9, 0))
assert USUAL is not None
MINE = Table({8: USUAL.decode[16]}, {}, "")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned.forget()
    yield tmp_path / "gapless" / "tune"
    tuned.forget()


def kept(card: Card = CARD, table: Table = MINE, sizes: Sizes = SIZES) -> Path:
    return tuned.write(Tuned(card, sizes, table, "2026-01-02 03:04 UTC", {"8": {"after_us": 1.0}}), VERSIONS)


def test_a_file_lies_in_the_cache_and_is_used_over_what_is_built_in(folder: Path) -> None:
    assert tuned.table_for(CARD, SIZES) == USUAL
    path = kept()
    assert path == folder / "NVIDIA-H200-decode-2048x8192x32x32x51200-bfloat16.json"
    found = tuned.table_for(CARD, SIZES)
    assert found is not None and USUAL is not None
    assert found.decode == {**USUAL.decode, 8: USUAL.decode[16]} and found.experts == USUAL.experts
    assert "2026-01-02 03:04 UTC" in found.source and str(path) in found.source
    assert sorted(p.name for p in folder.iterdir()) == [path.name]
    other = Sizes.decode(Dims(2048, 8192, 32, 32, 51200), torch.float16)
    assert tuned.table_for(CARD, other) == USUAL and tuned.table_for(replace(CARD, name="NVIDIA H100"), SIZES) == USUAL


def test_two_runs_that_write_at_once_leave_a_whole_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process begins to write where this one has not put its file in place yet, and the other way round."""
    replaced, whole = Path.replace, Path.write_text

    def meanwhile(new: Path, path: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replaced)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        kept(table=Table({16: USUAL.decode[16]}, {}, ""))
        return replaced(new, path)

    monkeypatch.setattr(Path, "replace", meanwhile)
    path = kept()
    assert [p.name for p in folder.iterdir()] == [path.name] and tuned.read(
        path, CARD, SIZES
    ).table.decode == MINE.decode

    def broken(new: Path, text: str, encoding: str) -> int:
        whole(new, text[:100], encoding=encoding)
        raise OSError("no room")

    monkeypatch.setattr(Path, "write_text", broken)
    with pytest.raises(OSError, match="no room"):
        kept(table=Table({16: USUAL.decode[16]}, {}, ""))
    assert [p.name for p in folder.iterdir()] == [path.name] and tuned.read(
        path, CARD, SIZES
    ).table.decode == MINE.decode


def test_a_card_that_no_table_was_made_for_has_what_was_tuned_on_it_or_nothing(folder: Path) -> None:
    assert tuned.table_for(NEW, SIZES) is None
    path = kept(NEW)
    assert path.parent == folder and path.name.startswith("NVIDIA-B300-SXM6-AC-rev-2-decode")
    found = tuned.table_for(NEW, SIZES)
    assert found is not None and found.decode == MINE.decode


def test_experts_have_files_of_their_own() -> None:
    assert USUAL is not None
    sizes = Sizes.experts(64, 2048, 1024, "float8")
    kept(table=Table({}, {1: {16: USUAL.experts[1][16]}}, ""), sizes=sizes)
    found = tuned.table_for(CARD, sizes)
    assert found is not None and found.experts == USUAL.experts and "tuned" in found.source


STEP = SparseDims(2048, 8192, 32, 32, 51200, 64, 8, 1024, 1)


def test_steps_with_experts_have_files_of_their_own() -> None:
    gpu, sizes = Gpu(227 * 1024, True, {}), Sizes.sparse(STEP, torch.bfloat16)
    made = {rows: replace(choice(STEP, rows, 2, gpu), pdl=0) for rows in (1, 8, 64)}
    path = kept(table=Table({}, {}, "", made), sizes=sizes)
    assert path.name == "NVIDIA-H200-sparse-2048x8192x32x32x51200x64x8x1024-float8-bfloat16.json"
    found = tuned.table_for(CARD, sizes)
    assert found is not None and found.sparse == made and "tuned" in found.source and found.decode == USUAL.decode
    assert [choice(STEP, rows, 2, gpu, Own(found.sparse)).pdl > 0 for rows in (1, 4, 8, 64)] == [
        False,
        True,
        False,
        False,
    ]
    over = Table({}, {}, "", {8: made[1]}).over(found)
    assert over.sparse == {**made, 8: made[1]}
    whole, few = json.loads(path.read_text()), {"rows": 8, "lines": 128, "deep": 64, "warps": 1, "stages": 2}
    for name, value, says in (
        ("up", {**whole["table"]["sparse"]["8"]["up"], "bn": 32}, "bn is 32"),
        ("proj", {**whole["table"]["sparse"]["8"]["proj"], "splits": 8}, "have splits, 5 at most"),
        ("close", 3, "close: warps is 3"),
        ("cut", 1, "cut is 1, but must be true or false"),
        ("dense", {**whole["table"]["sparse"]["8"]["dense"], "mode": "one"}, "for a single row"),
        ("experts", {"up": few, "down": {**few, "rows": 16}}, "as many rows"),
        ("experts", {"up": few, "down": {**few, "rows": 2}}, "rows is 2"),
        (
            "experts",
            {"up": {**few, "rows": 128}, "down": {**few, "rows": 128}},
            "128 times 128 is too large for 1 warps",
        ),
    ):
        table = {"sparse": {"8": {**whole["table"]["sparse"]["8"], name: value}}}
        with pytest.raises(ValueError, match=says):
            parse(table, "")


def test_a_later_run_keeps_what_an_earlier_one_found() -> None:
    assert USUAL is not None
    kept()
    again = tuned.merged(Tuned(CARD, SIZES, Table({1: USUAL.decode[1]}, {}, ""), "now", {"1": {}}))
    assert again.table.decode.keys() == {1, 8} and again.measured.keys() == {"1", "8"} and again.when == "now"
    better = tuned.merged(Tuned(CARD, SIZES, Table({8: USUAL.decode[32]}, {}, ""), "now", {"8": {"after_us": 0.5}}))
    assert better.table.decode == {8: USUAL.decode[32]} and better.measured == {"8": {"after_us": 0.5}}


def spoilt(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


STALE = {
    "format": ({"format": 2}, "its format is 2"),
    "kernels": ({"kernels": "0" * 12}, "its kernels is"),
    "triton": ({"triton": "1.0"}, "its triton is"),
    "card": ({"gpu": "NVIDIA H100"}, "its gpu is"),
    "capability": ({"capability": 9.0}, "its capability is"),
    "sizes": ({"sizes": "decode-1"}, "its sizes is"),
    "table": ({"table": None}, "the table is no object"),
    "tile": ({"table": {"decode": {"8": 1}}}, "decode 8 is no object"),
    "when": ({"when": 5}, "when it was made"),
    "long word": ({"kernels": "x" * 5000}, "its kernels is 'xxx"),
}


@pytest.mark.parametrize(("values", "says"), STALE.values(), ids=STALE)
def test_a_stale_file_is_passed_by_with_one_warning(
    values: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = kept()
    spoilt(path, **values)
    for _ in range(3):
        assert tuned.table_for(CARD, SIZES) == USUAL
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and says in warnings[0] and "gapless tune" in warnings[0] and len(warnings[0]) < 500


DAMAGED = {
    "empty": b"",
    "half": b'{"format": 1, "gpu',
    "list": b"[]",
    "null": b"null",
    "bytes": b"\xff\xfe\x00{}",
    "deep": b"[" * 200_000,
    "huge number": b'{"format": ' + b"9" * 5000 + b"}",
    "too long": b" " * (2**20 + 1) + b"{}",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_passed_by_with_one_warning(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    kept().write_bytes(content)
    for _ in range(2):
        assert tuned.table_for(CARD, SIZES) == USUAL
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "is not used" in warnings[0] and len(warnings[0]) < 500


def test_a_folder_in_its_place_is_passed_by_too(caplog: pytest.LogCaptureFixture) -> None:
    path = tuned.path_of(CARD, SIZES)
    path.mkdir(parents=True)
    assert tuned.table_for(CARD, SIZES) == USUAL and "is not used" in caplog.text


def test_a_relative_cache_home_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert tune_folder() == str(tmp_path / ".cache" / "gapless" / "tune")


def test_the_kernels_digest_follows_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({tuned.digest(part) for part in tuned.SOURCES}) == len(tuned.SOURCES)
    path = kept()
    monkeypatch.setitem(tuned.SOURCES, "decode", ("experts_jit.py",))
    tuned.digest.cache_clear()
    try:
        with pytest.raises(ValueError, match="its kernels is"):
            tuned.read(path, CARD, SIZES)
    finally:
        tuned.digest.cache_clear()
