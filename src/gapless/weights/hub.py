"""From a model's name to a folder on this machine: bundled, local, or fetched from the Hugging Face hub.

In: a bundled name, a folder, or `owner/name`, each of the latter two with `@revision` if wanted. Out: `Located`. The
hub's client is imported only when a hub id is asked for. Only the files of `folder.PATTERNS` are fetched, and only if
they are not in the cache: with a complete cache nothing is asked of the network. `fetch` asks anew.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gapless.config import cache_folder
from gapless.errors import InvalidCheckpoint, InvalidRequest, ModelNotFound, shown
from gapless.weights.catalogue import CATALOGUE, behaviour_of, tokenizer_of
from gapless.weights.folder import PATTERNS, TOKENIZER, find_files

ASSETS = Path(__file__).resolve().parent.parent / "assets"
BUNDLED = ("glint",)
"""Models that come with the package."""

BEGUN = 5
"""Letters from which on the beginning of a name may mean it."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Located:
    """A model folder and what it was asked for as.

    `revision`: the hub's, None for a folder. `behaves`: the revision it is to be run as, None if its files say so.
    `tokenizer`: the one to take, None for the folder's own.
    """

    folder: Path
    name: str
    revision: str | None
    behaves: str | None = None
    tokenizer: Path | None = None


def locate(name: str | Path, revision: str | None = None) -> Located:
    """Find the folder of a bundled name, a local folder, or a hub id `owner/name` (downloaded if need be).

    Of a hub id `revision` is the hub's tag, branch or commit; of a folder, which revision it is to be run as. Raises
    `ModelNotFound` saying what can be given instead.
    """
    if str(name) in BUNDLED:
        return Located(ASSETS / str(name), str(name), None)
    if _is_folder(str(name)):
        return _local(Path(name), revision)
    text, asked = split_name(str(name), revision)
    if asked and _is_folder(text):
        return _local(Path(text), asked)
    exists = _exists(text)
    if isinstance(name, str) and _HUB_ID.fullmatch(text) and not exists:
        return cached(text, asked) or fetch(text, asked)
    what = "a file, not a folder" if exists else "neither a bundled model nor a folder"
    raise ModelNotFound(
        f"{shown(str(name))} is {what}.{similar(text)} Give {' or '.join(map(repr, BUNDLED))}, the path of a model "
        "folder, or a hub id like 'owner/name' or 'owner/name@revision'.",
        param="model",
    )


def similar(text: str) -> str:
    """What may have been meant: a published name, or the end of one, whole or its beginning."""
    ends = {full.rpartition("/")[2]: full for full in (*BUNDLED, *CATALOGUE)}
    said = text.rpartition("/")[2][:80].lower()
    begun = [end for end in ends if len(said) >= BEGUN and end.lower().startswith(said)]
    near = begun or get_close_matches(said, ends, n=1, cutoff=0.75)
    return f" Do you mean {ends[near[0]]!r}?" if near else ""


def have(name: str) -> Located:
    """As `locate`, but nothing is fetched. Raises `ModelNotFound` for a hub id that is not in the cache."""
    text, asked = split_name(name)
    if text in BUNDLED or _exists(name) or _exists(text) or not is_hub_id(text):
        return locate(name)
    found = cached(text, asked)
    if found is None:
        raise ModelNotFound(
            f"{name!r} is not in the cache, or not whole: run `gapless pull {name}` first.", param="model"
        )
    return found


def split_name(text: str, revision: str | None = None) -> tuple[str, str | None]:
    """`NAME[@revision]` in its two parts. Raises `InvalidRequest` if `revision` says otherwise, or is empty."""
    name, at, said = text.partition("@")
    if at and not said:
        raise InvalidRequest(f"{shown(text)} names no revision behind its @; leave it out, or say one", param="model")
    if said and revision not in (None, said):
        raise InvalidRequest(f"{shown(text)} and revision {shown(revision)} differ; say it once", param="revision")
    return name, said or revision


def is_hub_id(text: str) -> bool:
    """Whether a text has the form `owner/name`."""
    return _HUB_ID.fullmatch(text) is not None


