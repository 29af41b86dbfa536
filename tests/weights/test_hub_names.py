"""From a name to a folder; the hub's client is replaced, nothing is fetched."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors as hub_errors

from gapless.errors import ModelNotFound
from gapless.weights import hub
from gapless.weights.hub import locate


def test_a_bundled_name_is_in_the_package() -> None:
    found = locate("glint")
    assert found.folder.parts[-3:] == ("gapless", "assets", "glint")
    assert (found.name, found.revision) == ("glint", None)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    for name in (tmp_path, str(tmp_path)):
        found = locate(name)
        assert (found.folder, found.name, found.revision) == (tmp_path, tmp_path.name, None)


@pytest.mark.parametrize(
    "name", ["", "glimt", "./none", "/no/such/folder", "a/b/c", "~/no-such", "owner/", "owner name/x"]
)
def test_what_is_neither_name_nor_folder_is_refused_with_what_would_do(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        locate(name)
    assert repr(name) in str(caught.value)
    assert "'glint'" in str(caught.value)
    assert caught.value.param == "model"


def test_a_path_object_is_never_a_hub_id() -> None:
    with pytest.raises(ModelNotFound):
        locate(Path("owner/name"))


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.touch()
    with pytest.raises(ModelNotFound, match="a file, not a folder"):
        locate(path)


REFUSALS = [
    (hub_errors.GatedRepoError, "accept its terms"),
    (hub_errors.RepositoryNotFoundError, "check the spelling"),
    (hub_errors.RevisionNotFoundError, "no revision 'v2'"),
    (hub_errors.LocalEntryNotFoundError, "HF_HUB_OFFLINE"),
    (hub_errors.HfHubHTTPError, "try again"),
    (hub_errors.HFValidationError, "the cause"),
    (OSError, "the cause"),
]


@pytest.mark.parametrize(("kind", "remedy"), REFUSALS)
def test_every_refusal_of_the_hub_is_a_model_not_found_with_the_remedy(
    kind: type[Exception], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client's releases disagree on what their errors are made from, so the constructor is left out.
    error = kind.__new__(kind, "the cause")

    def download(name: str, **settings: Any) -> str:
        if settings["local_files_only"]:
            raise hub_errors.LocalEntryNotFoundError("nothing is cached")
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelNotFound) as caught:
        hub.locate("owner/name", "v2")
    assert remedy in str(caught.value)
    assert "owner/name" in str(caught.value)
    assert caught.value.__cause__ is error


def test_offline_and_not_cached(tmp_path: Path) -> None:
    """The real client, told to stay offline, with an empty cache."""
    code = (
        "from gapless.errors import ModelNotFound\n"
        "from gapless.weights.hub import locate\n"
        "try: locate('owner/name')\n"
        "except ModelNotFound as error: print(error)"
    )
    environment = {
        "PYTHONPATH": str(Path(hub.__file__).parents[2]),
        "HF_HUB_OFFLINE": "1",
        "GAPLESS_CACHE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "is not in the cache" in done.stdout


def test_the_client_is_imported_only_for_a_hub_id() -> None:
    code = (
        "import sys\nfrom gapless.weights.hub import locate\nlocate('glint')\n"
        "assert 'huggingface_hub' not in sys.modules"
    )
    environment = {"PYTHONPATH": str(Path(hub.__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
