"""The examples are run as their readers would, with pictures in a folder in a camera's place."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gapless.errors import InvalidRequest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "src" / "gapless" / "assets" / "samples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    def load(name: str) -> ModuleType:
        sys.modules.pop(name, None)
        return importlib.import_module(name)

    yield load
    for name in ("frames", "terminal", "webcam", "folder_to_jsonl", "control_loop", "gaze_on_video", "receipts"):
        sys.modules.pop(name, None)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in ("shapes_square.png", "small_0.png"):
        shutil.copy(SAMPLES / name, folder)
    return folder


def test_a_folder_is_captioned_once_and_goes_on_where_it_stopped(example, pictures, tmp_path, capsys):
    module, out = example("folder_to_jsonl"), tmp_path / "out.jsonl"
    (pictures / "broken.png").write_text("no picture")
    assert module.main([str(pictures), str(out)]) == 0
    lines = {line["file"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert "416" in lines["shapes_square.png"]["caption"] and "unknown format" in lines["broken.png"]["error"]
    first = out.read_text()
    out.write_text(first + '{"file": "small_0')  # as a crash leaves it
    assert module.main([str(pictures), str(out)]) == 0
    assert out.read_text() == first and "0 of 3" in capsys.readouterr().out
    shutil.copy(SAMPLES / "small_1.png", pictures / "broken.png")
    assert module.main([str(pictures), str(out), "--retry", "--question", "What is there?"]) == 0
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(again) == 3 and "answer" in again[-1] and again[-1]["file"] == "broken.png"


def test_a_camera_is_asked_about_its_newest_frame(example, pictures, capsys, monkeypatch):
    module = example("webcam")
    monkeypatch.setattr(sys.modules["frames"], "PICTURES_A_SECOND", 1000.0)
    assert module.main([str(pictures), "What is there?"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 1 <= len(lines) <= 2 and lines[-1].endswith("missed]")


def test_a_decision_is_made_from_what_was_seen_or_none(example, pictures, capsys, monkeypatch):
    module = example("control_loop")
    seen = module.Target(0.75, 0.5, at=10.0)
    assert module.decide(seen, 10.5, hold=1.0) == "turn +0.25"
    assert module.decide(module.Target(0.51, 0.5, 10.0), 10.5, hold=1.0) == "ahead"
    assert module.decide(seen, 11.5, hold=1.0) == module.decide(None, 0.0, 1.0) == "stop"
    (pictures / "small_0.png").unlink()
    assert module.main([str(pictures), "cross", "--hz", "50", "--timeout", "60", "--hold", "60"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("turn -0.05")
    assert module.main([str(pictures), "cross", "--hz", "50", "--timeout", "0.000001"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("stop")


def test_gazes_are_drawn_on_frames(example, pictures, tmp_path, capsys):
    module, out = example("gaze_on_video"), tmp_path / "out"
    (pictures / "small_0.png").unlink()
    assert module.main([str(pictures), str(out), "--model", "glint", "--person", "cross"]) == 0
    assert "2 faces" in capsys.readouterr().out and (out / "000000.png").stat().st_size > 0
    frame = np.zeros((50, 100, 3), np.uint8)
    face = {"x_min": 0.1, "y_min": 0.2, "x_max": 0.3, "y_max": 0.4}
    picture = np.asarray(module.drawn(frame, [face], [{"x": 0.8, "y": 0.3}]))
    assert picture[15, 70].tolist() == [255, 255, 0] and picture[40, 70].tolist() == [0, 0, 0]


def test_a_video_is_read_with_red_first_and_one_that_is_missing_is_told(example, monkeypatch):
    module = example("frames")
    given = [np.full((2, 2, 3), (1, 2, 3), np.uint8)]

    def capture(source: object) -> SimpleNamespace:
        left = list(given)
        return SimpleNamespace(
            isOpened=lambda: source != "missing.mp4",
            read=lambda: (bool(left), left.pop() if left else None),
            get=lambda what: 30.0,
            release=given.clear,
        )

    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(VideoCapture=capture, CAP_PROP_FPS=5))
    assert [frame[0, 0].tolist() for frame in module.frames("0", live=True)] == [[3, 2, 1]]
    assert not given, "the camera was not released"
    with pytest.raises(SystemExit, match=r"missing\.mp4.*cannot be opened"):
        next(module.frames("missing.mp4"))


def test_receipts_are_objects_and_sums_are_checked(example, pictures, capsys):
    module = example("receipts")
    item = module.Item(name="tea", price=2.5)
    assert module.Receipt(shop="", items=[item, item], total=5.01).missing == 0.01
    assert module.Receipt(shop="", items=[item], total=2.5).missing == 0
    (pictures / "small_0.png").write_text("no picture")
    assert module.main([str(pictures), "--max-tokens", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " items, " in lines[0] and "unknown format" in lines[1]


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("folder_to_jsonl", ["missing", "out.jsonl"], "'missing' is no folder"),
        ("folder_to_jsonl", ["empty", "out.jsonl"], "'empty' has no pictures in it"),
        ("receipts", ["empty"], "'empty' has no pictures in it"),
        ("folder_to_jsonl", ["empty", "out.jsonl", "--at-once", "0"], "'0' is no whole number of 1 or more"),
        ("control_loop", ["empty", "cross", "--hz", "0"], "'0' is no number above 0"),
        ("gaze_on_video", ["empty", "out", "--every", "0"], "'0' is no whole number of 1 or more"),
    ],
)
def test_what_is_wrong_is_told_before_a_model_is_loaded(example, name, words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    module = example(name)
    monkeypatch.setattr(module.gapless, "load", None)
    with pytest.raises(SystemExit) as left:
        module.main(words)
    assert told in (left.value.code if isinstance(left.value.code, str) else capsys.readouterr().err)


def test_a_picture_that_cannot_be_read_is_passed_over_as_a_dropped_frame(example, pictures, capsys):
    module = example("frames")
    (pictures / "broken.png").write_text("no picture")
    assert len(list(module.frames(str(pictures)))) == 2
    assert "broken.png is passed over" in capsys.readouterr().err


def test_a_program_ends_in_one_line(example, capsys):
    module = example("terminal")

    def interrupted() -> int:
        raise KeyboardInterrupt

    def wrong() -> int:
        raise InvalidRequest("length 'tiny' is none; take short", param="length")

    assert [module.run(main) for main in (interrupted, wrong, int)] == [130, 1, 0]
    assert capsys.readouterr().err.splitlines() == ["interrupted", "length 'tiny' is none; take short"]
