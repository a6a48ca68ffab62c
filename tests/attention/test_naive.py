"""The fast versions against the obvious ones, gradients too, on sizes that loops could not do."""

import pytest
import torch
from torch.testing import assert_close

from attention.naive import naive_favor_s, naive_linear_attention
from mimonets.attention import DPFP, ReLUFeatures, SoftmaxFeatures, favor_s, linear_attention
from mimonets.vsa import bipolar_keys
from oracles import gradients

DIM = 7


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


MAPS = pytest.mark.parametrize(
    "phi",
    [ReLUFeatures(DIM, 11, generator=rng()), SoftmaxFeatures(DIM, 11, generator=rng()), DPFP(DIM)],
    ids=lambda phi: type(phi).__name__,
)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
MASKED = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])


@MAPS
@CAUSAL
@MASKED
@pytest.mark.parametrize("tokens", [1, 67])
def test_linear_attention_is_the_obvious_one(phi, causal, masked, tokens):
    inputs = [torch.randn(2, 3, tokens, DIM, generator=rng(i)).double() for i in range(3)]
    options = {"causal": causal}
    options["mask"] = torch.rand(2, tokens, generator=rng(3)) < 0.6 if masked else None

    def fast(q, k, v):
        return linear_attention(q, k, v, phi, chunk_size=16, **options)

    def slow(q, k, v):
        return naive_linear_attention(q, k, v, phi, **options)

    assert_close(fast(*inputs), slow(*inputs))
    assert_close(gradients(fast, inputs), gradients(slow, inputs))


@MAPS
@CAUSAL
@MASKED
@pytest.mark.parametrize("normalise", ["stream", "joint"])
@pytest.mark.parametrize(("m", "n", "tokens"), [(3, 2, 37), (1, 4, 5), (2, 2, 1)])
def test_favor_s_is_the_obvious_one(phi, causal, masked, normalise, m, n, tokens):
    shape = (2, m, n, 2, tokens, DIM)
    inputs = [torch.randn(shape, generator=rng(i)).double() for i in range(3)]
    keys = bipolar_keys(m * n * 2, DIM, generator=rng(4)).view(m, n, 2, DIM)
    options = {"causal": causal, "normalise": normalise}
    options["mask"] = torch.rand(2, m, n, tokens, generator=rng(3)) < 0.6 if masked else None

    def fast(q, k, v):
        return favor_s(q, k, v, keys, phi, chunk_size=8, **options)

    def slow(q, k, v):
        return naive_favor_s(q, k, v, keys, phi, **options)

    assert_close(fast(*inputs), slow(*inputs))
    assert_close(gradients(fast, inputs), gradients(slow, inputs))