def fetch(name: str, revision: str | None = None) -> Located:
    """Bring the cache up to date with the hub and return what is there. What was begun earlier is gone on with.

    Raises `ModelNotFound` saying why it cannot be had and what to do.
    """
    revision = _meant(name, revision)
    with _explained(name, revision):
        folder = _snapshot(name, revision, offline=False)
    elsewhere = tokenizer_of(name, revision)
    tokenizer = None
    if elsewhere is not None:
        with _explained(*elsewhere):
            tokenizer = _tokenizer(*elsewhere, offline=False)
    return Located(folder, name, revision, behaviour_of(name, revision), tokenizer)


def cached(name: str, revision: str | None = None) -> Located | None:
    """What is in the cache, whole; None if it is not, or not whole. Nothing is asked of the network."""
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    revision, elsewhere = _meant(name, revision), tokenizer_of(name, _meant(name, revision))
    try:
        folder = _snapshot(name, revision, offline=True)
        tokenizer = _tokenizer(*elsewhere, offline=True) if elsewhere else None
        find_files(folder, tokenizer)
    except (LocalEntryNotFoundError, HFValidationError, ModelNotFound, InvalidCheckpoint, OSError):
        return None
    return Located(folder, name, revision, behaviour_of(name, revision), tokenizer)


def _meant(name: str, revision: str | None) -> str | None:
    """The revision that is meant: of what is published, the latest one that this version knows."""
    published = CATALOGUE.get(name)
    return revision or (published.latest if published else None)


def _local(folder: Path, behaves: str | None) -> Located:
    folder = folder.expanduser()
    return Located(folder, folder.resolve().name, None, behaves)


def _is_folder(text: str) -> bool:
    return _looks(text, Path.is_dir)


def _exists(text: str) -> bool:
    return _looks(text, Path.exists)


def _looks(text: str, how: Callable[[Path], bool]) -> bool:
    try:
        return bool(text) and how(Path(text).expanduser())
    except (OSError, RuntimeError, ValueError):  # longer than any path, behind a locked folder, or nobody's home
        return False


def _snapshot(name: str, revision: str | None, *, offline: bool) -> Path:
    from huggingface_hub import snapshot_download

    cache = cache_folder() or None
    patterns = list(PATTERNS)
    return Path(
        snapshot_download(name, revision=revision, cache_dir=cache, allow_patterns=patterns, local_files_only=offline)
    )


def _tokenizer(name: str, revision: str | None, *, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    cache = cache_folder() or None
    return Path(hf_hub_download(name, TOKENIZER, revision=revision, cache_dir=cache, local_files_only=offline))


@contextmanager
def _explained(name: str, revision: str | None) -> Iterator[None]:
    """What the hub's client raises inside becomes a `ModelNotFound` with the remedy."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except GatedRepoError as error:
        remedy = "accept its terms on huggingface.co and run `hf auth login`."
        raise ModelNotFound(f"{name!r} is gated: {remedy}", param="model") from error
    except RepositoryNotFoundError as error:
        remedy = "check the spelling, or run `hf auth login` if it is private."
        raise ModelNotFound(f"The hub has no {name!r}, or it is private: {remedy}", param="model") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{name!r} has no revision {revision!r}: {_known(name)}", param="model") from error
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, HfHubHTTPError):  # the hub was reached, and said something else than yes
            reason = _reason(error.__cause__)
            raise ModelNotFound(f"{name!r}{at} could not be downloaded: {reason}", param="model") from error
        remedy = "connect once to download it, unset HF_HUB_OFFLINE, or give a local folder."
        raise ModelNotFound(
            f"{name!r}{at} is not in the cache and the hub cannot be reached: {remedy}", param="model"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(f"{name!r}{at} could not be downloaded: {_reason(error)}", param="model") from error


def _known(name: str) -> str:
    published = CATALOGUE.get(name)
    return f"known are {', '.join(published.editions)}." if published else "see its page for tags."


def _reason(error: Exception) -> str:
    """Why a download failed, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the hub refuses it ({status}); run `hf auth login` with an account that may read it."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"the disk is full ({_free()}); make room, or set GAPLESS_CACHE to a folder on another disk. "
            "What has arrived is kept, and the next try goes on from there."
        )
    return f"{error}; try again, what has arrived is kept, or give a local folder."


def _free() -> str:
    """Room where downloads go."""
    from huggingface_hub import constants

    folder = Path(cache_folder() or constants.HF_HUB_CACHE)
    while not folder.exists():
        folder = folder.parent
    return f"{shutil.disk_usage(folder).free / 1e9:.1f} GB are free at {folder}"
