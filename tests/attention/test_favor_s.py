import inspect
import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from mimonets.attention import (
    DPFP,
    FeatureMap,
    ReLUFeatures,
    SoftmaxFeatures,
    favor_s,
    linear_attention,
)
from mimonets.attention.favor_s import favor_s_bundled
from mimonets.attention.modules import BundledFavorS, FavorS
from mimonets.vsa import bipolar_keys

G, M, N, HEADS, DIM = 2, 3, 2, 2, 7
BOTH = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
MASKED = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
NORMALISE = pytest.mark.parametrize("normalise", ["stream", "joint"])


def rng(seed: int = 0) -> torch.Generator:
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


def random_case(tokens=5, m=M, n=N, dtype=torch.float64, heads_share_keys=True):
    shape = (G, m, n, HEADS, tokens, DIM)
    q, k, v = (torch.randn(shape, generator=rng(i), dtype=dtype) for i in range(3))
    if heads_share_keys:
        keys = bipolar_keys(m * n, DIM, generator=rng(3)).view(m, n, DIM)
    else:
        keys = bipolar_keys(m * n * HEADS, DIM, generator=rng(3)).view(m, n, HEADS, DIM)
    return q, k, v, keys


def random_mask(tokens=5, m=M, n=N) -> Tensor:
    return torch.rand(G, m, n, tokens, generator=rng(4)) < 0.6


def favor_s_loops(q, k, v, keys, phi, mask=None, causal=False, normalise="stream", damping=True):
    """The main equation of section 4.1 and appendix C.3, one number of j, u, n and i at a time."""
    groups, m, n, heads, tokens, dim = q.shape
    keys = (keys if keys.ndim == 4 else keys.unsqueeze(2).expand(m, n, heads, dim)).to(q.dtype)
    if mask is None:
        mask = torch.ones(groups, m, n, tokens, dtype=torch.bool)
    factor = (m * n) ** -0.5 if damping else 1.0
    single = torch.zeros(groups, m, n, heads, tokens, dim, dtype=q.dtype)
    joint = torch.zeros(groups, n, heads, tokens, dim, dtype=q.dtype)
    for g, h in itertools.product(range(groups), range(heads)):

        def bound(x, u, w, j, g=g, h=h):
            return x[g, u, w, h, j] * keys[u, w, h] if mask[g, u, w, j] else torch.zeros(dim).to(x)

        phi_k, bundle = {}, {}
        for j, u in itertools.product(range(tokens), range(m)):
            phi_k[j, u] = phi(factor * sum(bound(k, u, w, j) for w in range(n)))
            bundle[j, u] = sum(bound(v, u, w, j) for w in range(n))
        for c, i in itertools.product(range(n), range(tokens)):
            phi_q = phi(factor * sum(bound(q, t, c, i) for t in range(m)))
            S, B = torch.zeros(dim).to(q), [torch.zeros(()).to(q) for _ in range(m)]
            for j, u in itertools.product(range(i + 1 if causal else tokens), range(m)):
                score = phi_k[j, u] @ phi_q
                S = S + bundle[j, u] * score
                if mask[g, u, c, j]:
                    B[u] = B[u] + score
            for u in range(m):
                if mask[g, u, c, i] and B[u] > 0:
                    single[g, u, c, h, i] = S * keys[u, c, h] / B[u]
            if mask[g, :, c, i].any() and sum(B) > 0:
                joint[g, c, h, i] = S / sum(B)
    return single if normalise == "stream" else joint


def answers_and_gradients(function, q, k, v, *args, **kwargs) -> tuple[Tensor, ...]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = function(*inputs, *args, **kwargs)
    probe = torch.randn(out.shape, generator=rng(9), dtype=out.dtype)
    return out.detach(), *torch.autograd.grad((out * probe).sum(), inputs)


@MAPS
@BOTH
@MASKED
@NORMALISE
def test_favor_s_matches_the_loops(phi, causal, masked, normalise):
    *inputs, keys = random_case(tokens=4)
    options = {
        "mask": random_mask(4) if masked else None,
        "causal": causal,
        "normalise": normalise,
    }
    assert_close(
        answers_and_gradients(favor_s, *inputs, keys, phi, **options, chunk_size=3),
        answers_and_gradients(favor_s_loops, *inputs, keys, phi, **options),
    )


