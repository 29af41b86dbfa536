"""The judges of bf16 runs: where two answers differ, how close the choice was there, how far one alone falls short."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.fakes.micro import micro_config, micro_tensors
from tests.fakes.scene import Entry, Heard
from tests.gpu.foretold import judge, shortfalls
from tests.gpu.mixes import mix
from tests.gpu.near_tie import ERRORS, Divergence, Reader, divergence, first_difference, last_hidden

from gapless.constrain.table import Walker, build_table
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream
from gapless.models.moondream.templates import Templates
from gapless.records import Prompt, Request, Sampling, Token

CONFIG = read_config(micro_config())
MODEL = Moondream(CONFIG, micro_tensors(micro_config(), end_bias=-50.0))
HALF = Moondream(CONFIG, {name: t.bfloat16() for name, t in micro_tensors(micro_config(), end_bias=-50.0).items()})
TABLE = build_table(Templates.of(CONFIG).rules())
SHOWN = next(e.request.prompt.picture for e in mix(CONFIG, 1, 20) if e.request.prompt.picture is not None)
REQUEST = Request(1, Prompt((11, 12, 13), ((),) * 3, SHOWN), "detect", Sampling(max_tokens=6, max_objects=2))


@torch.inference_mode()
def answer(request: Request, count: int) -> list[Token]:
    """What the model says, alone and one token after the other."""
    walker, said = Walker.start(TABLE, request.program, 9, 9), []
    for _ in range(count):
        hidden = last_hidden(MODEL, request, said)
        allowed = torch.from_numpy(walker.mask().copy())
        id = int(MODEL.logits(hidden)[0].masked_fill(~allowed, -torch.inf).argmax())
        head, _ = walker.advance(id)
        values = [(), (MODEL.coord_value(hidden).item(),), tuple(MODEL.size_value(hidden)[0].tolist())][head]
        said.append(Token(id, values))
    return said


def test_equal_answers_do_not_differ() -> None:
    said = answer(REQUEST, 3)
    assert first_difference(said, list(said)) is None
    assert divergence(Reader(MODEL), TABLE, REQUEST, said, list(said)) is None


def test_a_wrong_id_is_found_with_its_gap() -> None:
    said = answer(replace(REQUEST, program="text"), 4)
    other = [*said[:2], Token(said[2].id + 1), *said[3:]]
    found = divergence(Reader(MODEL), TABLE, replace(REQUEST, program="text"), said, other)
    assert found is not None and (found.place, found.what) == (2, "id")
    scores = MODEL.logits(last_hidden(MODEL, REQUEST, said[:2]))[0]
    best, second = scores.topk(2).values.tolist()
    assert abs(found.gap - (best - second)) < 1e-5 and abs(found.size - max(abs(best), abs(second))) < 1e-5


def test_wrong_values_are_judged_by_their_own_head() -> None:
    said = answer(REQUEST, 3)
    assert [len(token.values) for token in said] == [1, 1, 2]
    moved = [said[0], Token(said[1].id, (said[1].values[0] + 0.25,)), said[2]]
    found = divergence(Reader(MODEL), TABLE, REQUEST, said, moved)
    assert found is not None and (found.place, found.what) == (1, "coord") and found.gap >= 0
    higher = [*said[:2], Token(said[2].id, (said[2].values[0], 0.5))]
    found = divergence(Reader(MODEL), TABLE, REQUEST, said, higher)
    assert found is not None and (found.place, found.what) == (2, "size")


def test_an_answer_that_is_a_beginning_of_the_other_is_no_near_tie() -> None:
    said = answer(REQUEST, 3)
    found = divergence(Reader(MODEL), TABLE, REQUEST, said, said[:2])
    assert found is not None and found.what == "length" and not found.near


def test_how_wrong_scores_are_is_measured_where_answers_differ() -> None:
    said = answer(REQUEST, 3)
    moved = [said[0], Token(said[1].id, (said[1].values[0] + 0.25,)), said[2]]
    found = divergence(Reader(HALF), TABLE, REQUEST, said, moved, Reader(MODEL))
    assert found is not None and 0 < found.error < found.size / 64
    with torch.inference_mode():
        exact, rough = (m.region.coord_scores(last_hidden(m, REQUEST, said[:1]))[0].float() for m in (MODEL, HALF))
    assert found.error >= (rough - exact)[rough.argmax()].abs()
    itself = divergence(Reader(MODEL), TABLE, REQUEST, said, moved, Reader(MODEL))
    assert itself is not None and itself.error < 1e-5


def test_a_gap_of_a_few_errors_is_near_with_experts_only() -> None:
    raw = micro_config(third=True)
    third = Moondream(read_config(raw), micro_tensors(raw))
    for gap, near in ((ERRORS * 0.5, True), (ERRORS * 0.6, False)):
        found = Divergence(1, 0, "id", gap, 4.0, error=0.5)
        assert found.near_for(third) is near and not found.near_for(MODEL)


def test_near_is_under_a_64th_of_the_size() -> None:
    assert Divergence(1, 0, "id", 0.1, 6.4).near
    assert not Divergence(1, 0, "id", 0.11, 6.4).near


def test_what_the_model_says_falls_short_of_nothing_and_what_it_does_not_say_does() -> None:
    said = answer(REQUEST, 3)
    right = shortfalls(Reader(MODEL), TABLE, REQUEST, said)
    assert len(right) == 7 and max(right) < 1e-5  # three ids, two coordinates and a size
    height = float(MODEL.region.size_of_bin(torch.tensor([900]), 1024))
    moved = [
        said[0],
        Token(said[1].id, ((said[1].values[0] + 0.25) % 1,)),
        Token(said[2].id, (said[2].values[0], height)),
    ]
    wrong = [one > 1e-2 for one in shortfalls(Reader(MODEL), TABLE, REQUEST, moved)]
    assert wrong[:4] == [False, False, False, True] and wrong[-1]
    plain = replace(REQUEST, program="text")
    words = answer(plain, 3)
    other = [words[0], Token(words[1].id + 1), words[2]]
    assert [one > 1e-2 for one in shortfalls(Reader(MODEL), TABLE, plain, other)][:2] == [False, True]


def test_answers_are_judged_together() -> None:
    said = answer(REQUEST, 3)
    assert judge(HALF, TABLE, [Entry(REQUEST)], {1: Heard(said)})[0] == 7
    moved = [said[0], Token(said[1].id, ((said[1].values[0] + 0.25) % 1,)), said[2]]
    with pytest.raises(AssertionError, match="choices were not the judge's"):
        judge(MODEL, TABLE, [Entry(REQUEST)], {1: Heard(moved)})
