"""Each reference kernel against its formula, written out in float64."""

import math

import pytest
import torch
from torch import Tensor

from gapless.kernels import reference as kernels


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_layer_norm_uses_the_biased_variance_and_eps_1e_5() -> None:
    x, weight, bias = random(5, 24) * 1e-3, random(24, seed=1), random(24, seed=2)
    z = x.double()
    normal = (z - z.mean(-1, keepdim=True)) / torch.sqrt(z.var(-1, correction=0, keepdim=True) + 1e-5)
    assert torch.allclose(kernels.layer_norm(x, weight, bias).double(), normal * weight + bias, atol=1e-6)


def test_gelu_is_the_tanh_form() -> None:
    x = torch.linspace(-8, 8, 4001)
    z = x.double()
    expected = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    assert torch.allclose(kernels.gelu_tanh(x).double(), expected, atol=1e-6)
    erf = 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))
    assert (expected - erf).abs().max() > 4e-4
    assert kernels.gelu_tanh(x.bfloat16()).dtype is torch.bfloat16


def test_gelu_gives_one_value_wherever_an_element_stands() -> None:
    x = random(3000) * 3
    whole = kernels.gelu_tanh(x)
    for start in range(1, 40):
        for length in (1, 7, 33, 1000):
            piece = slice(start, start + length)
            assert torch.equal(kernels.gelu_tanh(x[piece].clone()), whole[piece])


def test_rope_turns_half_split_pairs_and_leaves_the_rest() -> None:
    cos, sin = kernels.rope_tables(900, 8, 10_000.0, torch.device("cpu"))
    x = random(3, 2, 20)
    positions = torch.tensor([0, 7, 899])
    turned = kernels.rope(x, cos[positions], sin[positions])
    for t, position in enumerate(positions.tolist()):
        for i in range(4):
            angle = position * 10_000.0 ** (-2 * i / 8)
            pair = torch.complex(x[t, :, i].double(), x[t, :, i + 4].double()) * complex(
                math.cos(angle), math.sin(angle)
            )
            assert torch.allclose(turned[t, :, i].double(), pair.real, atol=2e-4)
            assert torch.allclose(turned[t, :, i + 4].double(), pair.imag, atol=2e-4)
    assert torch.equal(turned[0], x[0])
    assert torch.equal(turned[..., 8:], x[..., 8:])


@pytest.mark.parametrize(("rows", "columns"), [(46, 84), (27, 122), (27, 27), (65, 65)])
def test_adaptive_average_takes_overlapping_bins(rows: int, columns: int) -> None:
    x = random(rows, columns, 3)
    pooled = kernels.adaptive_average(x, 27)
    for r in range(27):
        for c in range(27):
            top, bottom = r * rows // 27, -(-(r + 1) * rows // 27)
            left, right = c * columns // 27, -(-(c + 1) * columns // 27)
            expected = x[top:bottom, left:right].double().mean((0, 1))
            assert torch.allclose(pooled[r, c].double(), expected, atol=1e-6)


def test_fourier_features_round_after_every_step() -> None:
    frequencies = (random(2, 16) * 10).bfloat16()
    values = torch.rand(4, 2, generator=torch.Generator().manual_seed(3))
    turns = (values.bfloat16().float() * (2 * math.pi)).bfloat16().float()
    phase = (turns @ frequencies.float()).bfloat16().float()
    expected = torch.cat((phase.cos().bfloat16(), phase.sin().bfloat16()), dim=-1)
    features = kernels.fourier_features(values, frequencies)
    assert features.dtype is torch.bfloat16
    assert torch.equal(features, expected)
    wide = kernels.fourier_features(values, frequencies.float())
    assert (features.float() - wide).abs().max() > 0.1


def test_fourier_features_put_cosines_first() -> None:
    features = kernels.fourier_features(torch.tensor([[0.25]]), torch.tensor([[1.0, 2.0]]))
    assert torch.allclose(features, torch.tensor([[0.0, -1.0, 1.0, 0.0]]), atol=1e-6)


def test_bins_become_the_values_of_the_specification() -> None:
    sizes = kernels.size_of_bin(torch.tensor([0, 100, 512, 1000, 1023]), 1024)
    expected = torch.tensor([0.00097656, 0.0019229, 0.031356, 0.855696, 1.0])
    assert sizes.dtype is torch.float32
    assert torch.allclose(sizes, expected, rtol=2e-5)
    coords = kernels.coord_of_bin(torch.tensor([0, 1, 512, 1023]), 1024)
    assert coords.tolist() == [0.0, 1 / 1024, 0.5, 1023 / 1024]


def test_attend_block_sees_everything_in_its_own_block_only() -> None:
    q, k, v = (random(2, 5, 3, 8, seed=s) for s in range(3))
    out = kernels.attend_block(q, k, v)
    for n in range(2):
        for h in range(3):
            weights = torch.softmax(q[n, :, h].double() @ k[n, :, h].double().T / math.sqrt(8), dim=-1)
            assert torch.allclose(out[n, :, h].double(), weights @ v[n, :, h].double(), atol=1e-6)


def test_by_rows_gives_full_chunks_and_drops_the_filling() -> None:
    seen = []

    def double(x: Tensor) -> Tensor:
        seen.append(x.shape[0])
        return x * 2

    x = random(35, 4)
    assert torch.equal(kernels.by_rows(double, x), x * 2)
    assert seen == [kernels.ROWS] * 3
