"""Downloads through the real client from a hub on this machine, and from its cache without one."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from safetensors.torch import save
from tests.weights.fake_hub import FakeHub, commit, running_hub
from tests.weights.layout_writers import GOLDEN, SECOND, internal, plain

from gapless.cli.main import main
from gapless.errors import InvalidRequest, ModelNotFound
from gapless.models.moondream.identify import identify
from gapless.models.registry import load_model
from gapless.weights.catalogue import MOONDREAM_2, STARMIE
from gapless.weights.folder import find_files
from gapless.weights.hub import fetch, have, locate

TOKENIZER = (GOLDEN / SECOND / "tokenizer.json").read_bytes()
CONFIG = (GOLDEN / SECOND / "config.json").read_bytes()
WEIGHTS = save(internal(plain(SECOND)))
OTHER = "someone/tuned-1.0"
BESIDE = {"README.md": b"words", "moondream.py": b"raise SystemExit", "model_fp8.pt": b"pickle", "LICENSE": b"terms"}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("GAPLESS_CACHE", str(tmp_path / "cache"))
    model = {"config.json": CONFIG, "model.safetensors": WEIGHTS, **BESIDE}
    server.repos = {
        MOONDREAM_2: {
            "2025-06-21": {**model, "tokenizer.json": b"stale"},
            "2025-01-09": {**model, "config.json": b'{"model_type": "moondream1", "config": {}}'},
            "2024-08-26": {"tokenizer.json": b"words"},
        },
        STARMIE: {"main": {"tokenizer.json": TOKENIZER}},
        OTHER: {"main": {**model, "tokenizer.json": TOKENIZER}},
    }
    server.refuse, server.cut, server.asked = None, "", []
    return server


def gone(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is not there any more."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    )


def test_the_latest_revision_with_its_own_tokenizer_and_nothing_that_is_not_read(hub: FakeHub) -> None:
    found = locate(MOONDREAM_2)
    assert (found.name, found.revision, found.behaves) == (MOONDREAM_2, "2025-06-21", "2025-06-21")
    assert found.folder.name == commit("2025-06-21")
    assert found.tokenizer is not None and found.tokenizer.read_bytes() == TOKENIZER
    assert find_files(found.folder, found.tokenizer).tokenizer == found.tokenizer
    assert {"README.md", "moondream.py", "model_fp8.pt"}.isdisjoint(hub.fetched())
    assert {path.name for path in found.folder.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", "LICENSE"}  # fmt: skip
    assert load_model(MOONDREAM_2).name == MOONDREAM_2


def test_an_older_revision_is_run_as_what_it_is(hub: FakeHub) -> None:
    found = locate(f"{MOONDREAM_2}@2025-01-09")
    assert (found.revision, found.behaves) == ("2025-01-09", "2025-01-09")
    assert found.tokenizer is not None and found.tokenizer.read_bytes() == b"words"
    config = identify(find_files(found.folder, found.tokenizer), found.behaves)
    assert (config.revision, config.region.sizes, config.tokenizer.bos_id) == ("2025-01-09", "linear", 50256)


def test_what_is_cached_needs_no_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = locate(OTHER)
    asked = len(hub.asked)
    assert locate(OTHER) == have(OTHER) == first
    assert len(hub.asked) == asked
    gone(hub, monkeypatch)
    assert locate(OTHER) == first
    with pytest.raises(ModelNotFound, match=r"could not be downloaded|cannot be reached"):
        locate(MOONDREAM_2)


def test_a_transfer_that_broke_off_is_gone_on_with(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**16)
    hub.cut = "model.safetensors"
    found = fetch(OTHER)
    assert (found.folder / "model.safetensors").read_bytes() == WEIGHTS
    ranges = [asked for method, path, asked in hub.asked if method == "GET" and path.endswith("model.safetensors")]
    assert len(ranges) > 1
    assert any(asked and not asked.startswith("bytes=0-") for asked in ranges[1:]), ranges


def test_a_cache_that_is_not_whole_is_completed(hub: FakeHub) -> None:
    found = fetch(OTHER)
    (found.folder / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="gapless pull"):
        have(OTHER)
    assert locate(OTHER) == found and (found.folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("name", "refuse", "words"),
    [
        (OTHER, (403, "GatedRepo"), ("is gated", "hf auth login")),
        (OTHER, (401, "RepoNotFound"), ("has no", "hf auth login")),
        (OTHER, (403, ""), ("403", "hf auth login")),
        (OTHER, (418, ""), ("418", "try again")),
        ("someone/else", None, ("has no 'someone/else'", "spelling")),
        (f"{OTHER}@v9", None, ("no revision 'v9'", "tags")),
        (f"{MOONDREAM_2}@2025-02-30", None, ("no revision '2025-02-30'", "known are 2025-01-09")),
    ],
)
def test_refusals_say_why_and_what_to_do(
    hub: FakeHub, name: str, refuse: tuple[int, str] | None, words: tuple[str, ...]
) -> None:
    hub.refuse = refuse
    with pytest.raises(ModelNotFound) as caught:
        locate(name)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_full_disk_is_told_with_the_room_there_is(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, local_files_only: bool, **__: object) -> str:
        if local_files_only:
            raise FileNotFoundError
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(ModelNotFound, match=r"the disk is full \(.* GB are free at .*GAPLESS_CACHE"):
        locate(OTHER)


def test_a_revision_said_twice_is_said_alike(hub: FakeHub) -> None:
    assert locate(f"{OTHER}@main", "main").revision == "main"
    with pytest.raises(InvalidRequest, match="say it once"):
        locate(f"{OTHER}@main", "v2")
    with pytest.raises(InvalidRequest, match="no revision behind"):
        locate(f"{OTHER}@")


def test_pull_then_models_then_inspect(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", MOONDREAM_2, "--json"]) == 0
    pulled = json.loads(capsys.readouterr().out)
    assert (pulled["name"], pulled["revision"], pulled["size"]) == (MOONDREAM_2, "2025-06-21", len(WEIGHTS))
    assert "Apache-2.0" in pulled["licence"]
    assert main(["pull", MOONDREAM_2]) == 0
    assert pulled["folder"] in capsys.readouterr().out
    assert main(["models", "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows[MOONDREAM_2]["folder"] == pulled["folder"]
    assert rows[f"{MOONDREAM_2}@2025-01-09"]["folder"] is None
    assert main(["inspect", MOONDREAM_2, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layout"], found["revision"], found["problems"]) == ("internal", "2025-06-21", [])
    assert main(["pull", "glint"]) == 1
    assert "glint is bundled with gapless and needs no download" in capsys.readouterr().err
