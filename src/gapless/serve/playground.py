"""The playground: a page at / for people, and what it asks beside the routes that everybody uses.

In: files of the folder `ui`, read once at the start. Out: the page and its parts, with headers that let a browser load
nothing from elsewhere and run no script but these; /ui/about and /ui/steps for the page. Invariants: the files are the
same for everybody and need no key, since they say nothing about this server; what does, asks for one as any route.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from gapless import __version__
from gapless.config import ImageLimits
from gapless.serve.engine import Engine
from gapless.serve.errors import Json
from gapless.serve.limits import Gate, RequestLimits
from gapless.serve.steps import StepEvents, StepWatch
from gapless.weights.hub import ASSETS

HERE = Path(__file__).parent / "ui"
PAGE = "index.html"
SAMPLES = ("shapes_wide.png", "shapes_square.png", "shapes_tall.png")
"""Pictures for whoever has none at hand."""
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
# the last line: no text becomes HTML or a script, whatever the page does
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "cache-control": "no-cache",  # kept, and asked about each time: a newer server has newer files
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page, and the mark by which a browser knows that it has it already."""

    data: bytes
    kind: str
    mark: str

    @classmethod
    def read(cls, path: Path) -> File:
        """From the package."""
        data = path.read_bytes()
        return cls(data, KINDS[path.suffix], f'"{hashlib.sha256(data).hexdigest()[:24]}"')

    def response(self, request: Request) -> Response:
        """It, or that nothing has changed."""
        headers = HEADERS | {"etag": self.mark}
        known = {mark.strip().removeprefix("W/") for mark in request.headers.get("if-none-match", "").split(",")}
        if self.mark in known:
            return Response(status_code=304, headers=headers)
        return Response(b"" if request.method == "HEAD" else self.data, headers=self._sized(headers))

    def _sized(self, headers: dict[str, str]) -> dict[str, str]:
        return headers | {"content-type": self.kind, "content-length": str(len(self.data))}


def files() -> dict[str, File]:
    """All files by path: the page is /."""
    return {path: File.read(file) for path, file in _paths()}


def _paths() -> Iterator[tuple[str, Path]]:
    for file in sorted(HERE.iterdir()):
        if file.suffix in KINDS:
            yield "/" if file.name == PAGE else f"/ui/{file.name}", file
    for name in SAMPLES:
        yield f"/ui/samples/{name}", ASSETS / "samples" / name


class PlaygroundRoutes:
    """The routes, and whom they ask."""

    def __init__(self, engine: Engine, gate: Gate, limits: RequestLimits, images: ImageLimits) -> None:
        self.files = files()
        self._engine = engine
        self._gate = gate
        self._limits = limits
        self._images = images
        self._watch = StepWatch(engine, gate)

    def router(self) -> APIRouter:
        """All of them. They are the page's own, and no part of what is promised to others."""
        router = APIRouter(include_in_schema=False)
        for path in self.files:
            router.add_api_route(path, self.file, methods=["GET", "HEAD"], response_model=None)
        router.add_api_route("/ui/about", self.about, methods=["GET"], response_model=None)
        router.add_api_route("/ui/steps", self.steps, methods=["GET"], response_model=None)
        return router

    async def file(self, request: Request) -> Response:
        """The page, or a part of it."""
        return self.files[request.url.path].response(request)

    async def about(self) -> Response:
        """What the page has to know to offer what there is."""
        vlm = self._engine.vlm()
        templates = vlm.desk.context.templates
        told = {
            "version": __version__,
            "model": vlm.desk.context.name,
            "adapters": list(vlm.adapters),
            "skills": list(templates.skills()),
            "defaults": asdict(templates.defaults),
            "places": self._gate.places,
            "max_body_bytes": self._limits.max_body_bytes,
            "max_pixels": self._images.max_pixels,
        }
        return Json(told, headers={"cache-control": "no-store"})

    async def steps(self, request: Request) -> Response:
        """The engine's steps as they land."""
        self._engine.vlm()
        return StepEvents(self._watch, request.state.request_id, self._limits.send_timeout)
