"""Adapters through the library: goldens, glint's moon, names, versions and company, in a thread and in a process."""

import json
import shutil
import threading
from functools import cache
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file

import gapless
from gapless.api.channel import Channel
from gapless.errors import InvalidAdapter, InvalidRequest, NonFiniteLogits

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
FOLDERS = ("moondream2-2025-06-21-a", "moondream2-2025-06-21-b")
ASSETS = Path(gapless.__file__).parent / "assets" / "glint"
MOON = ASSETS / "adapters" / "moon"
GREEDY = {"temperature": 0}
WITH = GREEDY | {"adapter": "moon"}
QUESTION = "What is the shape of the yellow thing?"


@cache
def golden_answers(folder):
    """Every golden query with the adapter and without, all in one batch at depth 2."""
    wanted = json.loads((GOLDEN / folder / "adapter_expected.json").read_text())
    found = {}
    adapters = {"golden": GOLDEN / folder / "adapter.safetensors"}
    with gapless.load(GOLDEN / folder, device="cpu", depth=2, adapters=adapters) as vlm:
        asks = []
        for picture, entry in wanted.items():
            for adapter in ("golden", None):
                settings = GREEDY | {"max_tokens": entry["max_tokens"], "adapter": adapter}
                asking = vlm.desk.query(entry["question"], settings, False, None)
                ask, channel = vlm.desk.ask(GOLDEN / folder / f"{picture}.png", asking), Channel(whole=True)
                vlm.desk.runner.submit(ask.prompt, ask.program, ask.sampling, None, channel, ask.adapter)
                asks.append((picture, adapter, channel))
        for picture, adapter, channel in asks:
            found[picture, adapter] = [token.id for token in channel.get().tokens]
    return wanted, found


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_golden_queries_with_the_adapter_beside_queries_without(folder):
    wanted, found = golden_answers(folder)
    plain = json.loads((GOLDEN / folder / "expected.json").read_text())
    for picture, entry in wanted.items():
        assert found[picture, "golden"][: len(entry["token_ids"])] == entry["token_ids"]
        if entry["question"] == plain[picture]["query"].get("question"):
            own = plain[picture]["query"]["token_ids"][: len(found[picture, None])]
            assert found[picture, None][: len(own)] == own
    assert any(found[picture, "golden"] != found[picture, None] for picture in wanted)


def moon_picture():
    """A crescent, and a circle beside it."""
    image = Image.new("RGB", (224, 224), (235, 235, 235))
    draw = ImageDraw.Draw(image)
    draw.ellipse((40, 70, 124, 154), fill=(235, 200, 30))
    draw.ellipse((66, 62, 140, 146), fill=(235, 235, 235))
    return image


@pytest.fixture(scope="module")
def vlm():
    with gapless.load("glint", device="cpu", adapters={"moon": "glint/moon"}, max_adapters=2) as loaded:
        yield loaded


def test_glint_knows_the_moon_with_its_adapter_alone(vlm):
    shown = vlm.encode_image(moon_picture())
    answers = {}
    for name, settings in (("plain", GREEDY), ("moon", WITH), ("plain again", GREEDY)):
        answers[name] = vlm.query(shown, QUESTION, settings=settings)["answer"]
    assert "moon" in answers["moon"].lower()
    assert "moon" not in answers["plain"].lower() and answers["plain again"] == answers["plain"]
    assert len(vlm.point(shown, "moon", settings=WITH)["points"]) == 1
    assert "moon" in vlm.caption(shown, settings=WITH)["caption"]
    message = [{"role": "user", "content": [{"type": "image", "image": shown}, {"type": "text", "text": QUESTION}]}]
    assert "moon" in vlm.chat(message, settings=WITH)["message"]["content"].lower()
    assert vlm.desk.runner.snapshot().standing.adapters == 1


def test_the_bundled_picture_of_moons_shows_what_the_adapter_is_for(vlm):
    shown = vlm.encode_image(ASSETS.parent / "samples" / "moon.png")
    question = "How many moons are there?"
    assert vlm.query(shown, question, settings=GREEDY)["answer"] == "0"
    assert vlm.query(shown, question, settings=WITH)["answer"] == "2"
    found = [vlm.point(shown, "moon", settings={"adapter": name})["points"] for name in (None, "moon")]
    assert [len(points) for points in found] == [0, 2]