@BOTH
@pytest.mark.parametrize(("tokens", "m", "n"), [(1, 3, 2), (5, 1, 3), (5, 3, 1), (1, 1, 1)])
def test_odd_grids_and_single_tokens_match_the_loops(causal, tokens, m, n):
    *inputs, keys = random_case(tokens, m, n, heads_share_keys=False)
    phi, mask = ReLUFeatures(DIM, 11, generator=rng()), random_mask(tokens, m, n)
    options = {"mask": mask, "causal": causal, "damping": False}
    expected = favor_s_loops(*inputs, keys, phi, **options)
    assert_close(favor_s(*inputs, keys, phi, **options), expected)


@MAPS
@BOTH
@MASKED
@NORMALISE
def test_one_stream_is_plain_linear_attention(phi, causal, masked, normalise):
    q, k, v, keys = random_case(m=1, n=1)
    mask = random_mask(m=1, n=1) if masked else None
    answer = favor_s(q, k, v, keys, phi, mask=mask, causal=causal, normalise=normalise)
    if normalise == "joint":
        answer = (answer * keys[0, 0]).unsqueeze(1)
    expected = linear_attention(
        # binding turns the vectors that the features see
        *(x[:, 0, 0] * keys[0, 0] for x in (q, k, v)),
        phi,
        mask=None if mask is None else mask[:, 0, 0],
        causal=causal,
    )
    assert_close(answer.flatten(0, 2), expected * keys[0, 0])


@MAPS
@MASKED
@NORMALISE
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_all_chunks_at_once_give_the_same_numbers(phi, masked, normalise, tokens, monkeypatch):
    *inputs, keys = random_case(tokens)
    options = {
        "mask": random_mask(tokens) if masked else None,
        "normalise": normalise,
        "causal": True,
        "chunk_size": 4,
    }
    expected = favor_s(*inputs, keys, phi, **options)
    monkeypatch.setattr("mimonets.attention.sums.works_at_once", lambda x: True)
    monkeypatch.delattr("mimonets.attention.sums.advance")  # chunk by chunk is no way here
    assert_close(favor_s(*inputs, keys, phi, **options), expected)


@NORMALISE
def test_the_chunk_size_changes_nothing(normalise):
    *inputs, keys = random_case(tokens=9)
    phi, mask = SoftmaxFeatures(DIM, 11, generator=rng()), random_mask(9)
    answers = [
        favor_s(
            *inputs, keys, phi, mask=mask, causal=True, normalise=normalise, chunk_size=chunk_size
        )
        for chunk_size in (1, 4, 9, 64)
    ]
    for answer in answers[1:]:
        assert_close(answer, answers[0])


@BOTH
def test_a_sub_grid_is_a_smaller_grid_with_the_first_keys(causal):
    *inputs, keys = random_case(m=4, n=4)
    phi = ReLUFeatures(DIM, 11, generator=rng())
    small = [x[:, :2, :3] for x in inputs]
    assert_close(
        favor_s(*small, keys, phi, causal=causal),
        favor_s(*small, keys[:2, :3], phi, causal=causal),
    )


@MAPS
@BOTH
@NORMALISE
@pytest.mark.parametrize("position", range(5))
def test_what_a_padded_token_holds_changes_nothing(phi, causal, normalise, position):
    *inputs, keys = random_case()
    mask = random_mask()
    mask[:, 1, 0, position] = False
    options = {"mask": mask, "causal": causal, "normalise": normalise}
    answer = favor_s(*inputs, keys, phi, **options)
    for x in inputs:
        x[:, 1, 0, :, position] = 1e6
    assert torch.equal(favor_s(*inputs, keys, phi, **options), answer)
    if normalise == "stream":
        assert not answer[:, 1, 0, :, position].any()


