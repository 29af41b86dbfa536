"""Whatever was done for a picture or a conversation is not done again: decoding, cutting, vision, prefill."""

import asyncio
import copy
import gc
import io
import pickle

import pytest
from PIL import Image
from tests.api.asking import idle, told
from tests.api.conftest import noise
from tests.api.engine_room import until

import gapless
from gapless import AsyncVLM
from gapless.errors import NotEnoughMemory
from gapless.models.moondream.model import Moondream

PLAIN = {"temperature": 0, "max_tokens": 4}


def file_of(seed):
    out = io.BytesIO()
    Image.fromarray(noise(seed)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def fresh(micro_folder):
    with gapless.load(micro_folder) as vlm:
        yield vlm


def pins(vlm):
    return dict(vlm.desk.runner._engine.ledgers.prefixes._pins)


def test_a_second_question_skips_decoding_cutting_vision_and_the_prefill(fresh, monkeypatch):
    towers = []
    encode = Moondream.encode_picture
    monkeypatch.setattr(Moondream, "encode_picture", lambda self, *args: towers.append(1) or encode(self, *args))
    first = fresh.query(file_of(1), "Why?", settings=PLAIN)
    again = fresh.query(file_of(1), "Why?", settings=PLAIN)
    other = fresh.caption(file_of(1), settings=PLAIN)
    stats, prefix = fresh.stats(), fresh.desk.context.prefix
    assert told(first) == told(again) and len(towers) == 1
    assert (stats["pictures_asked"], stats["pictures_decoded"], stats["pictures_cut"]) == (3, 1, 1)
    assert first["metrics"]["cached_tokens"] == 0 < prefix <= other["metrics"]["cached_tokens"]
    assert prefix <= again["metrics"]["cached_tokens"] < again["metrics"]["input_tokens"]
    assert (stats["pictures"], stats["shared_pictures"], stats["prefix_hits"], stats["prefix_misses"]) == (3, 2, 2, 1)
    shares = [one["metrics"][name] for name in ("cached_tokens", "input_tokens") for one in (first, again, other)]
    assert stats["cached_share"] == sum(shares[:3]) / sum(shares[3:])


def test_equal_pixels_of_different_files_are_one_picture_and_unlike_ones_are_not(fresh):
    other = io.BytesIO()
    Image.fromarray(noise(1)).save(other, "BMP")
    prefix = fresh.desk.context.prefix
    files = [file_of(1), other.getvalue(), noise(1), file_of(2)]
    found = [fresh.query(file, "Why?", settings=PLAIN)["metrics"]["cached_tokens"] for file in files]
    assert found[0] == found[3] == 0 and found[1] == found[2] >= prefix
    stats = fresh.stats()
    assert (stats["pictures_decoded"], stats["pictures_cut"], stats["pictures_held"]) == (4, 2, 2)


def test_a_further_turn_skips_all_before_it(fresh):
    part = {"type": "image", "image": file_of(2)}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "What is this, in a few words, please?"}]}]
    first = fresh.chat(messages, settings=PLAIN)
    messages += [first["message"], {"role": "user", "content": "And is there anything else?"}]
    second = fresh.chat(messages, settings=PLAIN)["metrics"]
    before = first["metrics"]["input_tokens"]
    assert before - 16 < second["cached_tokens"] < second["input_tokens"], "all but the last page, which was not full"
    assert fresh.stats()["pictures_decoded"] == 1


def test_a_handle_pins_its_picture_until_it_is_dropped(fresh):
    rgb = noise(3)
    one, two = fresh.encode_image(rgb), fresh.encode_image(rgb)
    assert fresh.encode_image(one) is one
    digest = one.picture.digest
    until(lambda: pins(fresh) == {digest: 2}, "two pins")
    answers = [told(fresh.caption(image, settings=PLAIN)) for image in (one, rgb, two)]
    assert answers[0] == answers[1] == answers[2]
    assert pins(fresh) == {digest: 2}, "questions about the picture itself pin nothing"
    del one
    until(lambda: pins(fresh) == {digest: 1}, "one pin")
    del two
    gc.collect()
    until(lambda: pins(fresh) == {}, "none")
    idle(fresh)


