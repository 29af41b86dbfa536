"""The site of the docs: what pages link to comes along, and a link that leads nowhere ends its build."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import yaml

pytest.importorskip("mkdocs", reason="pip install 'gapless[docs]'")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "packaging" / "site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", ["README.md", "docs/gpu.md", "docs/images/x.png", "benchmarks/h200/sampler.json"])
def test_a_file_has_one_place_in_the_site(hooks: ModuleType, path: str) -> None:
    assert hooks.in_repository(hooks.in_site(path)) == path


def test_a_link_to_nothing_ends_the_build(hooks: ModuleType) -> None:
    assert hooks.target("docs/gpu.md", "../README.md") == "README.md"
    with pytest.raises(Exception, match=r"docs/gpu\.md links to \.\./NOTHING\.md"):
        hooks.target("docs/gpu.md", "../NOTHING.md")


def test_the_menu_names_every_page_of_the_docs() -> None:
    def names(part: object) -> list[str]:
        if isinstance(part, dict):
            return [name for value in part.values() for name in names(value)]
        return [name for value in part for name in names(value)] if isinstance(part, list) else [str(part)]

    told = set(names(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= told
