import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from mimonets.bindings import HadamardBinding, HRRBinding, MatrixBinding
from mimonets.vsa import bipolar_keys, circular_convolution, gaussian_keys, matrix_bind, matrix_keys
from oracles import gradients


def bind_by_fft(x, keys):
    """Bind each stream by itself, pixel by pixel, then add the streams up."""
    groups, active = x.shape[:2]
    out = torch.zeros(groups, *x.shape[2:], dtype=x.dtype)
    for stream, key in enumerate(keys):
        pixels = x[:, stream % active].movedim(1, -1)  # g h w d
        bind = circular_convolution if key.ndim == 1 else matrix_bind
        out = out + bind(pixels, key).movedim(-1, 1)
    return out


@pytest.mark.parametrize(
    ("layer", "draw"), [(HRRBinding, gaussian_keys), (MatrixBinding, matrix_keys)]
)
@given(
    dim=st.integers(1, 9),
    mode=st.integers(1, 5).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
)
def test_one_convolution_equals_binding_each_stream_and_adding_up(layer, draw, dim, mode):
    num_streams, active = mode
    binding = layer(draw(num_streams, dim, dtype=torch.float64))
    x = torch.randn(2, active, dim, 3, 2, dtype=torch.float64)
    assert_close(binding(x), bind_by_fft(x, binding.stream_keys))

    def fast(x, keys):
        return torch.func.functional_call(binding, {"stream_keys": keys}, (x,))

    keys = binding.stream_keys.detach()
    assert_close(gradients(fast, [x, keys]), gradients(bind_by_fft, [x, keys]))


class LargestTensor(TorchDispatchMode):
    """Remember the largest tensor that any operation newly made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and not func.is_view:
            self.numel = max(self.numel, out.numel())
        return out


def test_nothing_larger_than_one_feature_map_per_group_is_made():
    binding = HRRBinding(gaussian_keys(8, 16))
    x = torch.randn(3, 8, 16, 20, 20)
    with torch.no_grad(), LargestTensor() as largest:
        out = binding(x)
    assert largest.numel == out.numel() == x.numel() // 8


def penalty_loops(keys):
    pairs = list(itertools.combinations(keys, 2))
    angles = [(a @ b / (a.norm() * b.norm())) ** 2 for a, b in pairs]
    lengths = [(a.norm() - 1) ** 2 for a in keys]
    return (sum(angles) / len(pairs) if pairs else 0) + sum(lengths) / len(lengths)


@pytest.mark.parametrize("num_streams", [1, 2, 5])
def test_the_stream_key_penalty_matches_the_paper(num_streams):
    binding = HRRBinding(torch.randn(num_streams, 7, dtype=torch.float64))
    keys = binding.stream_keys.detach()
    assert_close(binding.penalty(), torch.as_tensor(penalty_loops(keys)))

    def fast(keys):
        return torch.func.functional_call(_Penalty(binding), {"layer.stream_keys": keys}, ())

    assert_close(gradients(fast, [keys]), gradients(penalty_loops, [keys]))


class _Penalty(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self):
        return self.layer.penalty()


def test_orthonormal_keys_cost_nothing():
    assert HRRBinding(torch.eye(3)).penalty() == 0


def test_an_isometric_matrix_key_costs_nothing():
    q = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    assert_close(MatrixBinding(q[None]).penalty(), torch.tensor(0.0, dtype=torch.float64))


@pytest.mark.parametrize("num_streams", [1, 3])
def test_keys_of_signs_have_length_one_whatever_the_width(num_streams):
    keys = bipolar_keys(num_streams, 7, generator=torch.Generator().manual_seed(0)).double()
    assert_close(HadamardBinding(keys).penalty(), torch.as_tensor(penalty_loops(keys / 7**0.5)))
    stretched = torch.rand(num_streams, 7, dtype=torch.float64)
    wanted = torch.as_tensor(penalty_loops(stretched / 7**0.5))
    assert_close(HadamardBinding(stretched).penalty(), wanted)


def test_orthogonal_signs_cost_nothing():
    signs = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1]])
    assert HadamardBinding(signs).penalty() == 0


def test_frozen_keys_get_no_gradient_and_are_saved():
    binding = HRRBinding(gaussian_keys(2, 4), trainable=False)
    assert not binding.stream_keys.requires_grad
    assert "stream_keys" in binding.state_dict()
