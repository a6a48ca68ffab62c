"""What the streams of a MIMOFormer share, against all streams written down."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mimonets import MIMOFormer, MIMOFormerConfig
from mimonets.models.factored_streams import FactoredStreams
from mimonets.vsa import bipolar_keys

SMALL = {
    "vocab_size": 11,
    "max_length": 7,
    "num_classes": 3,
    "depth": 3,
    "heads": 2,
    "head_dim": 8,
    "dim": 6,
    "hidden_dim": 10,
    "num_features": 16,
}


def case(groups=2, m=3, n=2, tokens=5, size=7):
    """Streams as a tensor and as what they share, a norm, a mask, and other keys."""
    keys, others = (bipolar_keys(m * n, size).unflatten(0, (m, n)).double() for _ in range(2))
    factored = FactoredStreams(torch.randn(groups, n, tokens, size, dtype=torch.double), keys)
    norm = nn.LayerNorm(size).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    mask = torch.rand(groups, m, n, tokens) < 0.6
    mask[0, 1, 1] = False  # a stream of padding only
    return factored, norm.requires_grad_(False), mask, others


def streams_of(factored):
    """Write every stream down in a loop."""
    g, n, t, e = factored.z.shape
    x = torch.empty(g, factored.keys.shape[0], n, t, e, dtype=torch.double)
    for i in range(x.shape[1]):
        for j in range(n):
            x[:, i, j] = factored.z[:, j] * factored.keys[i, j]
    return x


@pytest.mark.parametrize("masked", [False, True])
def test_norms_bundles_and_averages_are_those_of_the_streams_written_down(masked):
    factored, norm, mask, others = case()
    x = streams_of(factored)
    assert_close(factored.streams(), x)
    real = torch.ones_like(mask) if not masked else mask
    weight = real.unsqueeze(-1).double()
    mask = mask if masked else None
    bound = others.unsqueeze(-2)

    assert_close(factored.bundle(others, mask), (x * weight * bound).sum(1))
    normed = factored.normed(norm, mask)
    assert_close(normed.bundle_over_m(others), (norm(x) * weight * bound).sum(1))
    assert_close(normed.bundle_over_n(others), (norm(x) * weight * bound).sum(2))
    mean = (norm(x) * weight).sum(-2) / weight.sum(-2).clamp_min(1)
    assert_close(factored.pooled(norm, mask), mean)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_projections_add_up_as_those_of_the_streams_do(masked, bias):
    factored, norm, mask, _ = case()
    layer = nn.Linear(7, 9, bias=bias).double().requires_grad_(False)
    keys = bipolar_keys(6, 9).unflatten(0, (3, 2)).double()
    weight = mask.unsqueeze(-1).double() if masked else 1.0
    bound = layer(norm(streams_of(factored))) * weight * keys.unsqueeze(-2)
    normed = factored.normed(norm, mask if masked else None)
    over_m = normed.project(layer, keys, sum_over_m=True)
    over_n = normed.project(layer, keys, sum_over_m=False)
    assert_close(over_m.transpose(0, 1), bound.sum(1))
    assert_close(over_n.transpose(0, 1), bound.sum(2))


@pytest.mark.parametrize(
    "options",
    [
        {"superpose": "attention+mlp"},
        {"superpose": "attention+mlp", "head": "next_token", "causal": True},
        {"superpose": "attention+mlp+qkv"},
        {"superpose": "attention+mlp+qkv", "pooling": "cls", "grid": (1, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("masked", [False, True])
def test_inference_answers_as_the_blocks_that_write_every_stream_down(options, masked):
    model = MIMOFormer(MIMOFormerConfig(**{**SMALL, "grid": (3, 2), **options})).eval().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    tokens = model.example_inputs(7)
    mask = torch.rand(tokens.shape) < 0.7 if masked else None
    with torch.no_grad():
        found = [model(tokens, mask, active) for active in (None, 2)]
    for active, answer in zip((None, 2), found, strict=True):
        assert_close(answer, model(tokens, mask, active).detach())


def test_the_shortcut_is_taken_and_only_without_gradients(monkeypatch):
    model = MIMOFormer(MIMOFormerConfig(**SMALL, superpose="attention+mlp"))
    taken = []
    encode = MIMOFormer._encode_factored
    monkeypatch.setattr(MIMOFormer, "_encode_factored", lambda *a: taken.append(1) or encode(*a))
    tokens = model.example_inputs(4)
    model(tokens)
    model.eval()(tokens)
    with torch.no_grad(), model.warming_up("solo"):
        model(tokens)
    assert taken == []
    with torch.no_grad():
        model(tokens)
    assert taken == [1]
