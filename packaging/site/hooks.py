"""What MkDocs is told beyond `mkdocs.yml`: the README is the first page, and files outside `docs/` that pages link to
come along, so that every link of the repository leads somewhere in the site too.

In: MkDocs' files and pages. Out: more files, and pages whose links point to where things lie in the site. A link to
what does not exist ends the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
BESIDE = "repository/"
"""Where files from outside `docs/` lie in the site, by their path in the repository."""
FIRST = "README.md"
LINK = re.compile(r"(\]\()(?!https?:|mailto:|data:|#)([^)#\s]+)")


def in_site(path: str) -> str:
    """A file's place in the site, of its path in the repository."""
    if path == FIRST:
        return "index.md"
    return path.removeprefix(DOCS) if path.startswith(DOCS) else BESIDE + path


def in_repository(uri: str) -> str:
    """The reverse of `in_site`."""
    if uri == "index.md":
        return FIRST
    return uri.removeprefix(BESIDE) if uri.startswith(BESIDE) else DOCS + uri


def target(page: str, link: str) -> str:
    """Where a link of a page leads, both as paths in the repository."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if not (ROOT / path).is_file():
        raise PluginError(f"{page} links to {link}, which is no file of the repository")
    return path


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Bring along what pages link to, and what those link to."""
    known = {in_repository(uri) for uri in files.src_uris}
    ahead = [FIRST, *(path for path in known if path.endswith(".md"))]
    while ahead:
        path = ahead.pop()
        if path not in known:
            known.add(path)
            files.append(File.generated(config, in_site(path), abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            links = LINK.findall((ROOT / path).read_text(encoding="utf-8"))
            ahead += {target(path, link) for _, link in links} - known
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between places in the repository into links between places in the site."""
    uri = page.file.src_uri
    path = in_repository(uri)

    def moved(link: re.Match[str]) -> str:
        return link[1] + posixpath.relpath(in_site(target(path, link[2])), posixpath.dirname(uri) or ".")

    return LINK.sub(moved, markdown)
