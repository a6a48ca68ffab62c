"""Softmax attention, the baseline that linear attention approximates. MIMONets, section 4."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets.attention.checks import check_heads

# b batch   h heads   t query, s key tokens   d head size


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    r"""Attend to every token, or to every token so far, in time quadratic in their number.

    .. math::
        o_i = \sum_j v_j \, \frac{\exp(\langle k_j, q_i \rangle / \sqrt D)}
                                 {\sum_l \exp(\langle k_l, q_i \rangle / \sqrt D)}

    A padded token changes nothing, wherever it stands, and its own answer is zero; so is that of
    every token of a sequence of padding only.

    Arguments are those of :func:`linear_attention`, and ``dropout``: the probability with which a
    weight becomes 0; the others grow to make up for it.

    >>> v = torch.tensor([[[[2.0], [4.0]]]])
    >>> softmax_attention(torch.zeros(1, 1, 2, 1), torch.ones(1, 1, 2, 1), v, causal=True).flatten()
    tensor([2., 3.])
    """
    check_heads(q, k, v, mask, "softmax")
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
    allowed = mask[:, None, None, :]  # b 1 t s
    if causal:
        tokens = mask.shape[-1]
        past = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril()
        allowed = allowed & past
    # A padded query may look at everything: a softmax over nothing would be 0 / 0, and its answer
    # is thrown away. A real one always sees at least itself.
    padded = ~mask[:, None, :, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | padded, dropout_p=dropout)
    return out.masked_fill(padded, 0.0)