def test_copies_of_a_handle_are_as_good_and_pin_nothing(fresh):
    handle = fresh.encode_image(noise(6))
    for other in (pickle.loads(pickle.dumps(handle)), copy.deepcopy(handle)):
        assert other.pin is None and other.picture.digest == handle.picture.digest
        assert told(fresh.caption(other, settings=PLAIN)) == told(fresh.caption(handle, settings=PLAIN))
    assert pins(fresh) == {handle.picture.digest: 1}


def test_a_handle_of_another_engine_is_pinned_here_when_it_is_encoded_here(fresh, vlm):
    theirs = vlm.encode_image(noise(4))
    told(fresh.caption(theirs, settings=PLAIN))
    assert pins(fresh) == {}
    ours = fresh.encode_image(theirs)
    until(lambda: pins(fresh) == {ours.picture.digest: 1}, "a pin")
    assert ours.picture is theirs.picture


def test_handles_of_tasks_pin_too_and_outlive_their_engine(micro_folder):
    async def encoded():
        async with AsyncVLM(gapless.load(micro_folder)) as model:
            handle = await model.encode_image(noise(5))
            until(lambda: pins(model) == {handle.picture.digest: 1}, "a pin")
            return handle

    handle = asyncio.run(encoded())
    gc.collect()
    assert handle.pin.runner() is None, "a handle keeps no engine"
    assert handle.picture.width == 130
    del handle


def crowd_out(vlm, count=4):
    """Questions that want all pages there are."""
    for seed in range(10, 10 + count):
        vlm.query(noise(seed), "What is it that is to be seen there?", settings={"temperature": 0, "max_tokens": 60})


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_picture_whose_pages_are_gone_comes_back_from_the_host_bit_for_bit(micro_folder, monkeypatch, dtype):
    """Also in a second context: the skipped decoding, since its pixels are kept, and the skipped vision."""
    towers, encode = [], Moondream.encode_picture
    monkeypatch.setattr(Moondream, "encode_picture", lambda self, *args: towers.append(1) or encode(self, *args))
    said = {}
    for room in (0, 2**20):
        towers.clear()
        with gapless.load(micro_folder, pages=14, max_rows=1, dtype=dtype, picture_cache_host=room) as vlm:
            first = told(vlm.query(file_of(1), "Why?", settings=PLAIN))
            crowd_out(vlm)
            again = vlm.query(file_of(1), "Why?", settings=PLAIN)
            stats = vlm.stats()
            assert again["metrics"]["cached_tokens"] == 0 < stats["prefix_evictions"], "its pages are gone"
            assert len(towers) == (6 if room == 0 else 5) and stats["host_hits"] == (room > 0)
            assert (stats["pictures_asked"], stats["pictures_decoded"], stats["host_evictions"]) == (6, 5, 0)
            said[room] = (first, told(again))
            standing, model = vlm.desk.runner._engine.standing(), vlm.desk.runner._engine.picture_bytes
            assert (standing.host_pictures, standing.host_bytes) == ((5, 5 * model) if room else (0, 0))
    assert said[0] == said[2**20] and said[0][0] == said[0][1]


def test_host_memory_holds_a_picture_at_least_and_not_all_there_is(micro_folder):
    with pytest.raises(NotEnoughMemory, match=r"picture_cache_host is .* but one picture takes") as raised:
        gapless.load(micro_folder, picture_cache_host=100)
    assert raised.value.param == "picture_cache_host"
    with pytest.raises(NotEnoughMemory, match=r"1125899\.91 GB, but of .* it may take at most .* lower it"):
        gapless.load(micro_folder, picture_cache_host=2**50)


def test_without_room_for_pictures_each_is_prepared_anew(micro_folder):
    with gapless.load(micro_folder, picture_cache=0) as vlm:
        for _ in range(2):
            vlm.caption(file_of(1), settings=PLAIN)
        stats = vlm.stats()
    assert (stats["pictures_cut"], stats["pictures_held"], stats["shared_pictures"]) == (2, 0, 1)