@MAPS
@BOTH
@NORMALISE
@pytest.mark.parametrize("position", [0, 2, 5])
def test_adding_padding_changes_nothing(phi, causal, normalise, position):
    *inputs, keys = random_case()
    mask = random_mask()
    options = {"causal": causal, "normalise": normalise}
    answer = favor_s(*inputs, keys, phi, mask=mask, **options)
    kept = [i for i in range(7) if i not in (position, position + 1)]
    padded = [torch.full((*x.shape[:-2], 7, DIM), 7.0, dtype=x.dtype) for x in inputs]
    for more, x in zip(padded, inputs, strict=True):
        more[..., kept, :] = x
    longer = torch.zeros(G, M, N, 7, dtype=torch.bool)
    longer[..., kept] = mask
    again = favor_s(*padded, keys, phi, mask=longer, **options)
    assert_close(again[..., kept, :], answer)


@MAPS
@BOTH
@NORMALISE
def test_streams_of_padding_only_give_zeros_and_disturb_nobody(phi, causal, normalise):
    *inputs, keys = random_case()
    mask = torch.ones(G, M, N, 5, dtype=torch.bool)
    mask[0, 1] = False
    mask[1] = False
    options = {"mask": mask, "causal": causal, "normalise": normalise}
    answer, *gradients = answers_and_gradients(favor_s, *inputs, keys, phi, **options)
    assert answer.isfinite().all()
    assert not answer[1].any()
    if normalise == "stream":
        assert not answer[0, 1].any()
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert not gradient[~mask.unsqueeze(3).expand(gradient.shape[:-1])].any()


@pytest.mark.parametrize("normalise", ["stream", "joint"])
def test_the_damping_scales_q_and_k_by_the_root_of_the_number_of_streams(normalise):
    """Written out: undamped attention to q and k that were divided by sqrt(M N) before."""
    q, k, v, keys = random_case()
    phi = SoftmaxFeatures(DIM, 11, generator=rng())
    scale = 1 / math.sqrt(M * N)
    assert_close(
        favor_s(q, k, v, keys, phi, normalise=normalise),
        favor_s(q * scale, k * scale, v, keys, phi, normalise=normalise, damping=False),
    )


@MAPS
@BOTH
@NORMALISE
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e2, 1e4])
def test_inputs_of_any_scale_give_finite_answers(phi, causal, normalise, autocast, scale):
    q, k, v, keys = random_case(dtype=torch.float32)
    options = {"mask": random_mask(), "causal": causal, "normalise": normalise}
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        answer = favor_s(q * scale, k * scale, v, keys, phi, **options)
    assert answer.isfinite().all()


def test_sums_over_tokens_are_exact_enough_under_autocast():
    *inputs, keys = random_case(tokens=2048, dtype=torch.float32)
    phi = ReLUFeatures(DIM, 16, generator=rng())
    exact = favor_s(*inputs, keys, phi)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(favor_s(*inputs, keys, phi), exact)
        low = favor_s(*(x.bfloat16() for x in inputs), keys, phi)
    assert low.dtype == torch.bfloat16
    assert_close(low.float(), exact, atol=3e-2, rtol=3e-2)


def log_log_slope(x: list[float], y: list[float]) -> float:
    x_log, y_log = torch.tensor(x).log(), torch.tensor(y).log()
    x_log, y_log = x_log - x_log.mean(), y_log - y_log.mean()
    return float((x_log * y_log).sum() / x_log.square().sum())


DIMENSIONS = [64, 128, 256, 512, 1024, 2048, 4096]


def at_angle(direction: Tensor, cosine: float, generator: torch.Generator) -> Tensor:
    """Unit vectors at a fixed angle to unit vectors."""
    other = torch.randn(direction.shape, generator=generator)
    other = other - (other * direction).sum(-1, keepdim=True) * direction
    other = other / other.norm(dim=-1, keepdim=True)
    return cosine * direction + math.sqrt(1 - cosine**2) * other


@pytest.mark.parametrize("size", [2, 3])
def test_the_error_of_the_logits_falls_with_the_root_of_the_dimension(size):
    """Theorem 3: <sum_w k^(u,w), sum_t q^(t,n)> is near <k^(u,n), q^(u,n)>, error ~ D^(-1/2)."""
    errors = []
    for dim in DIMENSIONS:
        generator = rng(dim)
        k = torch.randn(100, size, size, dim, generator=generator)
        k = k / k.norm(dim=-1, keepdim=True)
        q = at_angle(k, 0.5, generator)
        keys = bipolar_keys(100 * size**2, dim, generator=generator).view_as(k)
        logits = (k * keys).sum(2) @ (q * keys).sum(1).mT  # u, n
        errors.append(float((logits - 0.5).square().mean().sqrt()))
    assert log_log_slope(DIMENSIONS, errors) == pytest.approx(-0.5, abs=0.05)