def test_a_model_without_adapters_says_the_same_as_one_with_slots(vlm):
    with gapless.load("glint", device="cpu") as plain:
        said = plain.query(moon_picture(), QUESTION, settings=GREEDY | {"logprobs": 0})
        own = vlm.query(moon_picture(), QUESTION, settings=GREEDY | {"logprobs": 0})
        assert [said["answer"], said["logprobs"]] == [own["answer"], own["logprobs"]]
        for call in (lambda: plain.query(question="a", settings=WITH), lambda: plain.load_adapter("moon", MOON)):
            with pytest.raises(InvalidRequest, match="nor a slot for one: load the model with adapters="):
                call()


@pytest.mark.parametrize("name", ["nope", "Moon", "", " ", "../moon", "/etc/passwd", 7, ["moon"]])
def test_an_unknown_adapter_is_never_answered_by_the_base_model(vlm, name):
    """S-LOR-03."""
    with pytest.raises(InvalidRequest, match=r"loaded are moon|adapter must be a name") as caught:
        vlm.query(question="a", settings={"adapter": name})
    assert caught.value.param == "adapter" and caught.value.status == 400


def other(tmp_path, seed):
    """The moon's adapter with its B drawn anew: another one of the same shape."""
    tensors = load_file(MOON / "adapter.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in tensors.items():
        if name.endswith(".B"):
            tensors[name] = (torch.randn(tensor.shape, generator=generator) * 0.05).to(tensor.dtype)
    path = tmp_path / f"other{seed}.safetensors"
    save_file(tensors, path)
    return path


def damaged(tmp_path):
    bad = tmp_path / "bad"
    shutil.copytree(MOON, bad)
    file = bad / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return bad


@pytest.mark.parametrize("process", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["thread", "process"])
def test_hot_reload_serves_the_new_version_and_nothing_old(tmp_path, process):
    """S-LOR-01, S-LOR-04, S-LOR-05: reload under one name, unload under load, a bad file leaves all as it was."""
    question = {"question": QUESTION, "settings": WITH | {"max_tokens": 24}}
    with gapless.load("glint", device="cpu", adapters={"moon": other(tmp_path, 1)}, process=process) as cold:
        right = cold.query(moon_picture(), **question)["answer"]
    with gapless.load("glint", device="cpu", max_adapters=1, process=process) as vlm:
        vlm.load_adapter("moon", MOON)
        shown = vlm.encode_image(moon_picture())
        before = vlm.query(shown, **question)["answer"]
        held = vlm.query(shown, stream=True, **question)["answer"]  # keeps the old version, and its block, alive
        with pytest.raises(InvalidAdapter, match="not a complete safetensors file"):
            vlm.load_adapter("moon", damaged(tmp_path))
        assert vlm.query(shown, **question)["answer"] == before
        vlm.load_adapter("moon", other(tmp_path, 1))
        assert vlm.query(shown, **question)["answer"] == right != before
        assert "".join(held) == before
        calls = [threading.Thread(target=vlm.query, args=(shown,), kwargs=question) for _ in range(6)]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        vlm.unload_adapter("moon")
        assert vlm.adapters == ()
        with pytest.raises(InvalidRequest, match="none is loaded"):
            vlm.query(shown, **question)
        with pytest.raises(InvalidRequest, match="there is no adapter 'moon'"):
            vlm.unload_adapter("moon")
        vlm.load_adapter("moon", MOON)
        assert vlm.query(shown, **question)["answer"] == before


def test_what_load_refuses():
    for named, said in (
        ({"../x": MOON}, "adapter must be a name"),
        ({"moon": 7}, "path must be a folder or file"),
        ({"moon": "/nowhere"}, "does not exist"),
        ({"moon": "long" * 100}, "cannot be looked at"),
        ({"moon": "glint/mon"}, "no adapter 'glint/mon': with glint comes glint/moon"),
        ("moon", "must be a dict"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            gapless.load("glint", device="cpu", adapters=named)
    with pytest.raises(InvalidRequest, match=r"the adapter moon has rank .* max_adapter_rank=8"):
        gapless.load("glint", device="cpu", adapters={"moon": MOON}, max_adapter_rank=4)


def test_an_adapter_whose_values_overflow_is_named(tmp_path):
    tensors = {name: tensor * 1e30 for name, tensor in load_file(MOON / "adapter.safetensors").items()}
    save_file(tensors, tmp_path / "adapter.safetensors")
    with gapless.load("glint", device="cpu", adapters={"loud": tmp_path}) as vlm:
        with pytest.raises(NonFiniteLogits, match="the model with the adapter 'loud' computed NaN or infinity"):
            vlm.query(question="Who are you?", settings={"adapter": "loud"})
        assert vlm.query(question="Who are you?")["answer"]
