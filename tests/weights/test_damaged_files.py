"""Files that are cut, changed or hostile: one clear error, never a crash, and nothing of them runs."""

import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor

from gapless.errors import InvalidCheckpoint
from gapless.weights.checkpoint import read_tensors
from gapless.weights.folder import find_weights
from gapless.weights.recipes import Plain
from gapless.weights.stored import open_files, read_headers

SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (3, 5), "a.bias": (3,), "c": (2, 2, 2)}
MADE = {name: torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) for name, shape in SHAPES.items()}
WHOLE = save(MADE)
HEADER = 8 + int.from_bytes(WHOLE[:8], "little")
QUIET = settings(derandomize=True, deadline=None, max_examples=120)


def read(path: Path) -> dict[str, Tensor]:
    read_headers((path,))
    with open_files((path,)) as stored:
        recipes = {name: Plain(name, shape) for name, shape in SHAPES.items()}
        return read_tensors(stored, recipes, torch.float32, torch.device("cpu"))


def refused(path: Path) -> str:
    with pytest.raises(InvalidCheckpoint) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    return message


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@QUIET
@given(kept=st.integers(0, len(WHOLE) - 1))
def test_a_file_cut_anywhere_is_refused(place: Path, kept: int) -> None:
    path = place / "cut.safetensors"
    path.write_bytes(WHOLE[:kept])
    assert "Download it again" in refused(path)


@QUIET
@given(at=st.integers(0, HEADER - 1), to=st.integers(0, 255))
def test_a_changed_byte_of_the_header_is_refused_or_changes_no_number(place: Path, at: int, to: int) -> None:
    """Names, shapes and places are checked against one another and against the model."""
    path = place / "changed.safetensors"
    path.write_bytes(WHOLE[:at] + bytes([to]) + WHOLE[at + 1 :])
    try:
        found = read(path)
    except InvalidCheckpoint as error:
        assert str(path) in str(error)
    else:
        assert all(torch.equal(found[name], tensor) for name, tensor in MADE.items())


@QUIET
@given(more=st.binary(min_size=1, max_size=40))
def test_bytes_behind_the_last_tensor_are_refused(place: Path, more: bytes) -> None:
    path = place / "long.safetensors"
    path.write_bytes(WHOLE + more)
    refused(path)


def pickled(path: Path) -> bytes:
    torch.save(MADE, path)
    return path.read_bytes()


def test_a_pt_file_is_read_without_a_copy_in_between(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    pickled(path)
    found = read(path)
    assert all(torch.equal(found[name], tensor) for name, tensor in MADE.items())


@QUIET
@given(data=st.data())
def test_a_pt_file_cut_or_changed_anywhere_never_crashes(place: Path, data: st.DataObject) -> None:
    path = place / "model.pt"
    whole = pickled(path)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:at])
        refused(path)
        return
    path.write_bytes(whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :])
    try:
        assert read(path).keys() == SHAPES.keys()
    except InvalidCheckpoint as error:
        assert str(path) in str(error)


ADVICE = re.compile("weights_only|mmap|unpickler|untrusted|trust the source|_use_new")
"""What torch says of files that it does not read: how to run them all the same."""


class Hostile:
    """A pickle that runs a command when it is read the ordinary way."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_s_sec_05_a_pickle_with_code_in_it_is_refused_and_not_run(tmp_path: Path, legacy: bool, beside: bool) -> None:
    path, mark = tmp_path / "model.pt", tmp_path / "it-ran"
    content = {**MADE, "c": Hostile(mark)} if beside else Hostile(mark)
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    message = refused(path)
    assert not mark.exists()
    assert "safetensors" in message
    assert not ADVICE.search(message)
    if not legacy:
        assert "none of it was run: it wants posix.system." in message
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
            assert b"system" in archive.read(name)


@pytest.mark.parametrize(
    "content", [[1, 2], {"a": 1}, {1: torch.ones(1)}, {"model": MADE}, {"a": torch.nn.Parameter(torch.ones(1))}]
)
def test_a_pt_file_of_something_else_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "model.pt"
    torch.save(content, path)
    assert "other than tensors by name" in refused(path)


def test_a_bare_pickle_is_refused(tmp_path: Path) -> None:
    path, mark = tmp_path / "model.pt", tmp_path / "it-ran"
    path.write_bytes(pickle.dumps(Hostile(mark)))
    assert not ADVICE.search(refused(path))
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"hello world" * 100, b"PK\x03\x04" + b"x" * 200])
def test_what_is_no_file_of_torch_is_said_without_torchs_words(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    message = refused(path)
    assert not ADVICE.search(message) and "safetensors" in message


def test_a_number_beside_the_tensors_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save({**MADE, "step": 3}, path)
    assert "'step' is 3 (int)" in refused(path)


def test_a_tensor_that_claims_more_than_it_has_is_refused(tmp_path: Path) -> None:
    """Eight bytes that stand for a terabyte, no tensor's memory at all, or one that is not laid out plainly."""
    path = tmp_path / "model.pt"
    for tensor in (
        torch.ones(1).expand(10**12),
        torch.empty(10**12, device="meta"),
        torch.sparse_coo_tensor(
            torch.zeros((1, 1), dtype=torch.int64), torch.ones(1), (10**12,), check_invariants=True
        ),
    ):
        torch.save({**MADE, "huge": tensor}, path)
        assert "'huge'" in refused(path)


def test_a_compressed_archive_is_not_unpacked(tmp_path: Path) -> None:
    path, packed = tmp_path / "model.pt", tmp_path / "packed.pt"
    pickled(path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as small:
        for name in whole.namelist():
            small.writestr(name, whole.read(name))
    assert "compressed" in refused(packed)


def test_a_file_that_is_cut_short_is_told_with_the_tensor_and_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(WHOLE[:-1])
    *_, last = sorted(json.loads(WHOLE[8:HEADER]).items(), key=lambda entry: entry[1].get("data_offsets", (0,))[0])
    message = refused(path)
    assert f"it ends after {len(WHOLE) - 1} of {len(WHOLE)} bytes, {last[0]} is not whole" in message
    path.write_bytes(WHOLE[:HEADER])
    assert f"and {len(SHAPES) - 1} more are not whole" in refused(path)


def test_of_two_pickles_neither_is_guessed(tmp_path: Path) -> None:
    for name in ("model.pt", "other.pth"):
        pickled(tmp_path / name)
    with pytest.raises(InvalidCheckpoint, match=r"model\.pt, other\.pth, and nothing says which is meant"):
        find_weights(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    assert find_weights(tmp_path) == (tmp_path / "model.safetensors",)
