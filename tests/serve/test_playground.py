"""The playground's routes: the page and its headers, keys, what it is told, and the feed of steps."""

import asyncio
import http.client
import json
import re
import shutil
import subprocess
import tomllib

import pytest
from PIL import Image, PngImagePlugin
from tests.serve.conftest import LIMITS, SMALL, Silent, Site
from tests.serve.serving import ROOT, Served

from gapless.config import ImageLimits
from gapless.serve.app import make_app
from gapless.serve.engine import Engine
from gapless.serve.limits import Gate
from gapless.serve.playground import HERE, KINDS, PlaygroundRoutes, files
from gapless.serve.settings import read_settings
from gapless.serve.steps import MOST, WAITING, StepWatch

FILES = sorted(HERE.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]


class Played(Site):
    def __init__(self, vlm, keys=()):
        super().__init__(vlm)
        self.app = make_app(self.engine, self.gate, LIMITS, keys, playground=ImageLimits())


@pytest.fixture(scope="module")
def played(vlm):
    return Played(vlm)


def test_the_page_lets_nothing_in_from_elsewhere(played):
    said = played.ask("GET", "/")
    assert said.status_code == 200 and said.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.strip().split(" ", 1) for part in said.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'" and policy["trusted-types"] == "'none'"
    assert "unsafe" not in said.headers["content-security-policy"] and policy["frame-ancestors"] == "'none'"
    assert said.headers["x-content-type-options"] == "nosniff" and said.headers["referrer-policy"] == "no-referrer"
    for address in re.findall(r'(?:src|href)="([^"#]+)"', said.text):
        part = played.ask("GET", f"/{address}")
        assert part.status_code == 200 and not address.startswith(("http", "/")), address


