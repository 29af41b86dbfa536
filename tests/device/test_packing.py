"""Packs of prompts, in words: every token once, behind all it sees; no picture cut; what the words say."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.device.packet import Layout
from gapless.device.packing import (
    MOST_TOKENS,
    Pack,
    PackLayout,
    blocks_of,
    landings,
    packed,
    pieces_of,
    shown,
    token_buckets,
)
from gapless.device.pinned import prompt_room
from gapless.records import DeviceLimits, Inset, Picture, Prefill, RowRef, RowStart

PREFIX, MOST, RUNS, TILE, BOS = 5, 16, 3, 4, 99
SHOWN = Picture("00", np.zeros((1, 1, 1, 3), dtype=np.uint8), (1, 1), 1, 1)


@st.composite
def prefills(draw, row: int = 1) -> Prefill:
    """With a picture or behind what is there, with any number of insets, now and then with a page to be copied."""
    ids, insets = [], []
    for part in draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)):
        if insets or draw(st.booleans()):
            insets.append(Inset(len(ids), SHOWN))
            ids += [0] * (PREFIX - 1)
        ids += draw(st.lists(st.integers(1, 90), min_size=part, max_size=part))
    picture = draw(st.sampled_from([None, SHOWN]))
    position = PREFIX if picture else draw(st.integers(0, 9))
    values = tuple((i / 100,) if draw(st.integers(0, 9)) == 0 else () for i in range(len(ids)))
    start = RowStart(RowRef(row, 1), 0, 1, 1, 1, 0.0, 1.0, 0, -1, False)
    tail = draw(st.sampled_from([None, (7, 8)])) if position else None
    return Prefill(start, tuple(ids), values, position, (), picture, (), tail, tuple(insets))


STEPS = st.lists(prefills(), min_size=1, max_size=5)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(STEPS)
def test_every_token_is_fed_once_and_sees_what_was_fed(step):
    pieces = [piece for place, prefill in enumerate(step) for piece in pieces_of(place, prefill, PREFIX, MOST)]
    packs = packed(pieces, MOST, RUNS)
    assert [piece for pack in packs for piece in pack] == pieces
    ends: dict[int, int] = {}
    pictures, finished = [], []
    for pack in packs:
        assert sum(piece.count for piece in pack) <= MOST and len(pack) <= RUNS
        layout = PackLayout(token_buckets(sum(piece.count for piece in pack))[-1], RUNS, TILE)
        words = np.full(layout.words, -5, dtype=np.int64)
        layout.write(pack, PREFIX, BOS, words)
        told = Pack.of(layout, torch.from_numpy(words), torch.zeros(1))
        first = 0
        for number, piece in enumerate(pack):
            prefill, rows = piece.prefill, slice(first, first + piece.count)
            begins = 0 if prefill.picture is not None else prefill.position
            assert piece.begin == ends.get(piece.place, begins) < piece.end
            ends[piece.place] = piece.end
            _check_tokens(piece, told, number, rows)
            source = (0, 0) if prefill.tail is None else (prefill.position, prefill.tail[0])
            assert told.runs.runs[number].tolist() == [first, piece.count, piece.begin, *source, 1]
            assert told.runs.last[number] == first + piece.count - 1
            first += piece.count
        assert (told.runs.of[first:] == -1).all() and not told.runs.runs[len(pack) :].any()
        cut = [(number, at) for number, piece in enumerate(pack) for at in range(0, piece.count, TILE)]
        assert told.runs.tiles[: len(cut)].tolist() == [list(tile) for tile in cut]
        assert (told.runs.tiles[len(cut) :, 0] == -1).all()
        pictures += [(place, which) for place, which, _ in shown(pack, PREFIX)]
        finished += [place + i for place, _, count in landings(pack) for i in range(count)]
    assert ends == {place: prefill.position + len(prefill.ids) for place, prefill in enumerate(step)}
    assert pictures == [(at, i) for at, prefill in enumerate(step) for i in range(len(blocks_of(prefill, PREFIX)))]
    assert finished == list(range(len(step)))


def _check_tokens(piece, told, number, rows) -> None:
    prefill = piece.prefill
    assert (told.runs.of[rows] == number).all()
    for at, sees, id, value in zip(
        range(piece.begin, piece.end), told.runs.sees[rows], told.ids[rows], told.values[rows], strict=True
    ):
        block = next((end for begin, end in blocks_of(prefill, PREFIX) if begin <= at < end), None)
        assert sees == (at + 1 if block is None else block) <= piece.end
        if at < prefill.position:
            assert id == BOS and (value == -1).all()
        else:
            said = prefill.values[at - prefill.position]
            assert id == prefill.ids[at - prefill.position]
            assert value.tolist() == np.float32([*said, -1, -1][:2]).tolist()


@settings(max_examples=40, derandomize=True, deadline=None)
@given(STEPS)
def test_pictures_and_last_tokens_are_found_where_they_are(step):
    for pack in packed([p for at, x in enumerate(step) for p in pieces_of(at, x, PREFIX, MOST)], MOST, RUNS):
        firsts = np.cumsum([0] + [piece.count for piece in pack])
        for place, which, row in shown(pack, PREFIX):
            number = next(i for i, p in enumerate(pack) if p.place == place and firsts[i] <= row < firsts[i + 1])
            begin, end = blocks_of(step[place], PREFIX)[which]
            assert pack[number].begin + row - firsts[number] == end - (PREFIX - 1) >= begin
        for place, run, count in landings(pack):
            assert all(pack[run + i].place == place + i and pack[run + i].ends for i in range(count))


def test_sizes_of_packs_waste_little():
    sizes = token_buckets(MOST_TOKENS)
    assert sizes[-1] == MOST_TOKENS and len(sizes) < 40
    for tokens in range(1, MOST_TOKENS + 1):
        size = next(size for size in sizes if tokens <= size)
        assert size - tokens < max(64, tokens / 8)
    assert token_buckets(20) == (16, 32) and token_buckets(760)[-1] == 768


def test_all_packs_of_a_step_find_room():
    """One long prompt, short ones, and ones just too long to share a pack."""
    limits = DeviceLimits(9, 400, 16, 2048, 730, 2, 1000)
    room = prompt_room(limits, Layout(8, 8, 128))
    for lengths in ([1] * 8, [2048] * 8, [2047, 1, 2048, 1, 700, 1400, 3, 9], [1025] * 8, [65] * 8):
        start = RowStart(RowRef(1, 1), 0, 1, 1, 1, 0.0, 1.0, 0, -1, False)
        step = [Prefill(start, (1,) * n, ((),) * n, 0, ()) for n in lengths]
        for most in (1024, MOST_TOKENS):
            pieces = [piece for at, prefill in enumerate(step) for piece in pieces_of(at, prefill, 730, most)]
            words = 0
            for pack in packed(pieces, most, 16):
                tokens = sum(piece.count for piece in pack)
                words += PackLayout(next(b for b in token_buckets(most) if tokens <= b), 16, 64).words
            assert words <= room * len(lengths)
