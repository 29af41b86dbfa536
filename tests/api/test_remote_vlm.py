"""`load(process=True)` on a micro model: the same answers, errors and streams as with the engine in a thread."""

import asyncio
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
from tests.api.asking import calls, told
from tests.api.conftest import noise
from tests.api.engine_room import submit, until
from tests.api.scripts import run
from tests.fakes.scene import ask

import gapless
from gapless import AsyncVLM, errors
from gapless.api import load as loading
from gapless.api.opening import Opening
from gapless.api.remote import RemoteRunner
from gapless.api.spawn import EngineProcess
from gapless.records import Sampling

FOREIGN = ("PIL", "tokenizers", "fastapi", "uvicorn", "starlette", "pydantic", "uvloop", "httptools", "httpx")


class Seen:
    """Remembers the progress."""

    def __init__(self):
        self.seen = []

    def show(self, doing, done, total):
        self.seen.append((doing, done, total))


@pytest.fixture(scope="module")
def remote(micro_folder):
    progress = Seen()
    with gapless.load(micro_folder, device="cpu", process=True, max_rows=4, progress=progress) as remote:
        assert progress.seen[0] == ("loading the weights", 0, 1)
        assert progress.seen[-1] == ("MB of weights", 1, 1)
        yield remote


def test_every_skill_answers_as_in_a_thread(vlm, remote, pictures):
    for seed, image in enumerate(pictures[:2]):
        here, there = calls(vlm, image, seed), calls(remote, image, seed)
        assert {name: told(call()) for name, call in there.items()} == {
            name: told(call()) for name, call in here.items()
        }
    until(lambda: remote.desk.runner.pictures_held == 0, "an empty arena")


@pytest.mark.slow
def test_a_list_streams_and_encoded_pictures_too(vlm, remote, pictures):
    warm = {"temperature": 1.5, "seed": 3, "max_tokens": 24}
    right = [told(vlm.caption(image, settings=warm)) for image in pictures * 5]
    bad = remote.caption([*pictures * 5, b"no picture"], settings=warm, on_error="return")
    assert isinstance(bad.pop(), errors.InvalidImage) and [told(one) for one in bad] == right
    stream = remote.caption(remote.encode_image(pictures[0]), stream=True, settings=warm)["caption"]
    assert "".join(stream) == right[0]["caption"] and stream.finish_reason == right[0]["finish_reason"]
    assert stream.metrics["output_tokens"] > 0


def test_tasks_ask_side_by_side(vlm, remote, pictures):
    async def ask_all():
        model = AsyncVLM(remote)
        stream = (await model.caption(pictures[0], stream=True, settings={"temperature": 0, "max_tokens": 9}))[
            "caption"
        ]
        text = "".join([piece async for piece in stream])
        return text, await asyncio.gather(*(model.point(image, "star") for image in pictures))

    text, points = asyncio.run(ask_all())
    assert text == vlm.caption(pictures[0], settings={"temperature": 0, "max_tokens": 9})["caption"]
    assert [told(one) for one in points] == [told(vlm.point(image, "star")) for image in pictures]


def test_a_second_question_about_a_picture_finds_it_prepared_and_computed(remote):
    rgb = noise(33)
    handle, before = remote.encode_image(rgb), remote.stats()
    first, second = (remote.query(handle, "Why?", settings={"temperature": 0})["metrics"] for _ in range(2))
    third = remote.query(rgb, "Who?", settings={"temperature": 0})["metrics"]
    del handle
    after = remote.stats()
    assert 0 == first["cached_tokens"] < second["cached_tokens"] and third["cached_tokens"] > 0
    assert (after["pictures_asked"] - before["pictures_asked"], after["pictures_cut"] - before["pictures_cut"]) == (
        1,
        0,
    )
    assert 0 < after["cached_share"] < 1


def test_logprobs_come_along(vlm, remote):
    request = ask(0, ids=(9, 17), max_tokens=9)
    sampling = Sampling(temperature=1.1, seed=4, max_tokens=9, top_logprobs=3)
    here, there = (
        submit(one.desk.runner, type(request)(0, request.prompt, request.program, sampling)).hear()
        for one in (vlm, remote)
    )
    assert here.tokens == there.tokens and len(there.tokens[0].top) == 3
    assert here.finish.reason is there.finish.reason


