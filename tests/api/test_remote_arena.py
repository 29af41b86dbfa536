"""The picture arena: what is put in comes out, nothing is overwritten while it is looked at, everything comes back."""

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.scene import picture

from gapless.api.arena import ALIGN, Arena, ArenaView, Region, room_for


@pytest.fixture
def arena():
    arena = Arena(4 * ALIGN)
    yield arena
    arena.close()


@pytest.fixture
def view(arena):
    return ArenaView(arena.fd, arena.capacity)


def same(one, other):
    plain = (one.digest, one.tiling, one.width, one.height)
    return plain == (other.digest, other.tiling, other.width, other.height) and np.array_equal(one.crops, other.crops)


def test_pictures_of_all_sizes_pass_through_a_small_arena(arena, view):
    rng = random.Random(5)
    lent, waited = [], 0
    for seed in range(200):
        sent = picture(seed, rng.choice([4, 20, 36, 50]))  # 50: 15000 bytes, nearly all of it
        while (region := arena.place(sent)) is None:
            waited += 1
            lent.pop(rng.randrange(len(lent)))
            for offset in view.take_freed():
                arena.free(offset)
        lent.append((sent, view.picture(region)))
        assert all(same(*pair) for pair in lent)
        assert view.lent == len(lent) == arena.held
    assert waited > 50
    lent.clear()
    for offset in view.take_freed():
        arena.free(offset)
    assert (arena.held, view.lent) == (0, 0)


def test_a_picture_that_is_there_is_shared_until_the_last_holder_is_gone(arena, view):
    sent = picture(1)
    first, second = (view.picture(arena.place(sent)) for _ in range(2))
    assert arena.held == 1 and view.lent == 2
    part = first.crops[1:, 2:]  # what a device may still be copying from
    del first
    assert view.take_freed() == ()
    del part
    arena.free(*view.take_freed())
    assert arena.held == 1 and same(second, sent)
    del second
    arena.free(*view.take_freed())
    assert arena.held == 0


def test_several_pictures_go_in_together_or_not_at_all(arena, view):
    small, large = [picture(seed, 20) for seed in range(3)], picture(7, 50)  # one and four times ALIGN
    assert room_for([*small, small[0]]) == 3 * ALIGN and room_for([]) == 0
    regions = arena.place_all([*small, small[0]])
    shown = [view.picture(region) for region in regions]
    assert arena.held == 3 and all(map(same, shown, [*small, small[0]]))
    for pictures in ([small[1], large], [picture(8, 20), picture(9, 20)]):
        assert arena.place_all(pictures) is None
        assert arena.held == 3 and all(map(same, shown, [*small, small[0]]))
    assert arena.place_all([]) == ()
    shown.pop(0)
    arena.free(*view.take_freed())
    assert arena.held == 3, "the fourth is still there"
    shown.clear()
    for offset in view.take_freed():
        arena.free(offset)
    assert arena.held == 0 and arena.place_all([large]) is not None


def test_all_room_can_be_used_and_none_is_taken_that_is_not_needed(arena):
    placed = [arena.place(picture(seed, 20)) for seed in range(4)]
    assert [region.offset for region in placed] == [0, ALIGN, 2 * ALIGN, 3 * ALIGN]
    arena.free(ALIGN)
    assert arena.place(picture(9, 20)).offset == ALIGN, "a gap of just its size"
    exact = picture(1, 64)
    assert exact.crops.nbytes == 6 * ALIGN == room_for([exact])
    odd = Arena(3 * ALIGN + 1)
    assert odd.capacity == 4 * ALIGN and odd.place(picture(7, 50)) is not None
    odd.close()


def test_nothing_is_copied_until_there_is_room_for_all(arena, monkeypatch):
    copied = []
    monkeypatch.setattr(arena, "_copy", lambda picture, offset: copied.append(offset))
    first = arena.place(picture(1, 20))
    assert arena.place_all([picture(2, 20), picture(3, 20), picture(4, 20), picture(5, 20)]) is None
    assert copied == [first.offset] and arena.held == 1
    assert len(arena.place_all([picture(2, 20), picture(1, 20), picture(2, 20)])) == 3
    assert len(copied) == 2, "those that lie there are not copied again"


def test_crops_are_read_only_there(arena, view):
    shown = view.picture(arena.place(picture(1)))
    with pytest.raises(ValueError, match="read-only"):
        shown.crops[0] = 0


def test_what_never_fits_is_an_error(arena):
    with pytest.raises(ValueError, match="arena of 16384"):
        arena.place(picture(1, 60))


@pytest.mark.parametrize(
    ("offset", "shape"), [(-1, (1, 2, 2, 3)), (4 * ALIGN - 5, (1, 2, 2, 3)), (0, (9, 99, 99, 3)), (0, (0, 2, 2, 3))]
)
def test_a_region_outside_is_refused(view, offset, shape):
    with pytest.raises(ValueError, match="does not lie in an arena"):
        view.picture(Region(offset, shape, "d", (1, 1), 2, 2))
    assert view.lent == 0
    last = view.picture(Region(4 * ALIGN - 12, (1, 2, 2, 3), "d", (1, 1), 2, 2))
    assert last.crops.shape == (1, 2, 2, 3), "up to the last byte"


def test_what_another_thread_frees_meanwhile_is_taken_next_time(view):
    class Growing(list):
        def __getitem__(self, where):
            found = super().__getitem__(where)
            self.append(ALIGN)
            return found

    view._freed = Growing([0, 0])
    assert view.take_freed() == (0, 0)
    assert view.take_freed() == (ALIGN,)


def test_a_picture_may_lie_there_cut_and_uncut(arena, view):
    cut = picture(1, 20)
    whole = replace(cut, crops=np.arange(30 * 20 * 3, dtype=np.uint8).reshape(30, 20, 3))
    assert room_for([cut, whole, whole]) == 2 * ALIGN
    regions = arena.place_all([cut, whole, cut])
    shown = [view.picture(region) for region in regions]
    assert arena.held == 2 and all(map(same, shown, [cut, whole, cut])) and shown[1].uncut
    shown.clear()
    for offset in view.take_freed():
        arena.free(offset)
    assert arena.held == 0
