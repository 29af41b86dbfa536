"""The micro model in every dtype, and what an embedding or a picture block depends on."""

import pytest
import torch
from tests.fakes.micro import (
    PREFIX_POSITIONS,
    VOCAB,
    micro_config,
    micro_crops,
    micro_model,
    micro_tensors,
    micro_tokenizer,
)

from gapless.errors import InvalidRequest
from gapless.models.moondream.config import read_config
from gapless.models.moondream.model import Moondream

PLAIN = torch.full((1, 2), -1.0)


@pytest.fixture(autouse=True)
def inference():
    with torch.inference_mode():
        yield


def run(m: Moondream) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode a picture, prefill a prompt behind it; returns the embeddings and the last hidden state."""
    picture = m.encode_picture(torch.from_numpy(micro_crops()), (1, 2))
    cache = m.new_cache(8, 16)
    cache.poison((1, 2, 3, 4, 5, 6, 7))
    m.prefill_prefix(picture, cache, torch.tensor([3, 5]))
    ids = torch.tensor([1, 34, 2, 60, 61, 3, 3])
    positions = torch.arange(PREFIX_POSITIONS, PREFIX_POSITIONS + 7)
    tables = torch.tensor([[3, 5, 1, 0, 0]]).expand(7, -1)
    return picture, m.forward(m.embed(ids, PLAIN.expand(7, -1)), positions, tables, cache)[-1:]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_follows_float32(dtype: torch.dtype) -> None:
    half, full = micro_model(dtype=dtype), micro_model()
    picture, hidden = run(half)
    exact_picture, exact_hidden = run(full)
    assert picture.dtype is hidden.dtype is half.dtype is dtype
    tolerance = 0.03 if dtype is torch.bfloat16 else 0.004
    assert (picture.float() - exact_picture).norm() < tolerance * exact_picture.norm()
    assert (hidden.float() - exact_hidden).norm() < tolerance * exact_hidden.norm()
    logits = half.logits(hidden)
    assert logits.dtype is torch.float32
    assert (logits - full.logits(exact_hidden)).norm() < 2 * tolerance * logits.norm()
    for value in (half.coord_value(hidden), half.size_value(hidden)):
        assert value.dtype is torch.float32
        assert ((value >= 0) & (value <= 1)).all()


def test_shapes_and_sizes() -> None:
    m = micro_model()
    picture, hidden = run(m)
    assert picture.shape == (PREFIX_POSITIONS - 1, 64)
    assert m.logits(hidden).shape == (1, VOCAB)
    assert m.coord_value(hidden).shape == (1,)
    assert m.size_value(hidden).shape == (1, 2)
    cache = m.new_cache(10, 16)
    per_page = (cache.keys.nbytes + cache.values.nbytes) // 11
    assert m.page_bytes(16) == per_page


@pytest.mark.parametrize("theta", [10_000.0, 1_500_000.0])
def test_s_num_06_the_configs_theta_and_context_reach_the_rotary_tables(theta: float) -> None:
    content = micro_config(max_context=96)
    content["text"]["rope_theta"] = theta
    config = read_config(content)
    m = Moondream(config, micro_tensors(content))
    rotated = config.text.rotary_dims
    angles = torch.arange(96.0)[:, None] * theta ** (-torch.arange(0, rotated, 2) / rotated)
    assert rotated == 8
    torch.testing.assert_close(m.text.cos, angles.cos(), atol=1e-5, rtol=0)
    torch.testing.assert_close(m.text.sin, angles.sin(), atol=1e-5, rtol=0)


def test_an_id_takes_the_embedding_its_value_asks_for() -> None:
    m = micro_model()
    ids = torch.tensor([40, 5, 6, 5, 6, 5])
    values = torch.tensor([[-1, -1], [0.25, -1], [0.5, 0.75], [-1, -1], [-1, -1], [0.0, -1]])
    x = m.embed(ids, values)
    assert torch.equal(x[0], m.text.wte[40])
    assert torch.equal(x[3], m.text.wte[5])
    assert torch.equal(x[4], m.text.wte[6])
    coords = m.region.coord_embedding(torch.tensor([[0.25], [0.0]]))
    assert torch.allclose(x[1], coords[0], atol=1e-5)
    assert torch.allclose(x[5], coords[1], atol=1e-5)
    assert torch.allclose(x[2], m.region.size_embedding(torch.tensor([[0.5, 0.75]]))[0], atol=1e-5)
    swapped = m.embed(torch.tensor([6]), torch.tensor([[0.75, 0.5]]))
    assert not torch.allclose(x[2], swapped[0], atol=1e-2)


def test_the_picture_block_sees_itself_whole() -> None:
    m = micro_model()
    picture = m.encode_picture(torch.from_numpy(micro_crops()), (1, 2))
    changed = picture.clone()
    changed[-1] = -changed[-1]
    first_page = []
    for block in (picture, changed):
        cache = m.new_cache(4, 16)
        m.prefill_prefix(block, cache, torch.tensor([1, 2]))
        first_page.append(cache.keys[1, 1, :, 0].clone())
    assert not torch.allclose(first_page[0], first_page[1], atol=1e-3), "BOS does not see the last picture position"


def test_text_is_causal() -> None:
    m = micro_model()
    tables = torch.tensor([[1, 2]])
    hidden = []
    for last in (50, 51):
        cache = m.new_cache(3, 16)
        ids = torch.tensor([0, 40, 41, last])
        x = m.embed(ids, PLAIN.expand(4, -1))
        hidden.append(m.forward(x, torch.arange(4), tables.expand(4, -1), cache))
    assert torch.equal(hidden[0][:3], hidden[1][:3])
    assert not torch.allclose(hidden[0][3], hidden[1][3], atol=1e-3)


def test_a_foreign_cache_is_refused() -> None:
    class Foreign:
        page_size = 16

        def copy_page(self, source: int, target: int) -> None: ...
        def poison(self, pages: tuple[int, ...]) -> None: ...

    with pytest.raises(TypeError, match="Foreign"):
        micro_model().prefill_prefix(torch.zeros(16, 64), Foreign(), torch.tensor([1, 2]))


@pytest.mark.parametrize("page_size", [0, 24, 96])
def test_an_odd_page_size_is_refused(page_size: int) -> None:
    with pytest.raises(InvalidRequest, match="use 16 or 64"):
        micro_model().new_cache(4, page_size)


def test_the_tokenizer_gives_one_id_a_letter_and_finds_its_way_back() -> None:
    tokenizer = micro_tokenizer()
    for text in ("what is this?", "a b\nc", "Thin ice 0..960 {M}"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert max(tokenizer.encode("the end").ids) < VOCAB
