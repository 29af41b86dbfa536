"""The picture cache: what was prepared is found under its file and under its pixels, and nothing else is."""

import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gapless.config import ImageLimits
from gapless.errors import InvalidImage
from gapless.images import cache as module
from gapless.images import once
from gapless.images.cache import FILES, PictureCache, PictureCounts
from gapless.images.crops import CropSpec
from gapless.images.picture import prepare

SPEC = CropSpec(crop_size=28, patch=14, overlap_margin=0, max_crops=4)
ONE = 2 * 28 * 28 * 3
"""Bytes of the crops of a picture that fits in one crop."""


def pixels(seed, side=20):
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def png(seed, level=6, **more):
    out = io.BytesIO()
    Image.fromarray(pixels(seed)).save(out, "PNG", compress_level=level, **more)
    return out.getvalue()


def note(number):
    """So that files of the same pixels differ."""
    info = PngInfo()
    info.add_text("n", str(number))
    return info


def cache_of(capacity=10 * ONE, spec=SPEC, **limits):
    return PictureCache(spec, ImageLimits(**limits), capacity)


@pytest.fixture
def work(monkeypatch):
    """What was decoded and cut, as the functions that do it see it."""
    done = {"decoded": 0, "cut": 0}
    load, cut = module.load_picture, module.from_pixels

    def loading(*args):
        done["decoded"] += 1
        return load(*args)

    def cutting(*args):
        done["cut"] += 1
        return cut(*args)

    monkeypatch.setattr(module, "load_picture", loading)
    monkeypatch.setattr(module, "from_pixels", cutting)
    return done


def test_a_file_that_was_seen_is_not_decoded_and_pixels_that_were_seen_are_not_cut(work, tmp_path):
    cache = cache_of()
    first = cache.prepare(png(1))
    assert work == {"decoded": 1, "cut": 1}
    (tmp_path / "a.png").write_bytes(png(1))
    for same in (png(1), bytearray(png(1)), memoryview(png(1)), str(tmp_path / "a.png"), tmp_path / "a.png"):
        assert cache.prepare(same) is first
    assert work == {"decoded": 1, "cut": 1}, "the same bytes, wherever they come from"
    for other in (png(1, level=0), pixels(1), Image.fromarray(pixels(1))):
        assert cache.prepare(other) is first
    assert work == {"decoded": 4, "cut": 1}, "equal pixels of another file, or of none"
    assert cache.prepare(png(1, level=0)) is first and work["decoded"] == 4, "that file is known now, too"
    assert cache.counts == PictureCounts(asked=10, decoded=4, cut=1, held=1, held_bytes=ONE)


def test_what_is_kept_is_what_would_have_been_prepared():
    cache = cache_of()
    for _ in range(2):
        for seed in range(4):
            found, right = cache.prepare(png(seed)), prepare(png(seed), SPEC)
            assert (found.digest, found.tiling, found.width) == (right.digest, right.tiling, right.width)
            assert np.array_equal(found.crops, right.crops)


def test_a_file_that_was_changed_is_another_picture(tmp_path):
    cache, path = cache_of(), tmp_path / "a.png"
    digests = []
    for seed in (1, 2, 1):
        path.write_bytes(png(seed))
        digests.append(cache.prepare(path).digest)
    assert digests[0] == digests[2] != digests[1]


def test_the_orientation_is_part_of_the_file_and_its_effect_of_the_pixels():
    exif = Image.Exif()
    exif[0x0112] = 3
    cache, turned = cache_of(), png(1, exif=exif)
    assert cache.prepare(turned).digest != cache.prepare(png(1)).digest
    assert cache.prepare(turned) is cache.prepare(np.ascontiguousarray(pixels(1)[::-1, ::-1]))


def test_nobody_writes_to_what_others_share_and_nobodys_own_array_is_kept():
    cache, mine = cache_of(), pixels(1)
    picture = cache.prepare(mine)
    with pytest.raises(ValueError, match="read-only"):
        picture.crops[0, 0, 0, 0] = 1
    mine[:] = 0
    assert cache.prepare(pixels(1)) is picture and cache.prepare(mine) is not picture