def test_files_are_kept_until_they_change(played):
    first = played.ask("GET", "/ui/main.js")
    assert first.headers["cache-control"] == "no-cache" and first.headers["content-type"].startswith("text/javascript")
    again = played.ask("GET", "/ui/main.js", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert played.ask("GET", "/ui/main.js", headers={"if-none-match": '"other"'}).content == first.content
    head = played.ask("HEAD", "/")
    assert head.status_code == 200 and head.content == b"" and int(head.headers["content-length"]) > 1000


def test_no_ui_leaves_nothing_of_it(site):
    for path in ("/", "/ui/main.js", "/ui/about", "/ui/steps"):
        assert site.ask("GET", path).status_code == 404
    assert read_settings({}).ui and not read_settings({"ui": False}).ui


def test_without_a_key_there_is_the_page_and_nothing_that_tells_of_the_server(vlm):
    locked = Played(vlm, keys=("one",))
    for path in files():
        assert locked.ask("GET", path).status_code == 200 and locked.ask("POST", path).status_code == 401
    for path in ("/ui/about", "/ui/steps", "/ui", "/ui/", "/ui/../v1/models", "/index.html", "/ui/index.html"):
        assert locked.ask("GET", path).status_code == 401, path
    about = locked.ask("GET", "/ui/about", headers={"x-moondream-auth": "one"})
    assert about.status_code == 200 and about.headers["cache-control"] == "no-store"
    name = vlm.desk.context.name
    assert all(name not in locked.ask("GET", path).text for path in files() if not path.endswith(".png"))


def test_what_the_page_is_told(played, vlm):
    told = played.ask("GET", "/ui/about").json()
    assert told["model"] == vlm.desk.context.name and told["adapters"] == []
    assert told["skills"] == list(vlm.desk.context.templates.skills()) and "query" in told["skills"]
    assert told["max_body_bytes"] == LIMITS.max_body_bytes and told["places"] == 64 and told["defaults"]["max_tokens"]
    engine = Engine(lambda progress: vlm, Silent())
    loading = PlaygroundRoutes(engine, Gate(1), LIMITS, ImageLimits())
    with pytest.raises(Exception, match="still loading"):
        asyncio.run(loading.about())


def test_the_feed_tells_each_step_once_and_asks_only_while_somebody_looks(played, vlm, monkeypatch):
    asked, watch = [], vlm.desk.runner.watch
    monkeypatch.setattr(vlm.desk.runner, "watch", lambda steps: asked.append(steps) or watch(steps))

    async def look():
        feed = StepWatch(played.engine, played.gate)
        assert not asked
        one, other = feed.join(), feed.join()
        await asyncio.wait_for(one.get(), 5)
        async with played.client() as client:
            answer = await client.post("/v1/query", json={"question": "Who?", "settings": SMALL})
        told, steps = [], []
        while len(steps) < answer.json()["metrics"]["output_tokens"]:
            told.append(json.loads(await asyncio.wait_for(one.get(), 5)))
            steps += told[-1]["steps"]
        for _ in range(WAITING + 2):  # the other one does not read
            feed._tell(b"{}")
        assert other.full()
        feed.leave(one)
        feed.leave(other)
        while feed._asking is not None:
            await asyncio.sleep(0.02)
        count = len(asked)
        await asyncio.sleep(0.4)
        assert len(asked) == count, "nobody looks any more"
        return told, steps

    told, steps = asyncio.run(look())
    assert [step[0] for step in steps] == sorted({step[0] for step in steps})
    assert steps[0][1] == "prefill" and {step[1] for step in steps[1:]} == {"decode"}
    assert all(step[2] == 1 and step[4] > 0 and step[5] >= 0 for step in steps)
    assert set(told[0]) == {"running", "waiting", "in_flight", "pages", "pages_used", "steps"}


def test_the_feed_ends_with_the_server_and_has_room_for_so_many(played, vlm):
    async def look():
        gate = Gate(1)
        feed = StepWatch(played.engine, gate)
        feeds = [feed.join() for _ in range(MOST)]
        with pytest.raises(Exception, match="close one of them"):
            feed.join()
        gate.close()
        while await asyncio.wait_for(feeds[0].get(), 5):
            pass

    asyncio.run(look())


def test_the_feed_over_http(played):
    async def look():
        events, left = [], asyncio.Event()
        scope = {"type": "http", "method": "GET", "path": "/ui/steps", "headers": [], "query_string": b"",
                 "raw_path": b"/ui/steps", "root_path": "", "scheme": "http", "http_version": "1.1"}  # fmt: skip

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            events.append(message)
            if message.get("body"):
                left.set()

        await asyncio.wait_for(played.app(scope, receive, send), 10)
        return events

    start, first = asyncio.run(look())[:2]
    assert start["status"] == 200 and dict(start["headers"])[b"content-type"].startswith(b"text/event-stream")
    assert json.loads(first["body"].removeprefix(b"data: "))["steps"] == []


@pytest.mark.slow
def test_a_server_that_stops_ends_its_feeds_and_does_not_wait_for_them(tmp_path):
    server = Served("glint", tmp_path / "log", "--process", "on")
    server.until_ready()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", "/ui/steps")
    feed = connection.getresponse()
    assert feed.readline().startswith(b"data: {")
    assert server.end() == 0
    assert feed.read().endswith(b"\n") and feed.isclosed()  # whole: else this raises
    connection.close()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_pages_files_keep_to_the_house(file):
    text = file.read_text()
    assert text.count("\n") < 400 and max(map(len, text.splitlines())) <= 220
    assert not re.search(r"https?://(?!www\.w3\.org)\S", text.replace("https:// or", "")), "nothing from elsewhere"
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "TODO"):
        assert word not in text, word
    if file.suffix == ".html":
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*src)", text), "the policy forbids it"
        names = set(re.findall(r'\sid="([\w-]+)"', text))
        used = {name for script in SCRIPTS for name in re.findall(r'byId\("([\w-]+)"\)', script.read_text())}
        assert used <= names, used - names


