"""The hash language: torch and plain Python agree bit for bit, and everything a prefix holds changes the answer."""

import numpy as np
import pytest
import torch
from tests.fakes import hash_language as lang
from tests.fakes.hash_language import HashSpec, Reading
from tests.fakes.hash_model import HashCache, HashModel, mix, signed

SPEC = HashSpec()
PAGE = 4
PROMPT = ((1, ()), (5, (0.25,)), (5, (0.5,)), (6, (0.125, 0.0625)), (40, ()), (5, ()), (17, ()))


def crops(seed: int, count: int = 2, side: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def ids_and_values(prompt) -> tuple[torch.Tensor, torch.Tensor]:
    values = [(*v, -1.0, -1.0)[:2] for _, v in prompt]
    return torch.tensor([i for i, _ in prompt]), torch.tensor(values, dtype=torch.float32)


def read_in_torch(model: HashModel, prompt, picture: np.ndarray | None, table: list[int], together: bool):
    cache = model.new_cache(40, PAGE)
    pages = torch.tensor(table)
    start = 0
    if picture is not None:
        model.prefill_prefix(model.encode_picture(torch.from_numpy(picture), (1, 1)), cache, pages)
        start = model.prefix
    ids, values = ids_and_values(prompt)
    x = model.embed(ids, values)
    positions = torch.arange(start, start + len(ids))
    tables = pages[None, :].expand(len(ids), -1)
    if together:
        return model.forward(x, positions, tables, cache), cache
    return torch.cat(
        [model.forward(x[i : i + 1], positions[i : i + 1], tables[:1], cache) for i in range(len(x))]
    ), cache


def read_plainly(prompt, picture: np.ndarray | None) -> list[lang.Hidden]:
    reading = Reading(SPEC)
    if picture is not None:
        reading.feed_picture(lang.picture_word(picture, (1, 1)))
    return [reading.feed(i, v) for i, v in prompt]


def test_mix_agrees_with_torch_on_words_of_every_size():
    words = [0, 1, 2**31, 2**63, lang.U64, lang.STALE, 0x123456789ABCDEF0]
    assert mix(torch.tensor([signed(w) for w in words])).tolist() == [signed(lang.mix(w)) for w in words]
    assert lang.mix_words(np.array(words, dtype=np.uint64)).tolist() == [lang.mix(w) for w in words]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("picture", [None, crops(1)])
def test_paged_torch_and_unpaged_python_agree_bit_for_bit(picture, together):
    model = HashModel(SPEC)
    hidden, _ = read_in_torch(model, PROMPT, picture, [9, 3, 17, 4, 30, 2, 8], together)
    plain = read_plainly(PROMPT, picture)
    assert hidden.tolist() == [[signed(a), signed(b)] for a, b in plain]
    scores = model.logits(hidden).numpy()
    assert scores.dtype == np.float32
    for row, pair in enumerate(plain):
        assert np.array_equal(scores[row], lang.scores(SPEC, pair))
        assert len(set(scores[row].tolist())) == SPEC.rules.vocab
        assert model.coord_value(hidden)[row].item() == lang.coord_of(pair)
        assert tuple(model.size_value(hidden)[row].tolist()) == lang.size_of(pair)


@pytest.mark.parametrize("front", [None, crops(1)])
def test_a_picture_inside_a_prompt_is_read_alike_and_sees_what_is_before_it(front):
    model, ends = HashModel(SPEC), set()
    for first in (PROMPT[:3], ((2, ()), *PROMPT[1:3])):
        _, cache = read_in_torch(model, first, front, [9, 3, 17, 4, 30, 2, 8, 21, 22], True)
        start, table = (
            len(first) + (SPEC.prefix if front is not None else 0),
            torch.tensor([9, 3, 17, 4, 30, 2, 8, 21, 22]),
        )
        model.prefill_inset(model.encode_picture(torch.from_numpy(crops(5)), (1, 1)), start, cache, table)
        x, at = model.embed(*ids_and_values([(20, ())])), torch.tensor([start + SPEC.prefix - 1])
        hidden = model.forward(x, at, table[None], cache)
        plain = Reading(SPEC)
        if front is not None:
            plain.feed_picture(lang.picture_word(front, (1, 1)))
        for token in first:
            plain.feed(*token)
        plain.feed_inset(lang.picture_word(crops(5), (1, 1)))
        assert hidden.tolist() == [[signed(word) for word in plain.feed(20)]]
        ends.add(tuple(cache.words[table[start // PAGE], start % PAGE].tolist()))
    assert len(ends) == 2


def test_every_part_of_a_prefix_matters():
    base = read_plainly(PROMPT, crops(1))[-1]
    changed = [list(PROMPT) for _ in range(5)]
    changed[0][0] = (2, ())
    changed[1][1] = (5, (0.25 + 2**-20,))
    changed[2][3] = (6, (0.125, 0.125))
    changed[3][5] = (5, (0.5,))
    changed[4][0], changed[4][4] = changed[4][4], changed[4][0]
    others = [read_plainly(prompt, crops(1))[-1] for prompt in changed]
    others += [read_plainly(PROMPT, None)[-1], read_plainly(PROMPT, crops(2))[-1]]
    pixel = crops(1)
    pixel[1, 2, 3, 0] ^= 1
    others += [read_plainly(PROMPT, pixel)[-1], read_plainly(PROMPT, crops(1)[::-1])[-1]]
    assert len({base, *others}) == len(others) + 1


def test_a_wrong_page_changes_the_answer_and_a_stale_one_gives_nan():
    model = HashModel(SPEC)
    table = [9, 3, 17, 4, 30, 2, 8]
    good, cache = read_in_torch(model, PROMPT, crops(1), table, True)
    x, at = model.embed(*ids_and_values([(20, ())])), torch.tensor([SPEC.prefix + len(PROMPT)])
    right = model.forward(x, at, torch.tensor([table]), cache)
    swapped = model.forward(x, at, torch.tensor([[3, 9, *table[2:]]]), cache)
    assert right.tolist() != swapped.tolist()
    stale = model.forward(x, at, torch.tensor([[9, 3, 31, *table[3:]]]), cache)
    assert model.logits(stale).isnan().all()
    assert not model.logits(good).isnan().any()


def test_stale_memory_spreads_through_the_second_layer():
    model, cache = HashModel(SPEC), HashModel(SPEC).new_cache(8, PAGE)
    table = torch.tensor([[1, 2]])
    x = model.embed(*ids_and_values([(1, ())]))
    model.forward(x, torch.tensor([1]), table, cache)  # position 0 was never written
    cache.write(0, torch.tensor([0]), table, torch.tensor([77]))
    cache.write(1, torch.tensor([0]), table, torch.tensor([78]))
    later = model.forward(x, torch.tensor([2]), table, cache)
    assert model.logits(later).isnan().all()


def test_copy_and_poison_touch_exactly_their_pages():
    cache = HashCache(PAGE, torch.arange(5 * PAGE * 2).reshape(5, PAGE, 2))
    before = cache.words.clone()
    cache.copy_page(1, 3)
    cache.poison((2,))
    assert torch.equal(cache.words[3], before[1])
    assert (cache.words[2] == lang.STALE).all()
    assert torch.equal(cache.words[[0, 1, 4]], before[[0, 1, 4]])


def test_a_cursed_context_is_nan_alone():
    model = HashModel(SPEC)
    hidden, _ = read_in_torch(model, PROMPT, None, [1, 2], True)
    model.curse([read_plainly(PROMPT, None)[3]])
    assert model.logits(hidden).isnan().any(dim=1).tolist() == [False] * 3 + [True] + [False] * 3


@pytest.mark.parametrize("permille", [0, 60, 1000])
def test_the_end_comes_as_often_as_asked(permille):
    spec = HashSpec(end_permille=permille, answer_permille=0, coord_permille=0)
    best = [int(lang.scores(spec, (lang.mix(i), lang.mix(i + 1))).argmax()) for i in range(2000)]
    share = best.count(spec.rules.end) / len(best)
    assert abs(share - permille / 1000) < 0.03
