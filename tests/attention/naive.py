"""Linear attention and FAVOR+S as the paper writes them: quadratic in the tokens, easy to read.

The slow, obvious versions of :mod:`mimonets.attention.linear` and
:mod:`mimonets.attention.favor_s`, which tests compare with, gradients too.
"""

import torch
from torch import Tensor

from mimonets.attention.favor_s import Normalise
from mimonets.attention.features import FeatureMap

# b batch   g groups   m, n the two stream axes   h heads   t query, s key tokens   d head size


def naive_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    r"""Attend with the weights of all pairs of tokens. Appendix C.1.

    .. math:: o_i = \sum_j v_j \, \phi(k_j)^T \phi(q_i) \, / \, \sum_j \phi(k_j)^T \phi(q_i)

    Args:
        q: (b, h, t, d).
        k: (b, h, t, d).
        v: (b, h, t, d).
        feature_map: phi.
        mask: (b, t), True = real token.
        causal: Sum over j <= i only.
    """
    scores = feature_map(q) @ feature_map(k).mT  # b h t s
    if causal:
        scores = scores.tril()
    if mask is not None:
        scores = scores * (mask[:, None, :, None] & mask[:, None, None, :])
    return divide(scores @ v, scores.sum(dim=-1, keepdim=True))


def naive_favor_s(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stream_keys: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    normalise: Normalise = "stream",
    damping: bool = True,
) -> Tensor:
    """Attend in superposition: bundle, attend, separate. Section 4.1 and appendix C.3.

    The equation stands in :func:`mimonets.attention.favor_s`, and so do the arguments.
    """
    a = (stream_keys if stream_keys.ndim == 4 else stream_keys.unsqueeze(2)).unsqueeze(-2).to(v)
    real = torch.ones_like(q[:, :, :, 0, :, 0], dtype=torch.bool) if mask is None else mask
    scale = real[0, :, :, 0].numel() ** -0.5 if damping else 1.0  # (M N)^(-1/2)

    q, k, v = (x * a * real[:, :, :, None, :, None] for x in (q, k, v))
    q, k, v = scale * q.sum(dim=1), scale * k.sum(dim=2), v.sum(dim=2)

    scores = torch.einsum("gnhtr,gmhsr->gmnhts", feature_map(q), feature_map(k))
    scores = scores.tril() if causal else scores
    mixture = torch.einsum("gmnhts,gmhsd->gnhtd", scores, v)
    normaliser = torch.einsum("gmnhts,gmns->gmnht", scores, real.to(v)).unsqueeze(-1)

    if normalise == "joint":
        return divide(mixture, normaliser.sum(dim=1)) * real.any(dim=1)[:, :, None, :, None]
    return divide(mixture.unsqueeze(1), normaliser) * a * real[:, :, :, None, :, None]


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, and give zero where nothing answers."""
    empty = denominator == 0
    return torch.where(empty, 0.0, numerator / denominator.masked_fill(empty, 1.0))
