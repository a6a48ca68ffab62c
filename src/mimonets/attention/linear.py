"""Linear attention: FAVOR+, or whatever the feature map makes of it. Appendix C.1.

The one-stream baseline of FAVOR+S, in time and memory proportional to the number of tokens.
"""

from torch import Tensor

from mimonets.attention.checks import check_heads, check_tokens
from mimonets.attention.favor_s import answers, weights
from mimonets.attention.features import FeatureMap
from mimonets.attention.sums import (
    accumulation_dtype,
    attend,
    without_autocast,
)

# b batch   h heads   t tokens   d head size


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    chunk_size: int = 128,
) -> Tensor:
    r"""Attend to every token, or to every token so far.

    .. math::
        o_i = \frac{\sum_j v_j \, \phi(k_j)^T \phi(q_i)}{\sum_j \phi(k_j)^T \phi(q_i)}
            = \frac{A \, \phi(q_i)}{C \, \phi(q_i)},
        \qquad A = \sum_j v_j \phi(k_j)^T, \quad C = \sum_j \phi(k_j)^T

    A padded token changes nothing, wherever it stands, and its own answer is zero. The sums are
    taken in float32 even under autocast.

    Args:
        q: (b, h, t, d).
        k: (b, h, t, d).
        v: (b, h, t, d), or another size in place of d.
        feature_map: Such as ``ReLUFeatures(d, 256)``.
        mask: (b, t), True = real token.
        causal: Sum over j <= i only.
        chunk_size: Tokens that causal attention compares directly, before it falls back on A and
            C. With :class:`SoftmaxFeatures` they also share a scale: if all weights of a token are
            e^87 times smaller than those of later tokens of its chunk, its answer is zero.

    Returns:
        (b, h, t, d), like v.
    """
    check_heads(q, k, v, mask, "linear")
    check_tokens(q, chunk_size)
    with without_autocast(v):
        grid, mask = _as_grid(q, k, v, mask)
        chunks = chunk_size if causal else None
        sums = attend(*grid, feature_map, mask=weights(mask), joint=True, chunk_size=chunks)
        return answers(*sums, feature_map, mask).squeeze(1).to(v.dtype)


def _as_grid(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor | None]:
    """Take one stream as a grid of 1 x 1, with nothing in the padding: (b, h, 1, t, d)."""
    q, k, v = (x.unsqueeze(2).to(accumulation_dtype(x)) for x in (q, k, v))
    if mask is None:
        return (q, k, v), None
    padded = ~mask[:, None, None, :, None]
    q, k, v = (x.masked_fill(padded, 0.0) for x in (q, k, v))
    return (q, k, v), mask[:, None, None]
