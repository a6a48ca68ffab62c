import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mimonets.attention import softmax_attention

BOTH = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_case(tokens: int = 5, dim: int = 7):
    q, k, v = (
        torch.randn(2, 2, tokens, dim, generator=rng(i), dtype=torch.float64) for i in range(3)
    )
    return q, k, v, torch.rand(2, tokens, generator=rng(3)) < 0.6


def softmax_loops(q, k, v, mask=None, causal=False) -> Tensor:
    batch, heads, tokens, dim = q.shape
    out = []
    for b in range(batch):
        real = [j for j in range(tokens) if mask is None or mask[b, j]]
        for h in range(heads):
            for i in range(tokens):
                seen = [j for j in real if i in real and (j <= i or not causal)]
                weights = [torch.exp(k[b, h, j] @ q[b, h, i] / math.sqrt(dim)) for j in seen]
                mixed = [w * v[b, h, j] for w, j in zip(weights, seen, strict=True)]
                out.append(sum(mixed) / sum(weights) if seen else 0 * v[b, h, i])
    return torch.stack(out).view_as(v)


def gradients(function, q, k, v, **kwargs) -> tuple[Tensor, ...]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = function(*inputs, **kwargs)
    probe = torch.randn(out.shape, generator=rng(9), dtype=out.dtype)
    return torch.autograd.grad((out * probe).sum(), inputs)


@BOTH
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_softmax_attention_matches_the_double_loop(causal, masked, tokens):
    q, k, v, mask = random_case(tokens)
    options = {"mask": mask if masked else None, "causal": causal}
    assert_close(softmax_attention(q, k, v, **options), softmax_loops(q, k, v, **options))
    assert_close(
        gradients(softmax_attention, q, k, v, **options),
        gradients(softmax_loops, q, k, v, **options),
    )


@BOTH
@pytest.mark.parametrize("position", range(5))
def test_a_padded_token_changes_nothing_in_any_position(causal, position):
    q, k, v, _ = random_case()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, position] = False
    kept = [i for i in range(5) if i != position]
    answer = softmax_attention(q, k, v, mask=mask, causal=causal)
    without = softmax_attention(*(x[:, :, kept] for x in (q, k, v)), causal=causal)
    assert_close(answer[:, :, kept], without)
    assert not answer[:, :, position].any()


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sequence_of_padding_only_gives_zeros(causal, dtype):
    q, k, v, _ = random_case()
    mask = torch.tensor([[False] * 5, [True] * 5])
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    answer = softmax_attention(q, k, v, mask=mask, causal=causal)
    assert not answer[0].any()
    assert answer[1].isfinite().all()
    for gradient in torch.autograd.grad(answer.float().sum(), (q, k, v)):
        assert gradient.isfinite().all()


def test_errors_say_what_fits():
    q, k, v, mask = random_case()
    with pytest.raises(ValueError, match=r"\(batch, heads, tokens.*\(2, 5, 7\)"):
        softmax_attention(q[0], k, v)
    with pytest.raises(ValueError, match=r"here \(2, 5\).*came as \(2, 4\)"):
        softmax_attention(q, k, v, mask=mask[:, :4])
