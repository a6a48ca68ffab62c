import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mimonets.attention import (
    DPFP,
    FeatureMap,
    ReLUFeatures,
    SoftmaxFeatures,
    linear_attention,
)

DIM = 7
BOTH = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
MASKED = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def feature_maps() -> list[FeatureMap]:
    return [
        ReLUFeatures(DIM, 11, generator=rng()),
        SoftmaxFeatures(DIM, 11, generator=rng()),
        DPFP(DIM, nu=2),
    ]


MAPS = pytest.mark.parametrize("phi", feature_maps(), ids=lambda phi: type(phi).__name__)


def random_case(tokens: int = 5, masked: bool = True, dtype=torch.float64, seed: int = 0):
    q, k, v = (
        torch.randn(2, 2, tokens, DIM, generator=rng(seed + i), dtype=dtype) for i in range(3)
    )
    mask = None
    if masked:
        mask = torch.rand(2, tokens, generator=rng(seed + 3)) < 0.6
        mask[0, 0] = True
    return q, k, v, mask


def linear_loops(q, k, v, phi, mask=None, causal=False) -> Tensor:
    """o_i = sum_j v_j <phi(k_j), phi(q_i)> / sum_j <phi(k_j), phi(q_i)>, word by word."""
    batch, heads, tokens, _ = q.shape
    out = []
    for b in range(batch):
        real = [j for j in range(tokens) if mask is None or mask[b, j]]
        for h in range(heads):
            for i in range(tokens):
                numerator, denominator = torch.zeros_like(v[b, h, i]), 0.0
                for j in real:
                    if i in real and (j <= i or not causal):
                        score = phi(k[b, h, j]) @ phi(q[b, h, i])
                        numerator = numerator + v[b, h, j] * score
                        denominator = denominator + score
                nothing = isinstance(denominator, float) or denominator == 0
                out.append(numerator if nothing else numerator / denominator)
    return torch.stack(out).view_as(v)


def gradients(function, q, k, v, *args, **kwargs) -> tuple[Tensor, ...]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = function(*inputs, *args, **kwargs)
    probe = torch.randn(out.shape, generator=rng(9), dtype=out.dtype)
    return torch.autograd.grad((out * probe).sum(), inputs)


@MAPS
@BOTH
@MASKED
@pytest.mark.parametrize("tokens", [1, 5])
def test_linear_attention_matches_the_double_loop(phi, causal, masked, tokens):
    q, k, v, mask = random_case(tokens, masked)
    options = {"mask": mask, "causal": causal}
    assert_close(linear_attention(q, k, v, phi, **options), linear_loops(q, k, v, phi, **options))
    assert_close(
        gradients(linear_attention, q, k, v, phi, **options),
        gradients(linear_loops, q, k, v, phi, **options),
    )


@MAPS
@MASKED
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 4, 8, 9, 100])
def test_the_chunk_size_changes_nothing(phi, masked, chunk_size):
    q, k, v, mask = random_case(tokens=9, masked=masked)
    one, other = ({"mask": mask, "causal": True, "chunk_size": size} for size in (chunk_size, 5))
    assert_close(linear_attention(q, k, v, phi, **one), linear_attention(q, k, v, phi, **other))
    assert_close(
        gradients(linear_attention, q, k, v, phi, **one),
        gradients(linear_attention, q, k, v, phi, **other),
    )


@MAPS
@MASKED
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_all_chunks_at_once_give_the_same_numbers(phi, masked, tokens, monkeypatch):
    q, k, v, mask = random_case(tokens, masked)
    options = {"mask": mask, "causal": True, "chunk_size": 4}
    expected = linear_attention(q, k, v, phi, **options)
    expected_gradients = gradients(linear_attention, q, k, v, phi, **options)
    monkeypatch.setattr("mimonets.attention.sums.works_at_once", lambda x: True)
    assert_close(linear_attention(q, k, v, phi, **options), expected)
    assert_close(gradients(linear_attention, q, k, v, phi, **options), expected_gradients)


@MAPS
@MASKED
def test_working_in_blocks_changes_nothing(phi, masked, monkeypatch):
    q, k, v, mask = random_case(tokens=130, masked=masked)
    k = k * torch.linspace(0.1, 3, 130).view(130, 1)  # the scale of the keys changes on the way
    whole = linear_attention(q, k, v, phi, mask=mask)
    whole_gradients = gradients(linear_attention, q, k, v, phi, mask=mask)
    monkeypatch.setattr("mimonets.attention.sums.BLOCK", 1)  # the smallest: 64 tokens
    assert_close(linear_attention(q, k, v, phi, mask=mask), whole)
    assert_close(gradients(linear_attention, q, k, v, phi, mask=mask), whole_gradients)


def test_streaming_softmax_features_survive_keys_of_any_scale():
    """Log-features of these tokens differ by thousands; each answer is still a mean of values."""
    phi = SoftmaxFeatures(DIM, 11, generator=rng())
    scale = torch.tensor([1e-3, 300.0, 1.0, 0.1, 100.0, 1e-3]).view(1, 1, 6, 1)
    q, k, _, _ = random_case(tokens=6, masked=False, dtype=torch.float32)
    v = torch.ones(2, 2, 6, DIM)
    assert_close(linear_attention(q, k * scale, v, phi, causal=True, chunk_size=1), v)


@MAPS
@BOTH
@pytest.mark.parametrize("position", range(5))
def test_a_padded_token_changes_nothing_in_any_position(phi, causal, position):
    q, k, v, _ = random_case(masked=False)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, position] = False
    answer = linear_attention(q, k, v, phi, mask=mask, causal=causal)

    other = [x.clone() for x in (q, k, v)]
    for x in other:
        x[:, :, position] = 1e6
    assert torch.equal(linear_attention(*other, phi, mask=mask, causal=causal), answer)

    kept = [i for i in range(5) if i != position]
    without = linear_attention(*(x[:, :, kept] for x in (q, k, v)), phi, causal=causal)
    assert_close(answer[:, :, kept], without)
    assert not answer[:, :, position].any()


