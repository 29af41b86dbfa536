"""Troubles that users of such engines reported, through the library: memory that stays, pictures of unlike sizes
together, overflow in half precision."""

import gc
import socket
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors.torch import load_file, save_file
from tests.api.asking import WARM, idle, told
from tests.api.conftest import noise
from tests.api.engine_room import PATIENCE, engine_threads, until
from tests.fakes.micro import write_micro

import gapless
from gapless import errors
from gapless.api import desk
from gapless.models.moondream.weights_map import PREFIX

FEW = {"temperature": 0, "max_tokens": 3}


@pytest.mark.parametrize("room", [0, 4 * 5 * 28 * 28 * 3])
def test_s_mem_01_and_02_no_more_of_pictures_is_kept_after_their_answers_than_is_said(micro_folder, room):
    """Twenty distinct pictures, answered, streamed and left: their crops are free while the engine lives on."""
    with gapless.load(micro_folder, picture_cache=room) as vlm:
        kept = [crops() for crops in _twenty(vlm)]
        assert sum(one.nbytes for one in kept if one is not None) == vlm.stats()["pictures_held_bytes"] <= room
        assert all(one is None for one in kept[: 20 - vlm.stats()["pictures_held"]])


def _twenty(vlm):
    crops = []
    for i in range(20):
        encoded = vlm.encode_image(noise(i, 60 + 3 * i, 90))
        crops.append(weakref.ref(encoded.picture.crops))
        if i % 2:
            vlm.caption(encoded, settings=FEW)
        else:
            next(iter(vlm.caption(encoded, stream=True, settings=WARM)["caption"]), None)
        del encoded
    idle(vlm)
    vlm.query(question="x", settings=FEW)  # the step after takes the place of the last one's
    gc.collect()
    return crops


def test_s_mem_04_an_engine_that_ended_keeps_neither_cache_nor_threads(micro_folder):
    before, devices = len(engine_threads()), []
    for i in range(4):
        with gapless.load(micro_folder) as model:
            model.caption(noise(i), settings=FEW)
            cache = model.desk.runner._device._streams.executor.program.cache
            devices.append(weakref.ref(cache))
        del model, cache
    gc.collect()
    assert [ref() is None for ref in devices] == [True] * 4
    until(lambda: len(engine_threads()) == before, "the end of the threads")


def test_s_mem_05_of_a_long_list_only_a_window_is_decoded_ahead(micro_folder, monkeypatch):
    ahead, prepare = [], desk.PictureCache.prepare
    with gapless.load(micro_folder, max_rows=1) as model:

        def counted(*args):
            ahead.append(len(ahead) + 1 - model.stats()["finished"])
            return prepare(*args)

        monkeypatch.setattr(desk.PictureCache, "prepare", counted)
        results = model.caption([noise(i) for i in range(16)], settings=FEW)
        assert len(results) == len(ahead) == 16
        assert max(ahead) <= model.desk.window + 1 < 16


def test_s_con_08_and_18_pictures_of_unlike_sizes_together_are_answered_as_alone(vlm, micro_folder):
    pictures = [noise(1, 10, 10), noise(2, 300, 4000), noise(3, 756, 756), None, noise(1, 10, 10), noise(4, 1, 1)]
    settings = WARM | {"seed": 10}
    alone = [told(vlm.query(picture, "What is here?", settings=settings)) for picture in pictures]
    with gapless.load(micro_folder, max_rows=8) as model, ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(model.query, p, "What is here?", settings=settings) for p in pictures * 3]
        together = [told(future.result(PATIENCE)) for future in asked]
        assert model.stats()["failed"] == 0
    assert together == alone * 3
    assert len({str(answer) for answer in alone}) == len(pictures) - 1, "the picture does not show in the answer"


def test_s_num_01_an_overflow_in_half_precision_is_an_error_and_not_an_answer(tmp_path):
    folder = write_micro(tmp_path / "overflows")
    tensors = load_file(folder / "model.safetensors")
    tensors[PREFIX + "text.blocks.0.mlp.fc2.weight"] *= 60_000.0
    save_file(tensors, folder / "model.safetensors")
    with gapless.load(folder, dtype="float16") as model:
        for ask in (lambda: model.caption(noise(1), settings=FEW), lambda: model.detect(noise(1), "dog")):
            with pytest.raises(errors.NonFiniteLogits, match="float32 or bfloat16"):
                ask()
        assert model.stats()["tokens"] == 0
    with gapless.load(folder, dtype="float32") as model:
        assert model.caption(noise(1), settings=FEW)["metrics"]["output_tokens"] >= 1


def test_s_pfx_03_two_models_in_one_process_share_nothing(tmp_path, micro_folder):
    """The same picture and question, in turns, while both are busy with it."""
    other_folder = write_micro(tmp_path / "other", seed=1)
    ask = {"settings": WARM | {"seed": 4}}
    with gapless.load(micro_folder) as one, gapless.load(other_folder) as other, ThreadPoolExecutor(6) as pool:
        alone = [told(model.query(noise(1), "What?", **ask)) for model in (one, other)]
        asked = [pool.submit(model.query, noise(1), "What?", **ask) for _ in range(4) for model in (one, other)]
        assert [told(future.result(PATIENCE)) for future in asked] == alone * 4
    assert alone[0] != alone[1]


@pytest.mark.parametrize("offline", ["0", "1"])
def test_s_sta_03_a_local_model_needs_no_network(tmp_path, monkeypatch, offline):
    """Whatever the hub's offline variable says; a file that is missing is named, and nobody is asked for it."""

    def refused(*_):
        raise AssertionError("the network was used")

    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    folder = write_micro(tmp_path / "local")
    with gapless.load(folder) as model:
        assert model.caption(noise(1), settings=FEW)["metrics"]["output_tokens"] >= 1
    (folder / "tokenizer.json").unlink()
    with pytest.raises(errors.ModelNotFound, match=r"tokenizer\.json"):
        gapless.load(folder)