class Uniform(FeatureMap):
    """Weighs every key alike."""

    num_features = 1

    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x[..., :1])


@pytest.mark.parametrize("size", [2, 3])
def test_what_a_direction_reads_of_other_streams_falls_with_the_root_of_the_dimension(size):
    """With equal attention weights the exact answer is known: the mean of the stream's values."""
    errors, distances = [], []
    for dim in DIMENSIONS:
        generator = rng(dim)
        v = torch.randn(40, size, size, 1, 4, dim, generator=generator) / math.sqrt(dim)
        zero = torch.zeros_like(v)
        keys = bipolar_keys(size**2, dim, generator=generator).view(size, size, dim)
        error = favor_s(zero, zero, v, keys, Uniform()) - v.mean(-2, keepdim=True)
        direction = torch.randn(dim, generator=generator)
        direction = direction / direction.norm()
        errors.append(float((error @ direction).square().mean().sqrt()))
        distances.append(float(error.norm(dim=-1).mean()))
    assert log_log_slope(DIMENSIONS, errors) == pytest.approx(-0.5, abs=0.07)
    # What is read falls, what is there does not: the other values keep their norm.
    assert log_log_slope(DIMENSIONS, distances) == pytest.approx(0.0, abs=0.02)


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.phi = SoftmaxFeatures(DIM, 11, generator=rng())
        self.causal = causal
        self.register_buffer("keys", random_case()[-1])

    def forward(self, q, k, v, mask):
        return favor_s(q, k, v, self.keys, self.phi, mask=mask, causal=self.causal)


def test_it_exports_where_it_is_causal():
    *inputs, _ = random_case(dtype=torch.float32)
    module, mask = Attention(True), random_mask()
    program = torch.export.export(module, (*inputs, mask))
    assert_close(program.module()(*inputs, mask), module(*inputs, mask))


def test_it_exports_for_any_number_of_tokens():
    *inputs, _ = random_case(dtype=torch.float32)
    tokens = torch.export.Dim("tokens", min=2, max=1024)
    shapes = (*[{4: tokens}] * 3, {3: tokens})
    module = Attention(False)
    program = torch.export.export(module, (*inputs, random_mask()), dynamic_shapes=shapes).module()
    for length in (5, 11):
        *inputs, _ = random_case(length, dtype=torch.float32)
        mask = random_mask(length)
        assert_close(program(*inputs, mask), module(*inputs, mask))


def test_functions_and_modules_take_chunks_of_one_size():
    for function in (favor_s, favor_s_bundled):
        default = inspect.signature(function).parameters["chunk_size"].default
        assert default == FavorS.chunk_size == BundledFavorS.chunk_size


def test_errors_say_what_fits():
    q, k, v, keys = random_case()
    phi = ReLUFeatures(DIM, 11, generator=rng())
    with pytest.raises(ValueError, match=r"\(groups, m, n, heads, .*all alike"):
        favor_s(q[0], k, v, keys, phi)
    with pytest.raises(ValueError, match=r"\(3, 2, 7\) or \(3, 2, 2, 7\).*\(2, 2, "):
        favor_s(q, k, v, keys[:2], phi)
    with pytest.raises(ValueError, match=r'normalise=\'both\' is unknown: take "stream"'):
        favor_s(q, k, v, keys, phi, normalise="both")
    with pytest.raises(ValueError, match=r"\(groups, m, n, .*here \(2, 3, 2, 5\)"):
        favor_s(q, k, v, keys, phi, mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"\(0, 3, 2, .*pass at least one"):
        favor_s(q[:0], k[:0], v[:0], keys, phi)
    none = [x[..., :0, :] for x in (q, k, v)]
    with pytest.raises(ValueError, match="no tokens to attend to"):
        favor_s(*none, keys, phi)
