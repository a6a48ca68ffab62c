r"""Reading one value out of a superposition. MIMONets, appendix A.3.

The superposition is a sum of values bound to bipolar keys by the Hadamard product:
:math:`s = \sum_i a^{(i)} \odot x^{(i)}`. Nothing acts on it before it is read: these are bounds
for a memory, not for a network.
"""

import math

import torch
from torch import Tensor

from mimonets._config import is_integer
from mimonets.theory.dimensionality import check_counts
from mimonets.theory.tails import hoeffding_bound


def cleanup_noise_bound(values: Tensor, item: Tensor, stream: int, alpha: float) -> float:
    r"""Bound the chance that the other streams distort a comparison by more than ``alpha``.

    .. math::
        P\big(\langle s, a^{(k)} \odot \Omega \rangle \notin [1 - \alpha, 1 + \alpha]
        \langle x^{(k)}, \Omega \rangle\big) \le 2 \exp\Big(-\frac{\alpha^2
        \langle x^{(k)}, \Omega \rangle^2}{2 \sum_{i \ne k} \|x^{(i)} \odot \Omega\|^2}\Big)

    Appendix A.3, "Dictionary cleanup noise". Values and item are fixed, the keys are random.
    Above 1 it says nothing, and it always does where the value is orthogonal to the item.

    Args:
        values: (n, d), what the streams carry.
        item: (d,), the dictionary entry to compare with.
        stream: k, the stream that is read.
        alpha: The distortion, relative to the comparison without other streams.

    >>> signs = torch.tensor([[1.0, 1, 1, 1] * 16, [1.0, -1, 1, -1] * 16])
    >>> round(cleanup_noise_bound(signs, signs[0], stream=0, alpha=0.5), 6)  # 2 exp(-64 / 8)
    0.000671
    """
    if not is_integer(stream) or not 0 <= stream < len(values):
        raise ValueError(
            f"stream={stream} is none of the {len(values)} that values hold: pass an integer from "
            f"0 to {len(values) - 1}."
        )
    signal = alpha * abs(float(values[stream] @ item))
    others = torch.cat([values[:stream], values[stream + 1 :]])
    return hoeffding_bound(signal, (others * item).abs().flatten().tolist())


def cleanup_noise_typical(dim: int, num_streams: int, alpha: float, cosine: float = 1.0) -> float:
    r"""Give that bound for values of equal norm and unrelated directions.

    .. math:: 2 \exp\Big(-\frac{D \alpha^2 \cos^2 \angle(x^{(k)}, \Omega)}{2 (N - 1)}\Big)

    The paper's "typical scaling", which puts :math:`\|x \odot \Omega\|^2` at its mean
    :math:`\|x\|^2 \|\Omega\|^2 / D`. That is exact for bipolar values and items. It is *not* a
    bound for others: values that share a few large entries can exceed it by as much as probability
    allows.

    >>> round(cleanup_noise_typical(64, num_streams=2, alpha=0.5), 6)
    0.000671
    """
    check_counts(dim=dim, num_streams=num_streams)
    if num_streams == 1:
        return 0.0
    exponent = dim * alpha**2 * cosine**2 / (2 * (num_streams - 1))
    return 2 * math.exp(-exponent)


def wrong_item_bound(dim: int, num_streams: int, items: int) -> float:
    r"""Bound the chance that cleanup picks a wrong entry of a dictionary.

    .. math::
        P \le (K - 1) \Big(\frac{1 + e^{-1 / (2 (N - 1))}}{2}\Big)^D

    Not in the paper, whose theorem compares with one entry. The dictionary holds K independent
    bipolar vectors, and so do the other streams. Entry j beats the right one if
    :math:`\sum_d (1 - u_d) (1 + \sum_{i \ne k} \epsilon_d^{(i)}) \le 0` with fair signs u and
    :math:`\epsilon`; Chernoff's bound with :math:`\cosh(t) \le e^{t^2/2}`, and a union over the
    K - 1 others. With one stream it is the chance that two entries are equal.

    >>> round(wrong_item_bound(64, num_streams=4, items=10), 4)
    0.0543
    >>> wrong_item_bound(4, num_streams=1, items=2)
    0.0625
    """
    check_counts(dim=dim, num_streams=num_streams, items=items)
    damping = 0.0 if num_streams == 1 else math.exp(-1 / (2 * (num_streams - 1)))
    return float((items - 1) * ((1 + damping) / 2) ** dim)
