"""A browser that looks at a real server. What is missing for that is said, and the tests are skipped."""

import base64
import json
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from tests.serve.conftest import free_port  # noqa: F401 - a fixture
from tests.serve.serving import Served

from gapless.bench.mix import picture_path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DESK = {"width": 1360, "height": 860}
PHONE = {"width": 360, "height": 740}


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "ui":
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """With a camera that shows shapes_square.png. Not for longer than a module: while it is there, an event loop runs
    in this thread, and no other test could have one."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no chromium; apt-get install chromium")
    film = tmp_path_factory.mktemp("film") / "film.y4m"
    write_film(film)
    arguments = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    arguments += [f"--use-file-for-fake-video-capture={film}"]
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A running server with the bundled model."""
    server = Served("glint", tmp_path_factory.mktemp("page") / "log", "--process", "on")
    try:
        server.said("curl http://")
        yield server
    finally:
        assert server.end() == 0


@pytest.fixture
def page(browser, served):
    with opened(browser, served) as page:
        yield page


@contextmanager
def opened(browser, server, ready=True, **options):
    """The page in a window of its own; an error in it, or anything that its policy forbids, fails the test."""
    context = browser.new_context(**{"viewport": DESK, "permissions": ["clipboard-read", "clipboard-write"]} | options)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if "Content Security" in line.text else None)
    try:
        page.goto(f"http://127.0.0.1:{server.port}/")
        if ready:
            page.get_by_text("glint is ready").wait_for()
        yield page
        assert not wrong, wrong
    finally:
        context.close()


def write_film(path):
    """One picture over and over, as raw video in YUV 4:2:0."""
    image = Image.open(picture_path("shapes_square")).convert("RGB").resize((640, 480)).convert("YCbCr")
    planes = np.asarray(image)
    frame = planes[..., 0].tobytes() + b"".join(planes[::2, ::2, plane].tobytes() for plane in (1, 2))
    path.write_bytes(b"YUV4MPEG2 W640 H480 F20:1 Ip A1:1 C420jpeg\n" + 20 * (b"FRAME\n" + frame))


def show(page, path):
    """Choose a picture."""
    page.set_input_files("#file", path)
    page.locator("#frame").wait_for()
    page.wait_for_function("name => document.querySelector('#picture').alt.includes(name)", arg=path.stem)


def choose(page, skill, text=None):
    page.locator(f"#skills input[value={skill}]").check(force=True)
    if text is not None:
        page.fill("#prompt", text)


def ask(page, skill, text=None):
    """Ask, and wait for the whole answer: its card."""
    choose(page, skill, text)
    before = page.locator(".turn").count()
    page.click("#send")
    page.wait_for_function("n => document.querySelectorAll('.turn').length > n", arg=before)
    page.locator("#send").wait_for()
    return page.locator(".turn").first


def cold(page):
    """The likeliest tokens, so that answers are those of the API."""
    page.locator("#settings summary").click()
    page.fill("#set-temperature", "0")


def told(server, skill, path, **fields):
    """What the API answers."""
    url = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    body = fields | {"image_url": url, "settings": {"temperature": 0}}
    status, text = server.ask("POST", f"/v1/{skill}", body)
    assert status == 200, text
    return json.loads(text)


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    """The source of axe-core, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm, from which axe-core comes")
    folder = tmp_path_factory.mktemp("axe")
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "axe-core@4"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not answer in time")
    if done.returncode:
        pytest.skip(f"npm cannot install axe-core: {done.stderr.decode()[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
