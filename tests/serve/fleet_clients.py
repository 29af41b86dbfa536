"""Callers of a fleet in threads, and the fleet's own processes, for the tests through Ray."""

import base64
import http.client
import io
import json
import random
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

STREAMS = ("query-stream", "caption-stream")
COLOURS = ("red", "green", "blue", "yellow")


def pictures(count):
    """Data URLs of pictures with a shape each, all different."""
    urls = []
    for number in range(count):
        picture = Image.new("RGB", (96, 96), "white")
        at = 8 + 7 * (number % 8)
        ImageDraw.Draw(picture).rectangle((at, 20, at + 24, 44 + number), fill=COLOURS[number % 4])
        data = io.BytesIO()
        picture.save(data, "PNG")
        urls.append("data:image/png;base64," + base64.b64encode(data.getvalue()).decode())
    return urls


def body_of(kind, url):
    """Path and body of one kind of question about a picture."""
    settings = {"temperature": 0, "max_tokens": 12}
    if kind == "chat":
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What colour is it?"}]
        messages = [{"role": "user", "content": parts}]
        return "/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 12}
    skill, _, stream = kind.partition("-")
    words = {"query": {"question": "How many shapes are there?"}, "caption": {"length": "short"}}
    body = {"image_url": url, "settings": settings} | words.get(skill, {"object": "square"})
    return f"/v1/{skill}", body | ({"stream": True} if stream else {})


KINDS = ("query", "caption", "point", "detect", "chat", *STREAMS)


@dataclass
class Answer:
    status: int
    said: object
    """What is to be the same wherever it is asked; None if the answer broke off."""
    replica: str
    error: str = ""


def ask(port, kind, url, timeout=90.0, adapter=None):
    path, body = body_of(kind, url)
    if adapter is not None:
        body["settings"] |= {"adapter": adapter}
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            replica, status = answer.headers["x-gapless-replica"], answer.status
            try:
                text = answer.read()
            except http.client.IncompleteRead as error:  # broken off: what came is in there
                text = error.partial
    except urllib.error.HTTPError as error:
        return Answer(error.code, None, "", error.read().decode())
    if kind in STREAMS:
        return stream_of(status, text.decode(), replica)
    found = json.loads(text)
    known = ("answer", "caption", "points", "objects")
    said = found["choices"][0]["message"]["content"] if kind == "chat" else [found[k] for k in known if k in found]
    return Answer(status, said, replica)


def stream_of(status, text, replica):
    events = [json.loads(part[6:]) for part in text.split("\n\n") if part.startswith("data: ") and part[-1:] == "}"]
    said = "".join(event.get("chunk", "") for event in events)
    if events and events[-1].get("completed"):
        return Answer(status, said, replica)
    error = next((event["error"]["message"] for event in events if "error" in event), "")
    return Answer(status, None, replica, error)


class Crowd:
    """Threads that ask until they are stopped, or until there is nothing left of `todo`."""

    def __init__(self, port, todo=None, callers=6, urls=(), seed=0):
        self.port, self.urls, self.answers = port, urls, []
        self._todo = None if todo is None else list(todo)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._dice = random.Random(seed)
        self.threads = [threading.Thread(target=self._work) for _ in range(callers)]
        for thread in self.threads:
            thread.start()

    def _next(self):
        with self._lock:
            if self._todo is None:
                return self._dice.choice(KINDS), self._dice.randrange(len(self.urls))
            return self._todo.pop() if self._todo else None

    def _work(self):
        while not self._stop.is_set() and (job := self._next()) is not None:
            kind, number = job
            answer = ask(self.port, kind, self.urls[number])
            with self._lock:
                self.answers.append((kind, number, answer))

    def wait_for(self, count, patience=60.0):
        end = time.monotonic() + patience
        while len(self.answers) < count:
            assert time.monotonic() < end, f"{len(self.answers)} of {count} answers came"
            time.sleep(0.02)

    def end(self):
        self._stop.set()
        return self.join()

    def join(self):
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()
        return self.answers


def replica_processes(app, deployment, marker):
    """Process ids of a deployment's replicas whose Ray session is in the folder `marker`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                title = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                raylet = (Path("/proc") / parent / "cmdline").read_bytes().decode()
            except OSError:
                continue
            if f"ServeReplica:{app}:{deployment}" in title and marker in raylet:
                found.append(int(folder.name))
    return sorted(found)
