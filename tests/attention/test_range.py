"""Gradients of linear attention at any scale of q and k, in float32, against float64."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mimonets.attention import (
    DPFP,
    FeatureMap,
    ReLUFeatures,
    SoftmaxFeatures,
    favor_s,
    linear_attention,
)
from mimonets.attention.favor_s import favor_s_bundled
from mimonets.attention.sums import reciprocal
from mimonets.vsa import bipolar_keys

SCALES = [0.01, 1, 5, 8, 20, 50]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_map(name: str, dim: int, num_features: int) -> FeatureMap:
    if name == "dpfp":
        return DPFP(dim, nu=1)
    kind = ReLUFeatures if name == "relu" else SoftmaxFeatures
    return kind(dim, num_features, generator=rng())


def attend(form, q, k, v, phi, mask, causal, chunk_size) -> Tensor:
    """Attend in one of the four forms; q, k, v: (g, m, n, h, t, d), mask: (g, m, n, t)."""
    options = {"causal": causal, "chunk_size": chunk_size}
    m, n, d = q.shape[1], q.shape[2], q.shape[-1]
    if form == "linear":
        flat = None if mask is None else mask.flatten(0, 2)
        return linear_attention(*(x.flatten(0, 2) for x in (q, k, v)), phi, mask=flat, **options)
    if form == "bundled":
        q, k, v = q.sum(1), k.sum(2), v.sum(2)
        return favor_s_bundled(q, k, v, phi, mask=mask, **options)
    keys = bipolar_keys(m * n, d, generator=rng(3)).view(m, n, d)
    return favor_s(q, k, v, keys, phi, mask=mask, normalise=form, **options)


def answers_of(inputs, *args) -> tuple[list[Tensor], Tensor]:
    inputs = [x.clone().requires_grad_() for x in inputs]
    return inputs, attend(args[0], *inputs, *args[1:])


def gradients_of(inputs, out, counted) -> tuple[Tensor, ...]:
    probe = torch.randn(out.shape, generator=rng(9)).to(out.dtype) * counted
    return torch.autograd.grad((out * probe).sum(), inputs, retain_graph=True)


def check(name, form, scale, causal, masked, sizes, dim, num_features) -> None:
    m, n, tokens = sizes
    phi = make_map(name, dim, num_features)
    q, k, v = (torch.randn(1, m, n, 1, tokens, dim, generator=rng(i)) for i in range(3))
    inputs = [q * scale, k * scale, v]
    exact = [x.double() for x in inputs]
    mask = torch.rand(1, m, n, tokens, generator=rng(4)) < 0.6 if masked else None
    arguments = (form, phi, mask, causal)

    inputs, answer = answers_of(inputs, *arguments, 64)
    assert answer.isfinite().all()
    assert all(x.isfinite().all() for x in gradients_of(inputs, answer, 1))

    # A token per chunk: each query has a scale of its own, so float64 loses none of them.
    exact, expected = answers_of(exact, *arguments, 1)
    error = (answer - expected).norm(dim=-1, keepdim=True)
    right = error <= 1e-4 * expected.norm(dim=-1, keepdim=True)
    if name != "softmax" or (scale <= 5 and not causal):  # here the forward pass loses nothing
        assert right.all(), (name, form, scale, causal, masked, sizes)
    gradient = gradients_of(inputs, answer, right)
    wanted = gradients_of(exact, expected, right)
    # Where one key gets all the weight, terms of this size cancel, in any precision.
    terms = (1 / scale + scale) * float((expected * right).norm().detach())
    for ours, true in zip(gradient, wanted, strict=True):
        assert float((ours - true).norm()) <= 1e-3 * float(true.norm()) + 1e-5 * terms


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    st.sampled_from(["relu", "softmax", "dpfp"]),
    st.sampled_from(["linear", "stream", "joint", "bundled"]),
    st.sampled_from(SCALES),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 3, 17, 67])),
)
@example("softmax", "stream", 8, True, True, (3, 2, 67))
@example("softmax", "joint", 50, True, False, (2, 2, 130))
def test_gradients_are_those_of_float64_at_any_scale(name, form, scale, causal, masked, sizes):
    check(name, form, scale, causal, masked, sizes, dim=7, num_features=11)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["softmax", "relu", "dpfp"])
def test_gradients_are_those_of_float64_at_full_size(name, scale):
    check(name, "linear", scale, True, False, (1, 1, 150), dim=128, num_features=256)


def test_the_gradient_of_causal_softmax_features_has_the_norm_that_float64_gives():
    """Whose squares of 1 / B overflowed: 486, 824 and 749 became NaN."""
    phi = SoftmaxFeatures(128, 256, generator=rng())
    inputs = [torch.randn(2, 4, 256, 128, generator=rng(i)) for i in range(3)]
    inputs = [inputs[0] * 5, inputs[1] * 5, inputs[2]]
    norms = []
    for dtype in (torch.float32, torch.float64):
        q, k, v = (x.to(dtype).detach().requires_grad_() for x in inputs)
        linear_attention(q, k, v, phi, causal=True).square().sum().backward()
        norms.append([float(x.grad.norm()) for x in (q, k, v)])
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize("size", [2.0**-41, 1e-12, 1.0, 1e20, 1e30])
def test_the_reciprocal_has_the_right_derivatives_where_squares_leave_the_range(size):
    b = torch.full((1, 1, 1), 1.5 * size, requires_grad=True)
    inverse = reciprocal(b, torch.full((1, 1, 1), 3 * size), 2.0**42)
    assert float(inverse.detach()) == pytest.approx(1 / (1.5 * size), rel=1e-6)
    # As attention calls it: the product with a mixture that is as large as the normaliser.
    (gradient,) = torch.autograd.grad((inverse * 3 * size).sum(), b)
    assert float(gradient) == pytest.approx(-3 / 2.25 / size, rel=1e-6)


def test_the_reciprocal_can_be_differentiated_twice():
    b = torch.rand(2, 1, 3, generator=rng(), dtype=torch.float64) + 0.5
    b.requires_grad_()
    assert torch.autograd.gradcheck(lambda b: reciprocal(b, b[0].unsqueeze(-1), 1.0), (b,))
    assert torch.autograd.gradgradcheck(lambda b: reciprocal(b, b[0].unsqueeze(-1), 1.0), (b,))