def test_the_picture_that_was_asked_for_the_longest_ago_goes_first(work):
    cache = cache_of(3 * ONE)
    for seed in (1, 2, 3, 1, 4):
        cache.prepare(png(seed))
    assert cache.counts == PictureCounts(asked=5, decoded=4, cut=4, evicted=1, held=3, held_bytes=3 * ONE)
    for seed in (1, 3, 4):
        cache.prepare(png(seed))
    assert work["decoded"] == 4
    cache.prepare(png(2))
    assert work["decoded"] == 5


def test_a_picture_larger_than_the_cache_leaves_it_as_it_is():
    cache = cache_of(ONE)
    cache.prepare(png(1))
    large = cache.prepare(pixels(2, side=60))
    assert large.crops.nbytes > ONE and large.crops.flags.writeable
    assert (cache.counts.held, cache.counts.held_bytes, cache.counts.evicted) == (1, ONE, 0)


def test_without_room_nothing_is_kept(work):
    cache = cache_of(0)
    assert cache.prepare(png(1)) is not cache.prepare(png(1))
    assert work == {"decoded": 2, "cut": 2} and cache.counts.held == 0


def test_no_more_files_of_a_picture_are_known_than_are_counted():
    cache = cache_of()
    files = [png(1, pnginfo=note(n)) for n in range(FILES + 5)]
    assert len({cache.prepare(file).digest for file in files}) == 1
    assert len(cache._pixels) == FILES
    cache.prepare(files[-1])
    assert cache.counts.decoded == len(files)
    cache.prepare(files[0])
    assert cache.counts.decoded == len(files) + 1


@pytest.mark.parametrize("wrong", [b"", b"no picture", 5, "nowhere.png", pixels(1).astype(np.float32)], ids=str)
def test_what_is_no_picture_is_told_each_time(wrong):
    cache = cache_of()
    for _ in range(2):
        with pytest.raises(InvalidImage):
            cache.prepare(wrong)
    assert cache.counts == PictureCounts(asked=2)


def test_limits_hold_for_files_that_are_too_long(tmp_path):
    cache = cache_of(max_bytes=50)
    (tmp_path / "a.png").write_bytes(png(1))
    for source in (png(1), tmp_path / "a.png"):
        with pytest.raises(InvalidImage, match="limit of 50 bytes"):
            cache.prepare(source)


def test_many_threads_get_one_picture_each_time():
    """More pictures than there is room for, in turns that differ."""
    cache, start = cache_of(3 * ONE), threading.Barrier(8)
    right = {seed: prepare(png(seed), SPEC).digest for seed in range(5)}

    def asking(number):
        start.wait()
        seeds = np.random.default_rng(number).integers(0, 5, 40)
        return all(cache.prepare(png(int(seed))).digest == right[int(seed)] for seed in seeds)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asking, range(8)))
    counts = cache.counts
    assert counts.asked == 320 and counts.held <= 3 and counts.held_bytes == counts.held * ONE
    assert 5 <= counts.cut <= counts.decoded < 320


class Gated:
    """Decoding that waits at a gate, and may fail or be interrupted there; how often it began is counted."""

    def __init__(self, monkeypatch):
        self.began, self.waits, self.gate, self.fails = 0, 0, threading.Event(), []
        self.load, self.awaited = module.load_picture, once._awaited
        monkeypatch.setattr(once, "_awaited", self.wait)
        monkeypatch.setattr(module, "load_picture", self)

    def __call__(self, *args):
        self.began += 1
        assert self.gate.wait(60)
        if self.fails:
            raise self.fails.pop(0)
        return self.load(*args)

    def wait(self, made):
        self.waits += 1
        return self.awaited(made)

    def crowd(self, cache, files):
        """Threads that ask all at once; what each got. The gate opens when all have begun or come to wait."""
        with ThreadPoolExecutor(len(files)) as pool:
            asking = [pool.submit(cache.prepare, file) for file in files]
            while self.began + self.waits < len(files):
                time.sleep(0.001)
            self.gate.set()
            return [one.exception() or one.result() for one in asking]


