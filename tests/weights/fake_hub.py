"""A hub on this machine: the few routes of the Hugging Face hub that downloads use, with faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Files = dict[str, bytes]


class FakeHub:
    """`repos[name][revision]` are files. `refuse`: a status, and the hub's word for it, for every request.

    `cut`: the file whose transfer breaks off half-way, once. `asked` keeps (method, path, range) of all requests.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, Files]] = {}
        self.refuse: tuple[int, str] | None = None
        self.cut = ""
        self.asked: list[tuple[str, str, str | None]] = []
        self.url = ""

    def fetched(self) -> list[str]:
        """Names of the files whose content was asked for."""
        return [path.rpartition("/")[2] for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]


def commit(revision: str) -> str:
    return hashlib.sha1(revision.encode()).hexdigest()


class _Answers(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _answer(self) -> None:
        hub = self.hub
        hub.asked.append((self.command, self.path, self.headers.get("Range")))
        if hub.refuse is not None:
            self._send(hub.refuse[0], b"{}", X_Error_Code=hub.refuse[1])
            return
        path = self.path.partition("?")[0].removeprefix("/api/models").strip("/")
        name, rest = "/".join(path.split("/")[:2]), path.split("/")[2:]
        if name not in hub.repos:
            self._send(404, b"{}", X_Error_Code="RepoNotFound")
        elif rest[1:] and self._revision(name, rest[1]) is None:
            self._send(404, b"{}", X_Error_Code="RevisionNotFound")
        elif rest[:1] == ["resolve"]:
            self._file(self._revision(name, rest[1]) or "", name, "/".join(rest[2:]))
        else:
            self._listing(name, self._revision(name, rest[1] if rest[1:] else "main") or "main", rest)

    def _revision(self, name: str, asked: str) -> str | None:
        return next((r for r in self.hub.repos[name] if asked in (r, commit(r))), None)

    def _listing(self, name: str, revision: str, rest: list[str]) -> None:
        files = self.hub.repos[name][revision]
        if rest[:1] == ["tree"]:
            oids = [{"type": "file", "path": f, "size": len(b), "oid": commit(f)} for f, b in files.items()]
            self._send(200, json.dumps(oids).encode(), Content_Type="application/json")
            return
        info = {"id": name, "modelId": name, "sha": commit(revision), "private": False, "tags": [], "downloads": 0}
        info |= {"likes": 0, "siblings": [{"rfilename": f} for f in files]}
        self._send(200, json.dumps(info).encode(), Content_Type="application/json")

    def _file(self, revision: str, name: str, file: str) -> None:
        body = self.hub.repos[name][revision].get(file)
        if body is None:
            self._send(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=commit(revision))
            return
        about = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X_Repo_Commit": commit(revision)}
        first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if self.command == "HEAD" or first == 0:
            about |= {"Accept_Ranges": "bytes"}
        else:
            about |= {"Content_Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
        if self.command == "GET" and file == self.hub.cut:
            self.hub.cut = ""
            self.send_response(200)
            for header, value in {**about, "Content_Length": str(len(body))}.items():
                self.send_header(header.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        self._send(206 if first else 200, body if self.command == "HEAD" else body[first:], **about)


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub on a free port of 127.0.0.1."""
    hub = FakeHub()
    handler = type("Answers", (_Answers,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
