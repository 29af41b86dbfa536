"""What is published where: hub repositories of the family, their revisions, tokenizers and licences.

Plain facts, nothing is fetched or read. A revision here is a tag of the hub; `behaves` names how a model of that
revision is to be run, in the words of a config's `revision`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STARMIE = "moondream/starmie-v1"
MOONDREAM_2 = "vikhyatk/moondream2"
APACHE = "Apache-2.0"
BSL = "BSL 1.1"


@dataclass(frozen=True, slots=True)
class Edition:
    """One revision. `tokenizer`: the repository and revision that `tokenizer.json` is taken from."""

    behaves: str
    tokenizer: tuple[str, str | None]
    size: int
    """Bytes of its weights, about."""


@dataclass(frozen=True, slots=True)
class Published:
    """A repository. `latest`: the edition that is meant if none is named."""

    licence: str
    terms: str
    latest: str
    editions: Mapping[str, Edition]


_WORDS = (MOONDREAM_2, "2024-08-26")
_TWO = 3_854_000_000
_TERMS_2 = "Apache-2.0: free for any use; https://huggingface.co/vikhyatk/moondream2"


def _terms_3(name: str) -> str:
    return (
        "Business Source License 1.1 with an additional use grant: not open source, production use only as far as the "
        f"grant allows; read the licence at https://huggingface.co/{name}"
    )


CATALOGUE: Mapping[str, Published] = {
    MOONDREAM_2: Published(
        APACHE,
        _TERMS_2,
        "2025-06-21",
        {
            "2025-01-09": Edition("2025-01-09", _WORDS, _TWO),
            "2025-03-27": Edition("2025-03-27", _WORDS, _TWO),
            "2025-04-14": Edition("2025-04-14", _WORDS, _TWO),
            "2025-06-21": Edition("2025-06-21", (STARMIE, None), _TWO),
        },
    ),
    "moondream/moondream3-preview": Published(
        BSL,
        _terms_3("moondream/moondream3-preview"),
        "main",
        {"main": Edition("moondream3", (STARMIE, None), 18_540_000_000)},
    ),
    "moondream/moondream3.1-9B-A2B": Published(
        BSL,
        _terms_3("moondream/moondream3.1-9B-A2B"),
        "main",
        {"main": Edition("moondream3.1", (STARMIE, None), 10_505_000_000)},
    ),
}


def tokenizer_of(name: str, revision: str | None) -> tuple[str, str | None] | None:
    """Where a repository's tokenizer lies if not beside its weights. A commit is taken to be like the latest tag."""
    published = CATALOGUE.get(name)
    if published is None:
        return None
    return published.editions.get(revision or "", published.editions[published.latest]).tokenizer


def behaviour_of(name: str, revision: str | None) -> str | None:
    """How a repository's revision is to be run, None if that has to be seen from its files."""
    published = CATALOGUE.get(name)
    edition = published.editions.get(revision or "") if published else None
    return edition.behaves if edition else None


def terms_of(name: str, behaves: str) -> str:
    """What the licence means in a line, by a repository's name, or by what a folder's model turns out to be."""
    if name in CATALOGUE:
        return CATALOGUE[name].terms
    for repository, published in CATALOGUE.items():
        if any(edition.behaves == behaves for edition in published.editions.values()):
            return f"not told in the folder; that of {repository} is {published.terms}"
    return "not told in the folder"