@MAPS
@BOTH
def test_a_sequence_of_padding_only_gives_zeros_and_no_nan_gradient(phi, causal):
    q, k, v, _ = random_case(masked=False)
    mask = torch.tensor([[False] * 5, [True] * 5])
    answer = linear_attention(q, k, v, phi, mask=mask, causal=causal)
    assert not answer[0].any()
    assert answer[1].isfinite().all()
    for gradient in gradients(linear_attention, q, k, v, phi, mask=mask, causal=causal):
        assert gradient.isfinite().all()
        assert not gradient[0].any()


@MAPS
def test_causal_answers_do_not_know_the_future(phi):
    q, k, v, _ = random_case(tokens=9, masked=False)
    answer = linear_attention(q, k, v, phi, causal=True, chunk_size=4)
    for x in (q, k, v):
        x[:, :, 5:] += 1.0
    assert_close(
        linear_attention(q, k, v, phi, causal=True, chunk_size=4)[:, :, :5], answer[:, :, :5]
    )


@MAPS
@BOTH
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e2, 1e4])
def test_inputs_of_any_scale_give_finite_answers(phi, causal, autocast, scale):
    q, k, v, mask = random_case(tokens=9, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        answer = linear_attention(q * scale, k * scale, v, phi, mask=mask, causal=causal)
    assert answer.isfinite().all()
    for gradient in gradients(
        linear_attention, q * scale, k * scale, v, phi, mask=mask, causal=causal
    ):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("norms", ["alike", "different"])
def test_softmax_features_never_lose_the_normaliser(scale, norms):
    """The weights add up to 1 for every query, however large its keys are."""
    phi = SoftmaxFeatures(DIM, 11, generator=rng())
    q, k, v, _ = random_case(tokens=9, masked=False, dtype=torch.float32)
    if norms == "different":
        k = k * torch.logspace(-3, 0, 9).view(1, 1, 9, 1)
    answer = linear_attention(q * scale, k * scale, torch.ones_like(v), phi)
    assert_close(answer, torch.ones_like(v))


@BOTH
def test_sums_over_tokens_are_exact_enough_under_autocast(causal):
    """In bfloat16 a count stops growing at 256; the mean of 4096 values must not."""
    phi = ReLUFeatures(DIM, 16, generator=rng())
    q, k, v, _ = random_case(tokens=4096, masked=False, dtype=torch.float32)
    exact = linear_attention(q, k, v, phi, causal=causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_close(linear_attention(q, k, v, phi, causal=causal), exact)
        low = linear_attention(*(x.bfloat16() for x in (q, k, v)), phi, causal=causal)
    assert low.dtype == torch.bfloat16
    assert_close(low[:, :, -1].float(), exact[:, :, -1], atol=2e-2, rtol=0)


def test_causal_memory_grows_with_tokens_and_not_with_tokens_times_features_times_values():
    tokens, features, dim = 512, 64, 32
    largest = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.numel())
            return out

    phi = ReLUFeatures(dim, features, generator=rng())
    q, k, v = (torch.randn(1, 1, tokens, dim, generator=rng(i)) for i in range(3))
    with Largest():
        linear_attention(q, k, v, phi, causal=True)
    assert largest <= tokens * features


def test_values_may_have_a_size_of_their_own():
    q, k, v, mask = random_case()
    phi = ReLUFeatures(DIM, 11, generator=rng())
    wide = torch.cat([v, v], dim=-1)
    answer = linear_attention(q, k, wide, phi, mask=mask)
    assert_close(answer[..., :DIM], linear_attention(q, k, v, phi, mask=mask))


@BOTH
def test_it_equals_performer_pytorch_on_the_same_features(causal):
    performer = performer_pytorch()
    q, k, v, _ = random_case(masked=False)
    phi = ReLUFeatures(DIM, 11, generator=rng())
    if causal:  # the package's own causal form without a compiled extension
        expected = performer.causal_linear_attention_noncuda(phi(q), phi(k), v, eps=0.0)
    else:
        expected = performer.linear_attention(phi(q), phi(k), v)
    assert_close(linear_attention(q, k, v, phi, causal=causal), expected)


def performer_pytorch():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("performer_pytorch.performer_pytorch")


def test_errors_say_what_fits():
    q, k, v, mask = random_case()
    phi = ReLUFeatures(DIM, 11, generator=rng())
    with pytest.raises(ValueError, match=r"\(batch, heads, tokens.*\(2, 5, 7\)"):
        linear_attention(q[0], k, v, phi)
    with pytest.raises(ValueError, match=r"\(batch, tokens\).*\(2, 5\).*\(2, 4\)"):
        linear_attention(q, k, v, phi, mask=mask[:, :4])
    with pytest.raises(ValueError, match=r"boolean.*torch.float32.*mask.bool\(\)"):
        linear_attention(q, k, v, phi, mask=mask.float())
    with pytest.raises(ValueError, match=r"no tokens to attend to: pass at least one"):
        linear_attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], phi)
    with pytest.raises(ValueError, match=r"no tokens to attend to"):
        linear_attention(q[:0], k[:0], v[:0], phi)
    with pytest.raises(ValueError, match=r"chunk_size=0.*at least 1"):
        linear_attention(q, k, v, phi, causal=True, chunk_size=0)
    with pytest.raises(ValueError, match=r"dimension 4.*dim=7"):
        linear_attention(q, k, v, ReLUFeatures(4, 11))
