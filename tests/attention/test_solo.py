import pytest
import torch
from torch.testing import assert_close

from mimonets.attention import DPFP, ReLUFeatures, SoftmaxFeatures, favor_s, favor_solo
from mimonets.attention.linear import linear_attention
from mimonets.vsa import bipolar_keys

G, M, N, HEADS, TOKENS, DIM = 2, 3, 2, 2, 5, 7


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


MAPS = pytest.mark.parametrize(
    "phi",
    [
        ReLUFeatures(DIM, 11, generator=rng()),
        SoftmaxFeatures(DIM, 11, generator=rng()),
        DPFP(DIM, nu=2),
    ],
    ids=lambda phi: type(phi).__name__,
)


def random_case():
    shape = (G, M, N, HEADS, TOKENS, DIM)
    q, k, v = (torch.randn(shape, generator=rng(i), dtype=torch.float64) for i in range(3))
    keys = bipolar_keys(M * N * HEADS, DIM, generator=rng(3)).view(M, N, HEADS, DIM)
    mask = torch.rand(G, M, N, TOKENS, generator=rng(4)) < 0.6
    return q, k, v, keys, mask


def one_stream_at_a_time(q, k, v, keys, phi, *, mask, damping, normalise, **options):
    """favor_s on a grid of one, with the key of one stream, for every stream."""
    scale = (M * N) ** -0.5 if damping else 1.0
    out = torch.zeros_like(q)
    for m in range(M):
        for n in range(N):
            own = (slice(None), slice(m, m + 1), slice(n, n + 1))
            answer = favor_s(
                q[own] * scale,
                k[own] * scale,
                v[own],
                keys[m : m + 1, n : n + 1],
                phi,
                mask=None if mask is None else mask[own],
                normalise=normalise,
                **options,
            )
            out[:, m, n] = answer.view(G, HEADS, TOKENS, DIM)
    return out


def gradients(function, *inputs, **options):
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = function(*inputs, **options)
    probe = torch.randn(out.shape, generator=rng(9), dtype=out.dtype)
    return torch.autograd.grad((out * probe).sum(), inputs)


@MAPS
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize(("normalise", "damping"), [("stream", True), ("joint", False)])
def test_solo_is_favor_s_on_a_grid_of_one_with_each_streams_key(
    phi, causal, masked, normalise, damping
):
    *inputs, keys, mask = random_case()
    options = {
        "stream_keys": keys,
        "feature_map": phi,
        "mask": mask if masked else None,
        "causal": causal,
        "normalise": normalise,
        "damping": damping,
    }

    def by_hand(q, k, v, stream_keys, feature_map, **rest):
        return one_stream_at_a_time(q, k, v, stream_keys, feature_map, **rest)

    assert_close(favor_solo(*inputs, **options), by_hand(*inputs, **options))
    assert_close(
        gradients(favor_solo, *inputs, **options, chunk_size=3),
        gradients(by_hand, *inputs, **options),
    )


@MAPS
def test_solo_is_not_attention_without_binding(phi):
    q, k, v, keys, _ = random_case()
    plain = linear_attention(*(x.flatten(0, 2) for x in (q, k, v)), phi).view(q.shape)
    assert not torch.allclose(favor_solo(q, k, v, keys, phi, damping=False), plain, rtol=0.05)


def test_a_larger_set_of_keys_serves_a_smaller_grid():
    q, k, v, keys, _ = random_case()
    small = [x[:, :2, :1] for x in (q, k, v)]
    phi = DPFP(DIM)
    assert_close(favor_solo(*small, keys, phi), favor_solo(q, k, v, keys, phi)[:, :2, :1])


def test_keys_that_do_not_fit_are_refused():
    q, k, v, keys, _ = random_case()
    with pytest.raises(ValueError, match="needs stream keys of shape"):
        favor_solo(q, k, v, keys[:2], DPFP(DIM))
