"""The official npm client, unchanged but for its endpoint, against a running server with the bundled model.

It has no settings for queries and captions, so they are sampled: this server draws the same seed for every request, and
the library is asked with it. Where there is no node, or no registry, these tests are skipped.
"""

import base64
import json
import os
import shutil
import subprocess
import sys

import pytest
from tests.serve.serving import ENVIRONMENT, Served

import gapless
from gapless.bench.mix import picture_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("npm") is None or shutil.which("node") is None, reason="node and npm are missing"),
]
SEED = {"seed": 7}
PACKAGE = {"private": True, "dependencies": {"moondream": "0.2.0"}, "overrides": {"sharp": "0.33.5"}}
SERVER = """
import sys
import gapless.skills.base as base
base.fresh_seed = lambda: 7
from gapless.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
SCRIPT = """
const { vl } = require('moondream');
const fs = require('fs');
const model = new vl({ endpoint: process.argv[2], apiKey: process.argv[3] });
const image = fs.readFileSync(process.argv[4]);
const gathered = async (stream) => { const all = []; for await (const piece of stream) all.push(piece); return all; };
(async () => {
  const told = { picture: (await model.encodeImage(image)).imageUrl };
  const question = 'How many crosses are there?';
  told.query = await model.query({ image, question });
  told.alone = await model.query({ question: 'Who are you?' });
  told.reasoned = await model.query({ image, question, reasoning: true });
  told.queried = await gathered((await model.query({ image, question: 'Who are you?', stream: true })).answer);
  told.caption = await model.caption({ image, length: 'short' });
  told.captioned = await gathered((await model.caption({ image, stream: true })).caption);
  told.point = await model.point({ image, object: 'cross' });
  told.detect = await model.detect({ image, object: 'cross' });
  told.segment = await model.segment({ image, object: 'star', settings: { max_tokens: 200 } });
  told.segmented = await gathered((await model.segment({ image, object: 'star', stream: true })).stream);
  told.wrong = await model.query({ image, question: ' ' }).catch((error) => error.message);
  const left = (await model.caption({ image, stream: true })).caption;
  await left.next();
  await left.return();
  console.log(JSON.stringify(told));
})();
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """A folder with the client in it; npm's own cache is used, and nothing of this project is written to."""
    folder = tmp_path_factory.mktemp("npm")
    (folder / "package.json").write_text(json.dumps(PACKAGE))
    (folder / "ask.js").write_text(SCRIPT)
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=240)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not answer in time")
    if done.returncode:
        pytest.skip(f"npm cannot install the client: {done.stderr.decode()[-300:]}")
    return folder


class SeededServer(Served):
    """`gapless serve` whose requests without a seed all have the same one."""

    def __init__(self, log, *words):
        self.log = log
        command = [sys.executable, "-c", SERVER, "serve", "glint", "--port", "0", *words]
        with log.open("wb") as err:
            self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=err)
        self.port = int(self.said("http://127.0.0.1:").partition("/")[0])


@pytest.fixture(scope="module")
def told(client):
    """Everything that the client was told, by a server that asks for a key."""
    keys = client / "keys"
    keys.write_text("the-key\n")
    server = SeededServer(client / "log", "--api-keys-file", str(keys))
    try:
        server.said("curl http://")
        words = [f"http://127.0.0.1:{server.port}/v1", "the-key", str(picture_path("shapes_square"))]
        done = subprocess.run(
            ["node", "ask.js", *words], cwd=client, env=dict(os.environ), capture_output=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr.decode()
        server.until_held(0)  # the stream that was left included
        yield json.loads(done.stdout)
    finally:
        assert server.end() == 0


@pytest.fixture(scope="module")
def vlm():
    with gapless.load("glint") as vlm:
        yield vlm


@pytest.fixture(scope="module")
def picture(told):
    """The picture as the client sends it: JPEG changes pixels."""
    return base64.b64decode(told["picture"].partition(",")[2])


def plain(result):
    return {key: value for key, value in result.items() if key not in ("finish_reason", "metrics")}


def test_queries(told, vlm, picture):
    question = "How many crosses are there?"
    assert told["query"] == plain(vlm.query(picture, question, settings=SEED)) == {"answer": "2"}
    assert told["alone"] == plain(vlm.query(question="Who are you?", settings=SEED))
    assert told["reasoned"] == plain(vlm.query(picture, question, settings=SEED, reasoning=True))
    assert len(told["queried"]) > 2
    assert "".join(told["queried"]) == vlm.query(picture, "Who are you?", settings=SEED)["answer"]


def test_captions(told, vlm, picture):
    assert told["caption"] == plain(vlm.caption(picture, "short", settings=SEED))
    assert len(told["captioned"]) > 2
    assert "".join(told["captioned"]) == vlm.caption(picture, settings=SEED)["caption"]


def test_points_and_boxes(told, vlm, picture):
    assert told["point"] == plain(vlm.point(picture, "cross")) and len(told["point"]["points"]) == 2
    assert told["detect"] == plain(vlm.detect(picture, "cross")) and len(told["detect"]["objects"]) == 2


def test_outlines(told, vlm, picture):
    right = plain(vlm.segment(picture, "star", settings=SEED))
    assert told["segment"] == right and right["path"] and right["bbox"]
    assert told["segmented"][0] == {"bbox": right["bbox"]}
    assert told["segmented"][-1] == right | {"completed": True}
    assert all(set(piece) == {"chunk"} for piece in told["segmented"][1:-1])


def test_an_error_is_an_error(told):
    assert told["wrong"] == "HTTP error! status: 400"
