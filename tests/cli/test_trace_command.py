"""`gapless trace`: the command runs as ever, the trace is whole, the picture is drawn; what cannot be, says so."""

from __future__ import annotations

import json

import pytest
from PIL import Image
from tests.fakes.micro import write_micro
from tests.observe.trace_schema import check_trace

from gapless.api.vlm import VLM
from gapless.cli.main import main
from gapless.weights import hub

pytestmark = pytest.mark.usefixtures("talker", "pictures")
CAPTION = ("caption", "a.png", "--temperature", "0", "--max-tokens", "24")


@pytest.fixture
def talker(tmp_path_factory, monkeypatch) -> None:
    """The name glint stands for a micro model whose answers end where --max-tokens says."""
    home = tmp_path_factory.mktemp("assets")
    monkeypatch.setattr(hub, "ASSETS", home)
    write_micro(home / "glint", end_bias=-1e4)


def engines(path) -> list[int]:
    trace = json.loads(path.read_text())
    check_trace(trace)
    return [engine["depth"] for engine in trace["otherData"]["engines"]]


def test_the_command_says_what_it_says_without_trace(tmp_path, capsys):
    assert main([*CAPTION]) == 0
    plain = capsys.readouterr().out
    assert main(["trace", "out/trace.json", "--", *CAPTION]) == 0
    out, err = capsys.readouterr()
    assert out == plain and "spans written to out/trace.json" in err and "perfetto" in err
    assert engines(tmp_path / "out" / "trace.json") == [2]


@pytest.mark.parametrize(("depth", "other"), [(2, 1), (1, 2), (3, 1)])
def test_a_picture_runs_it_again_at_the_depth_that_is_missing(depth, other, tmp_path, capsys):
    words = ["trace", "trace.json", "--png", "bubble.png", "--", *CAPTION, "--depth", str(depth)]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and "drawn to bubble.png" in err
    assert engines(tmp_path / "trace.json") == [depth, other]
    with Image.open(tmp_path / "bubble.png") as image:
        assert image.format == "PNG" and image.width == 1600


def test_a_question_without_a_picture(tmp_path):
    assert main(["trace", "q.json", "--", "query", "Who are you?", "--temperature", "0", "--reasoning"]) == 0
    assert engines(tmp_path / "q.json") == [2]


def test_few_spans_are_kept_and_the_rest_is_told(tmp_path, capsys):
    assert main(["trace", "few.json", "--spans", "100", "--", *CAPTION]) == 0
    assert "oldest were dropped, --spans keeps more" in capsys.readouterr().err
    trace = json.loads((tmp_path / "few.json").read_text())
    assert trace["otherData"]["spans"] == 100 and trace["otherData"]["dropped_spans"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["trace", "t.json", "--", "models"], 1, "models ran no engine, so there is nothing to trace"),
        (["trace", "t.json", "--", "trace", "u.json", "--", "models"], 2, "trace cannot run itself"),
        (["trace", "t.json", "--png", "b.jpg", "--", *CAPTION], 2, "must end with .png"),
        (["trace", "t.json", "--png", "drawn.png", "--", "caption", "-"], 2, "standard input can be read once"),
        (["trace", "t.json", "--", "caption", "broken.png"], 1, "damaged or cut off"),
        (["trace", "t.json", "--", "caption", "a.png", "--no-such-option"], 2, "No such option"),
        (["trace", "t.json", "--", "dream"], 2, "No such command"),
        (["trace", "a.png/t.json", "--", *CAPTION], 1, "cannot write"),
        (["trace", "t.json"], 2, "COMMAND"),
        (["trace", "t.json", "--rows", "2", "--", *CAPTION], 2, "give --png too"),
        (["trace", ".", "--", *CAPTION], 1, "it is a folder"),
        (["trace", "t.json", "--", "bench", "model"], 1, "bench model ran no engine"),
        (["trace", "t.json", "--png", "drawn.png", "--", *CAPTION, "--max-tokens", "2"], 1, "longer answers"),
        (["trace", "t.json", "--png", "drawn.png", "--rows", "9", "--", *CAPTION], 1, "with 9 rows"),
        (["trace", "t.json", "--png", "drawn.png", "--", "bench", "decode", "--host-only"], 1, "ran at depth 2 alone"),
    ],
)
def test_what_cannot_be_traced_says_so(words, code, said, capsys):
    assert main(words) == code
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_a_command_that_fails_leaves_the_trace_of_what_it_did(tmp_path, capsys):
    words = ["bench", "decode", "--host-only"]
    assert main(["trace", "t.json", "--png", "drawn.png", "--", *words]) == 1
    assert "spans written to t.json" in capsys.readouterr().err and not (tmp_path / "drawn.png").exists()
    assert {e["depth"] for e in json.loads((tmp_path / "t.json").read_text())["otherData"]["engines"]} == {2}
    assert main(["trace", "u.json", "--", *CAPTION, "--timeout", "1e-9"]) == 1
    assert "spans written to u.json" in capsys.readouterr().err and (tmp_path / "u.json").exists()


def test_an_interrupted_command_leaves_its_trace(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(VLM, "caption", interrupted)
    assert main(["trace", "t.json", "--", *CAPTION]) == 130
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["engines"]


def test_too_few_spans_for_a_picture_say_so(capsys):
    words = ["trace", "t.json", "--spans", "100", "--png", "drawn.png", "--", *CAPTION, "--max-tokens", "60"]
    assert main(words) == 1
    assert "give more --spans" in capsys.readouterr().err


def test_a_command_that_fails_for_some_pictures_is_traced_and_fails(tmp_path):
    assert main(["trace", "t.json", "--png", "drawn.png", "--", *CAPTION, "broken.png"]) == 1
    assert engines(tmp_path / "t.json") == [2] and not (tmp_path / "drawn.png").exists()
