"""From a model's name to a folder on this machine: bundled, local, or fetched from the Hugging Face hub.

The hub's client is imported only when a hub id is asked for. Only the files of `folder.PATTERNS` are fetched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gapless.config import cache_folder
from gapless.errors import ModelNotFound, shown
from gapless.weights.folder import PATTERNS

ASSETS = Path(__file__).resolve().parent.parent / "assets"
BUNDLED = ("glint",)
"""Models that come with the package."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Located:
    """A model folder and what it was asked for as. `revision` is a hub revision, None for a folder."""

    folder: Path
    name: str
    revision: str | None


def locate(name: str | Path, revision: str | None = None) -> Located:
    """Find the folder of a bundled name, a local folder, or a hub id `owner/name` (downloaded if need be).

    Raises `ModelNotFound` saying what can be given instead.
    """
    text = str(name)
    if text in BUNDLED:
        return Located(ASSETS / text, text, None)
    folder = Path(text).expanduser()
    try:
        is_folder, exists = bool(text) and folder.is_dir(), folder.exists()
    except OSError:  # longer than any path, or behind a folder that may not be looked into
        is_folder, exists = False, False
    if is_folder:
        return Located(folder, folder.resolve().name, None)
    if isinstance(name, str) and _HUB_ID.fullmatch(text) and not exists:
        return Located(_download(text, revision), text, revision)
    what = "a file, not a folder" if exists else "neither a bundled model nor a folder"
    raise ModelNotFound(
        f"{shown(text)} is {what}. Give {' or '.join(map(repr, BUNDLED))}, the path of a model folder, or a hub id "
        "like 'owner/name'.",
        param="model",
    )


def _download(name: str, revision: str | None) -> Path:
    """Fetch a snapshot, or find it in the cache; offline, what is cached is used."""
    from huggingface_hub import snapshot_download
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
        return Path(
            snapshot_download(name, revision=revision, cache_dir=cache_folder() or None, allow_patterns=list(PATTERNS))
        )
    except GatedRepoError as error:
        remedy = "accept its terms on huggingface.co and run `hf auth login`."
        raise ModelNotFound(f"{name!r} is gated: {remedy}", param="model") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"The hub has no {name!r}, or it is private: check the spelling.", param="model") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{name!r} has no revision {revision!r}: see its page for tags.", param="model") from error
    except LocalEntryNotFoundError as error:
        remedy = "connect once to download it, unset HF_HUB_OFFLINE, or give a local folder."
        raise ModelNotFound(
            f"{name!r}{at} is not in the cache and the hub cannot be reached: {remedy}", param="model"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelNotFound(
            f"{name!r}{at} could not be downloaded ({error}): try again, or give a local folder.", param="model"
        ) from error