def test_a_wheel_has_all_files():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gapless"]
    package = ROOT / "src" / "gapless"
    packed = {file for pattern in patterns for file in package.glob(pattern)}
    assert set(FILES) <= packed and all(file.is_file() and file.suffix in KINDS for file in FILES)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_what_is_copied_is_quoted_for_the_shell_and_for_python(tmp_path):
    """The module alone; a browser does the same with real requests."""
    text = 'it\'s "$HOME" `id` \\ \u2028 🦊 \ud83e \x1b'
    code = f"""
    import {{ asCurl, asPython, fileName, literal }} from "{(HERE / "copying.js").as_uri()}";
    const text = JSON.parse({json.dumps(json.dumps(text))});
    const body = {{ image_url: "data:x", question: text + "PICTURE" }};
    const told = {{ url: "http://h/v1/query", body, image: "data:x", type: "image/png",
                   name: "-rf \\u202e\\n'x'.png", locked: true }};
    console.log(JSON.stringify([literal({{ [text]: [null, true, 1.5, text] }}), fileName(told.name), asCurl(told)]));
    """
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "ask.mjs").write_text(code)
    done = subprocess.run(["node", "ask.mjs"], cwd=tmp_path, capture_output=True, check=True, timeout=30)
    literal, name, line = json.loads(done.stdout)
    assert eval(literal) == {text: [None, True, 1.5, text]}
    assert name == "./-rf __'x'.png"
    (tmp_path / name).write_bytes(b"picture")
    script = "curl() { cat; }\n" + line
    shown = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, check=True, timeout=30)
    body = json.loads(shown.stdout.decode())
    assert body["image_url"] == "data:image/png;base64,cGljdHVyZQ==" and body["question"] == text + "PICTURE"
    assert "$GAPLESS_KEY" in line


def kinds(folder):
    """Pictures as programs write them, and whether a browser and a server may see different pixels in them."""
    first, other = Image.new("RGB", (8, 6), "red"), Image.new("RGB", (8, 6), "blue")
    turned, upright = Image.Exif(), Image.Exif()
    turned[0x0112], upright[0x0112] = 6, 1
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    told = PngImagePlugin.PngInfo()
    told.add_itxt("XML:com.adobe.xmp", xmp.decode())
    for kind in ("gif", "png", "webp"):
        first.save(folder / f"plain.{kind}")
        first.save(folder / f"moves.{kind}", save_all=True, append_images=[other], duration=100)
    for kind in ("png", "webp", "jpg"):
        first.save(folder / f"upright.{kind}", exif=upright)
        first.save(folder / f"turned.{kind}", exif=turned)
    first.save(folder / "turned-xmp.png", pnginfo=told)
    for kind in ("webp", "jpg"):
        first.save(folder / f"turned-xmp.{kind}", xmp=xmp)
    first.save(folder / "exif-and-xmp.jpg", xmp=xmp, exif=upright)
    whole = (folder / "moves.gif").read_bytes()
    (folder / "cut.gif").write_bytes(whole[:40])
    (folder / "words.png").write_text("words")
    return {file.name: file for file in sorted(folder.iterdir())}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_pictures_of_which_a_browser_and_a_server_may_see_different_pixels_are_known(tmp_path):
    (tmp_path / "pictures").mkdir()
    files = kinds(tmp_path / "pictures")
    types = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "gif": "image/gif"}
    code = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ fickle }} from "{(HERE / "fickle.js").as_uri()}";
    const found = {{}};
    for (const [name, path, type] of {json.dumps([[n, str(f), types[f.suffix[1:]]] for n, f in files.items()])}) {{
      found[name] = await fickle(new Blob([readFileSync(path)], {{ type }}));
    }}
    console.log(JSON.stringify(found));
    """
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "ask.mjs").write_text(code)
    done = subprocess.run(["node", "ask.mjs"], cwd=tmp_path, capture_output=True, check=True, timeout=30)
    # EXIF in a JPEG is read by everybody, and goes before XMP
    same = ("turned.jpg", "exif-and-xmp.jpg")
    wanted = {name: "" if name in same else next((k for k in ("moves", "turned") if k in name), "") for name in files}
    assert json.loads(done.stdout) == wanted