def test_who_asks_for_the_same_at_once_gets_what_one_of_them_has_decoded(monkeypatch):
    gated, cache = Gated(monkeypatch), cache_of()
    found = gated.crowd(cache, [png(1)] * 6)
    assert gated.began == 1 and all(one is found[0] for one in found)
    assert cache.counts == PictureCounts(asked=6, decoded=1, cut=1, held=1, held_bytes=ONE)
    assert cache._once._making == {}


def test_files_of_equal_pixels_at_once_are_cut_once_and_others_at_the_same_time(monkeypatch, work):
    gated, cache = Gated(monkeypatch), cache_of()
    found = gated.crowd(cache, [png(1), png(1, level=0), pixels(1), png(2)])
    assert gated.began == 4 and found[0] is found[1] is found[2] is not found[3]
    assert work["cut"] == cache.counts.cut == 2


def test_a_picture_too_large_to_be_kept_is_shared_by_who_asks_at_once(monkeypatch):
    gated, cache = Gated(monkeypatch), cache_of(1)
    found = gated.crowd(cache, [png(1)] * 4)
    assert all(one is found[0] for one in found) and gated.began == 1 and cache.counts.held == 0


def test_an_error_goes_to_all_who_asked_at_once_and_each_has_its_own(monkeypatch):
    gated, cache = Gated(monkeypatch), cache_of()
    gated.fails = [InvalidImage("broken", param="image")]
    found = gated.crowd(cache, [png(1)] * 4)
    failed = [one for one in found if isinstance(one, InvalidImage)]
    assert len({id(one) for one in failed}) == 4 and gated.began == 1
    assert {(str(one), one.param) for one in failed} == {("broken", "image")}
    assert cache.prepare(png(1)).width == 20, "the next one tries again"


def test_who_is_interrupted_takes_nobody_along(monkeypatch):
    gated, cache = Gated(monkeypatch), cache_of()
    gated.fails = [KeyboardInterrupt(), SystemExit()]
    found = gated.crowd(cache, [png(1)] * 5)
    gone = [one for one in found if isinstance(one, KeyboardInterrupt | SystemExit)]
    right = [one for one in found if one not in gone]
    assert len(gone) == 2 and len(right) == 3 and all(one is right[0] for one in right) and gated.began == 3


def test_a_fork_waits_for_no_thread_that_is_not_in_it(monkeypatch):
    gated, cache = Gated(monkeypatch), cache_of()
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(cache.prepare, png(1))
        while not gated.began:
            time.sleep(0.001)
        own = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: own + 1)  # what is different in a fork
        forked = pool.submit(cache.prepare, png(1))
        while gated.began + gated.waits < 2:
            time.sleep(0.001)
        gated.gate.set()
        assert forked.result().digest == asked.result().digest and gated.began == 2


class CacheMachine(RuleBasedStateMachine):
    """Beside a plain list of pictures by when they were asked for."""

    @initialize(room=st.integers(0, 3))
    def start(self, room):
        self.room, self.cache = room, cache_of(room * ONE)
        self.recent: list[int] = []
        self.known: set[tuple[int, int]] = set()

    @rule(seed=st.integers(0, 4), how=st.integers(-1, 2))
    def ask(self, seed, how):
        """A file with that note in it, or pixels."""
        before = self.cache.counts
        self.cache.prepare(pixels(seed) if how < 0 else png(seed, pnginfo=note(how)))
        after = self.cache.counts
        assert after.decoded - before.decoded == ((seed, how) not in self.known)
        assert after.cut - before.cut == (seed not in self.recent)
        self.recent = [*(s for s in self.recent if s != seed), seed]
        del self.recent[: max(0, len(self.recent) - self.room)]
        if how >= 0:
            self.known.add((seed, how))
        self.known = {(s, h) for s, h in self.known if s in self.recent}

    @invariant()
    def holds_what_the_list_says(self):
        if hasattr(self, "cache"):
            assert self.cache.counts.held == len(self.recent)
            assert self.cache.counts.held_bytes == len(self.recent) * ONE
            assert len(self.cache._pixels) == len(self.known)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=20, stateful_step_count=20, derandomize=True, deadline=None)