def test_errors_of_one_request_are_the_same(vlm, remote, pictures):
    for model in (vlm, remote):
        with pytest.raises(errors.InvalidImage):
            model.caption(b"no picture")
        with pytest.raises(errors.RequestTimeout) as caught:
            model.caption(pictures[0], settings={"timeout": 1e-6})
        assert caught.value.status == 504
    assert told(remote.caption(pictures[0], settings={"temperature": 0})) == told(
        vlm.caption(pictures[0], settings={"temperature": 0})
    )


def test_totals_count_on(remote, pictures):
    before = remote.accounting()
    answer = remote.caption(pictures[0], settings={"max_tokens": 5, "temperature": 0})
    since = remote.accounting() - before
    assert since.counters.tokens == answer["metrics"]["output_tokens"] and since.counters.finished == 1
    assert remote.stats()["tokens"] == remote.accounting().counters.tokens


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"dtype": "float99"}, marks=pytest.mark.slow),
        pytest.param({"device": "tpu"}, marks=pytest.mark.slow),
        pytest.param({"pages": 1}, marks=pytest.mark.slow),
    ],
)
def test_what_cannot_be_loaded_is_told_as_in_a_thread(micro_folder, wrong):
    said = []
    for process in (False, True):
        with pytest.raises(errors.GaplessError) as caught:
            gapless.load(micro_folder, process=process, **({"device": "cpu"} | wrong))
        said.append((type(caught.value), str(caught.value), caught.value.param))
    assert said[0] == said[1]


def test_what_is_wrong_with_the_files_needs_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(EngineProcess, "__init__", None)
    for process in (False, True):
        with pytest.raises(errors.ModelNotFound):
            gapless.load(tmp_path / "nothing", device="cpu", process=process)
        with pytest.raises(errors.InvalidRequest, match="depth"):
            gapless.load(tmp_path, depth=0, process=process)
    with pytest.raises(errors.InvalidRequest, match="process must be True or False"):
        gapless.load(tmp_path, process="yes")
    with pytest.raises(errors.InvalidRequest, match="device must be"):
        gapless.load(tmp_path, process=True, device=3)


def test_a_folder_whose_name_cannot_be_told_to_another_process(micro_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(EngineProcess, "__init__", None)
    folder = tmp_path / "half \udcff"
    try:
        shutil.copytree(micro_folder, folder)
    except (OSError, UnicodeError):
        pytest.skip("this file system has no such names")
    with pytest.raises(errors.InvalidRequest, match="no UTF-8") as caught:
        gapless.load(folder, device="cpu", process=True)
    assert caught.value.param == "model"
    with pytest.raises(errors.InvalidRequest, match="device"):
        gapless.load(micro_folder, device="\udcff", process=True)


def test_without_the_extra_the_error_names_it(micro_folder, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name == "zmq" else found(name))
    with pytest.raises(errors.InvalidRequest, match=r"zmq missing.*gapless\[process\]") as caught:
        gapless.load(micro_folder, process=True)
    assert caught.value.param == "process"


@pytest.mark.slow
def test_the_engine_process_holds_nothing_but_the_engine(micro_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TOLD_MODULES", str(tmp_path / "modules"))
    process = EngineProcess(2**20, "tests.fakes.told_child")
    runner = RemoteRunner(process, process.open(Opening(str(micro_folder), device="cpu")))
    assert submit(runner).hear().finish.error is None
    maps = Path(f"/proc/{runner.pid}/maps").read_text() if sys.platform == "linux" else ""
    runner.close()
    modules = {name.split(".")[0] for name in (tmp_path / "modules").read_text().split()}
    assert {"torch", "zmq", "msgspec", "gapless"} <= modules
    assert not modules & set(FOREIGN)
    assert "tokenizers" not in maps and "_imaging" not in maps
    rooms = {name.split(".")[1] for name in (tmp_path / "modules").read_text().split() if name.startswith("gapless.")}
    assert not rooms & {"skills", "images", "cli", "serve", "bench"}


@pytest.mark.slow
def test_the_caller_needs_no_torch_and_hears_of_a_kill(endless_folder):
    done = run(
        """
    import os, sys, signal
    import gapless
    assert not {"zmq", "msgspec"} & set(sys.modules)
    vlm = gapless.load(sys.argv[1], device="cpu", process=True)
    assert "torch" not in sys.modules
    import numpy as np
    stream = vlm.caption(np.zeros((60, 80, 3), np.uint8), stream=True, settings={"max_tokens": 7000})["caption"]
    next(stream)
    os.kill(vlm.desk.runner.pid, signal.SIGKILL)
    try:
        stream.result()
    except gapless.errors.EngineDead as error:
        print(error)
    """,
        endless_folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("the engine stopped (ChildProcessError: the engine process was ended by SIGKILL)")
