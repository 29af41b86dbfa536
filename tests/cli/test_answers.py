"""What the skill commands print, write and end with. The model is a fake."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from tests.cli.fake_vlm import FakeVLM

from gapless.api.load import LARGEST
from gapless.cli.main import main
from gapless.cli.options import MOST_DEPTH, MOST_GRAMMARS, MOST_PAGES, MOST_ROWS
from gapless.cli.terminal import Spinner
from gapless.errors import ModelNotFound

OBJECT_SKILLS = ("point", "detect", "segment")
pytestmark = pytest.mark.usefixtures("pictures")


def loaded_with(vlm: FakeVLM) -> dict:
    """All that the library was loaded with but the spinner."""
    return {name: value for name, value in vlm.loaded_with.items() if name != "progress"}


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_query_prints_the_answer_alone(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "a.png", "How bright?"]) == 0
    out, err = capsys.readouterr()
    assert out == "brightness 40\n" and err == ""
    assert vlm.calls == [
        ("query", (30, 40, 3), {"question": "How bright?", "reasoning": False, "settings": {}, "spatial_refs": None})
    ]
    usual = {"model": "glint", "device": "auto", "dtype": "auto", "depth": 2, "graphs": True}
    usual |= {"kv_memory": None, "kv_dtype": "auto", "max_context": None, "prefix_cache": True, "max_step_ms": None}
    assert loaded_with(vlm) == usual | {"max_rows": None, "pages": None, "adapters": None}
    assert vlm.closed_after is None


def test_on_a_gpu_the_plan_is_told_beside_the_answer(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "a.png", "How bright?"]) == 0
    plain = capsys.readouterr()
    vlm.plan = "a GPU, 80.00 GB: so much for each"
    assert main(["query", "a.png", "How bright?"]) == 0
    told = capsys.readouterr()
    assert told.out == plain.out and told.err == plain.err + "gapless: a GPU, 80.00 GB: so much for each\n"


def test_a_spinner_tells_how_far_the_start_is() -> None:
    said: list[str] = []
    Spinner(SimpleNamespace(update=said.append)).show("capturing a tail", 3, 12)  # type: ignore[arg-type]
    Spinner(None).show("capturing a tail", 3, 12)
    assert len(said) == 1 and "3/12 capturing a tail" in said[0] and said[0].count("━") == 6


def test_query_without_a_picture(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "What is red?"]) == 0
    assert capsys.readouterr().out == "brightness none\n"


def test_options_reach_the_library(vlm: FakeVLM) -> None:
    words = "query a.png what? --model m --device cpu --dtype bfloat16 --depth 3 --temperature 0.5"
    words += " --graphs off --max-rows 4 --pages 70 --max-tokens 9 --max-context 900 --prefix-cache off --kv-dtype fp8"
    words += " --max-step-ms 5"
    words += " --top-p 0.9 --seed 7 --timeout 2.5 --reasoning --spatial-ref 0.5,0.25 --spatial-ref 0,0,1,0.5"
    assert main(words.split()) == 0
    wanted = {"model": "m", "device": "cpu", "dtype": "bfloat16", "depth": 3, "graphs": False}
    wanted |= {"kv_memory": None, "kv_dtype": "fp8", "max_context": 900, "prefix_cache": False, "max_step_ms": 5.0}
    assert loaded_with(vlm) == wanted | {"max_rows": 4, "pages": 70, "adapters": None}
    assert vlm.calls[0][2] == {
        "question": "what?",
        "reasoning": True,
        "settings": {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "seed": 7, "timeout": 2.5},
        "spatial_refs": [[0.5, 0.25], [0, 0, 1, 0.5]],
    }
    assert main(["caption", "a.png", "--stop", ".", "--stop", "!", "--logprobs", "3", "--json"]) == 0
    assert vlm.calls.pop(1)[2]["settings"] == {"stop": [".", "!"], "logprobs": 3}
    assert main(["detect", "a.png", "star", "--max-objects", "4", "--max-tokens", "12"]) == 0
    assert vlm.calls[1][2] == {"object": "star", "settings": {"max_objects": 4, "max_tokens": 12}}


def test_reasoning_is_shown_before_the_answer(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "a.png", "why?", "--reasoning"]) == 0
    assert capsys.readouterr().out == "reasoning: because\n\nbrightness 40\n"
    assert main(["query", "a.png", "why?", "--reasoning", "--stream"]) == 0
    assert capsys.readouterr().out == "reasoning: because\n\nbrightness40\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("caption a.png --length short", "a short caption\n"),
        ("point a.png star", "0.2500 0.5000\n0.7500 0.1250\n"),
        ("detect a.png star", "0.1000 0.2000 0.5000 0.7500\n"),
        ("segment a.png star", "bbox 0.2500 0.2500 0.7500 0.7500\npath M 0 0 L 1 0 L 1 1 Z\n"),
        ("gaze a.png 0.5 0.25", "0.7500 0.1250\n"),
        ("caption a.png --stream", "a normal\n"),
        ("segment a.png star --stream", "M 0 0 L 1 0 L 1 1 Z\n"),
    ],
)
def test_plain_output(vlm: FakeVLM, capsys: pytest.CaptureFixture[str], words: str, expected: str) -> None:
    assert main(words.split()) == 0
    assert capsys.readouterr() == (expected, "")


@pytest.mark.parametrize("skill", ["point", "segment"])
def test_nothing_found_is_no_datum(vlm: FakeVLM, capsys: pytest.CaptureFixture[str], skill: str) -> None:
    assert main([skill, "a.png", "nothing"]) == 0
    assert capsys.readouterr() == ("", "gapless: no nothing found\n")


def test_a_gaze_may_have_an_adapter(vlm: FakeVLM) -> None:
    assert main(["gaze", "a.png", "0.5", "0.5", "--adapter", "tune=/somewhere"]) == 0
    assert loaded_with(vlm)["adapters"] == {"tune": "/somewhere"}
    assert vlm.calls[0][2]["settings"] == {"adapter": "tune"}


def test_a_gaze_is_asked_from_an_eye_or_a_face(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gaze", "a.png", "0", "0", "--force", "--timeout", "3"]) == 0
    assert capsys.readouterr() == ("", "gapless: no gaze found\n")
    assert main(["gaze", "a.png", "--face", "0.25,0.125,0.5,0.375", "--seed", "4", "--json", "--draw", "eye.png"]) == 0
    out, err = capsys.readouterr()
    (line,) = lines(out)
    assert (line["image"], line["drawn"], line["gaze"]) == ("a.png", "eye.png", {"x": 0.75, "y": 0.125})
    assert "drawn to eye.png" in err
    drawn = Image.open("eye.png")
    assert drawn.getpixel((30, 4)) == (255, 64, 64) and drawn.getpixel((0, 29)) == (40, 40, 40)
    face = {"x_min": 0.25, "y_min": 0.125, "x_max": 0.5, "y_max": 0.375}
    assert [call[2] for call in vlm.calls] == [
        {
            "eye": [0, 0],
            "face": None,
            "unstable_settings": {"prioritize_accuracy": False, "force_detect": True},
            "settings": {"timeout": 3.0},
        },
        {
            "eye": None,
            "face": face,
            "unstable_settings": {"prioritize_accuracy": True, "force_detect": False},
            "settings": {"seed": 4},
        },
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("gaze a.png", "where is the eye?"),
        ("gaze a.png 0.5", "where is the eye?"),
        ("gaze a.png 0.5 1.5", "outside the picture"),
        ("gaze a.png 0.5 0.5 --face 0,0,1,1", "give one of them"),
        ("gaze a.png --face 0,0", "is not X1,Y1,X2,Y2"),
        ("gaze a.png --face 0.5,0,0.1,1", "top left corner"),
    ],
)
def test_eyes_that_are_nowhere(vlm: FakeVLM, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err and not vlm.calls


def test_json_of_one_picture_is_the_library_dict(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["point", "a.png", "star", "--json"]) == 0
    (line,) = lines(capsys.readouterr().out)
    assert line == {
        "image": "a.png",
        "points": [{"x": 0.25, "y": 0.5}, {"x": 0.75, "y": 0.125}],
        "finish_reason": "stop",
        "metrics": {"output_tokens": 3},
    }


def test_json_stream_ends_with_the_whole_result(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", "a.png", "how?", "--stream", "--json"]) == 0
    found = lines(capsys.readouterr().out)
    assert found[:2] == [{"chunk": "brightness"}, {"chunk": "40"}]
    assert found[2]["answer"] == "brightness 40" and found[2]["completed"] is True and "metrics" in found[2]
    assert found[2]["image"] == "a.png"
    assert main(["segment", "a.png", "star", "--stream", "--json"]) == 0
    found = lines(capsys.readouterr().out)
    assert [sorted(line)[0] for line in found] == ["bbox", "chunk", "bbox"]
    assert found[-1]["completed"] is True


def test_several_pictures_give_a_line_each_in_order(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["b.png", "a.png"] * 20
    assert main(["query", *names, "How bright?"]) == 0
    out, err = capsys.readouterr()
    assert [(line["image"], line["answer"]) for line in lines(out)] == [
        (name, "brightness 200" if name == "b.png" else "brightness 40") for name in names
    ]
    assert err == ""


def test_a_bad_picture_among_several(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["caption", "a.png", "broken.png", "missing.png", "night.png", "b.png"]) == 1
    out, err = capsys.readouterr()
    found = lines(out)
    assert [line["image"] for line in found] == ["a.png", "broken.png", "missing.png", "night.png", "b.png"]
    assert [line.get("error_type") for line in found] == [None, "InvalidImage", "InvalidImage", "RequestTimeout", None]
    assert "missing.png" in found[2]["error"] and "caption" in found[4]
    assert err == "gapless: 3 of 5 pictures failed; their lines say why\n"


@pytest.mark.parametrize("name", ["broken.png", "missing.png", "."])
def test_a_bad_picture_alone_is_told_before_loading(
    vlm: FakeVLM, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["caption", name]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gapless: ") and err.count("\n") == 1
    assert vlm.loaded_with == {}


def test_an_error_of_the_library_is_one_line(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    vlm.raises = ModelNotFound("no such\nmodel; take another")
    assert main(["caption", "a.png", "--json"]) == 1
    assert capsys.readouterr() == ("", "gapless: no such model; take another\n")
    assert vlm.closed_after is ModelNotFound


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["query"], "QUESTION"),
        (["query", "a.png"], "the question is missing"),
        (["query", "a.png", "How", "bright?"], "put the question in quotes"),
        (["point", "star"], "which picture?"),
        (["point", "a.png", "b.png"], "the object is missing"),
        (["caption"], "which picture?"),
        (["caption", "-", "-"], "give it once"),
        (["caption", "a.png", "b.png", "--stream"], "give one picture"),
        (["caption", "a.png", "--stream", "--draw", "x.png"], "leave out --stream"),
        (["query", "what?", "--draw", "x.png"], "none was given"),
        (["caption", "a.png", "--temperature", "-1"], "temperature must be"),
        (["caption", "a.png", "--max-tokens", "0"], "max_tokens must be"),
        (["caption", "a.png", "--logprobs", "2"], "add --json"),
        (["query", "what?", "--json", "--logprobs", "21"], "logprobs must be"),
        (["query", "what?", "--stop", ""], "stop must be"),
        (["point", "a.png", "star", "--spatial-ref", "1,2"], "--spatial-ref '1,2'"),
        (["point", "a.png", "star", "--spatial-ref", "nan,0"], "--spatial-ref 'nan,0'"),
        (["point", "a.png", "star", "--spatial-ref", ".9,.9,.1,.1"], "--spatial-ref '.9,.9,.1,.1'"),
        (["bench"], "Missing command"),
        (["caption", "a.png", "--depth", "0"], "--depth"),
        *((["caption", "a.png", "--kv-memory", size], f"{size!r} must be bytes") for size in ("0", "much", "-1GB")),
        (
            ["caption", "a.png", "--kv-memory", "8G"],
            "with KB, MB, GB or TB, or KiB to TiB, not G",
        ),
        (
            ["caption", "a.png", "--kv-memory", "9999TB"],
            "'9999TB' must be bytes, as a number or like",
        ),
        (["bench", "decode", "--host-only", "--out", "x.json"], "--host-only takes nothing but --json beside it"),
        (["bench", "vision", "--compare", "a", "b", "--crops", "2", "--png", "x"], "leave out --crops, --png"),
        (["caption", "a.png", "--depth", "100"], "'--depth': Input should be less than or equal to 64"),
        (["caption", "a.png", "--max-rows", "0"], "'--max-rows': Input should be greater than or equal to 1"),
        (["caption", "a.png", "--max-rows", "1025"], "'--max-rows': Input should be less than or equal to 1024"),
        (["detect", "a.png", "star", "--pages", "1"], "'--pages': Input should be greater than or equal to 2"),
        (["query", "what?", "--pages", "many"], "'--pages'"),
        (["caption", "a.png", "--length", "endless"], "--length"),
        (["detect", "a.png", "b.png", "star", "--draw", "x.png"], "one file for 2 pictures"),
        (["detect", "a.png", "star", "--draw", "x.txt"], "must end with one of .png"),
        (["detekt", "a.png", "star"], "No such command 'detekt'"),
        (["caption", "a.png", "--lenght", "short"], "--lenght"),
        (["caption", "a.png", "--length", "huge"], "'--length': 'huge' is not one of 'short', 'normal', 'long' (see"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(
    vlm: FakeVLM, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and says in err
    assert err.startswith("gapless: ") and err.endswith("--help)\n") and err.count("\n") == 1
    assert vlm.loaded_with == {}


@pytest.mark.parametrize("words", ["query a.png what?", "caption a.png", *(f"{s} a.png it" for s in OBJECT_SKILLS)])
def test_every_skill_takes_the_sizes_that_the_library_takes(vlm: FakeVLM, words: str) -> None:
    assert (LARGEST["depth"], LARGEST["max_rows"], LARGEST["pages"]) == (MOST_DEPTH, MOST_ROWS, MOST_PAGES)
    assert LARGEST["grammars"] == MOST_GRAMMARS
    assert main([*words.split(), "--max-rows", str(MOST_ROWS), "--pages", str(MOST_PAGES)]) == 0
    assert (vlm.loaded_with["max_rows"], vlm.loaded_with["pages"]) == (MOST_ROWS, MOST_PAGES)


def test_standard_input_is_a_picture(
    vlm: FakeVLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, pictures: Path
) -> None:
    piped = SimpleNamespace(buffer=io.BytesIO((pictures / "b.png").read_bytes()), isatty=lambda: False)
    monkeypatch.setattr("sys.stdin", piped)
    assert main(["query", "a.png", "-", "how?"]) == 0
    assert [line["answer"] for line in lines(capsys.readouterr().out)] == ["brightness 40", "brightness 200"]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["caption", "-"]) == 2
    assert "that is a terminal" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_cancels(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    vlm.raises = KeyboardInterrupt()
    assert main(["caption", "a.png"]) == 130
    assert capsys.readouterr() == ("", "")
    assert vlm.closed_after is KeyboardInterrupt


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.mark.parametrize("words", ["point a.png star", "detect a.png star", "segment a.png star"])
def test_draw_on_a_copy(vlm: FakeVLM, capsys: pytest.CaptureFixture[str], pictures: Path, words: str) -> None:
    before = (pictures / "a.png").read_bytes()
    assert main([*words.split(), "--draw", "new/out.png"]) == 0
    out, err = capsys.readouterr()
    assert out and err == "gapless: drawn to new/out.png\n"
    drawn = pixels(pictures / "new" / "out.png")
    assert drawn.shape == (30, 40, 3) and (drawn != 40).any()
    assert (pictures / "a.png").read_bytes() == before


@pytest.mark.parametrize("words", [["query", "a.png", "How bright?"], ["caption", "a.png"]])
def test_text_is_set_under_the_picture(vlm: FakeVLM, pictures: Path, words: list[str]) -> None:
    assert main([*words, "--draw", "out.jpg"]) == 0
    assert Image.open(pictures / "out.jpg").format == "JPEG"
    drawn = pixels(pictures / "out.jpg")
    assert drawn.shape[0] > 30 and abs(drawn[:25, :40].astype(int) - 40).max() < 12


def test_draw_several(vlm: FakeVLM, capsys: pytest.CaptureFixture[str], pictures: Path) -> None:
    assert main(["detect", "a.png", "b.png", "./a.png", "star", "--draw", "boxes/"]) == 0
    drawn = [line["drawn"] for line in lines(capsys.readouterr().out)]
    assert drawn == ["boxes/a.png", "boxes/b.png", "boxes/a-2.png"]
    assert all((pictures / name).is_file() for name in drawn)
    assert main(["detect", "a.png", "b.png", "star", "--draw", "box-{name}.webp"]) == 0
    assert [line["drawn"] for line in lines(capsys.readouterr().out)] == ["box-a.webp", "box-b.webp"]


@pytest.mark.parametrize(
    "words",
    [
        "detect a.png star --draw a.png",
        "detect a.png star --draw ./",
        "detect a.png b.png star --draw .",
        "detect b.png a.png star --draw link.png",
        "detect a.png b.png star --draw {name}.png",
        "caption a.png b.png --draw here/{name}.png",
    ],
)
def test_drawing_never_replaces_a_picture_that_was_given(
    vlm: FakeVLM, capsys: pytest.CaptureFixture[str], pictures: Path, words: str
) -> None:
    (pictures / "here").symlink_to(pictures, target_is_directory=True)
    if "link.png" in words:
        (pictures / "link.png").symlink_to("a.png")
        words = words.replace("b.png ", "")
    before = {name: (pictures / name).read_bytes() for name in ("a.png", "b.png")}
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and "write over the picture" in err and vlm.calls == []
    assert before == {name: (pictures / name).read_bytes() for name in before}


def test_a_name_longer_than_any_file_system_takes(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["point", "a.png", "star", "--draw", "x" * 5000 + ".png"]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(vlm: FakeVLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["detect", "a.png", "star", "--draw", "b.png/out.png"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gapless: cannot write 'b.png/out.png'") and err.count("\n") == 1
