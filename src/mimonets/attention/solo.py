"""A grid of streams with every input alone: what the warm-ups train. Beyond the paper."""

from torch import Tensor

from mimonets.attention.favor_s import Normalise, check_streams
from mimonets.attention.features import FeatureMap
from mimonets.attention.linear import linear_attention
from mimonets.attention.softmax import softmax_attention
from mimonets.attention.sums import accumulation_dtype

# g groups   m, n the two stream axes   h heads   t tokens   d head size


def favor_solo(
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
    chunk_size: int = 128,
) -> Tensor:
    r"""Attend in every stream of the grid as if the others were empty.

    .. math::
        S_i^{(m,n)} = \frac{\sum_j (v_j \odot a) \, \phi(k_j \odot a)^T \phi(q_i \odot a)}
                           {\sum_j \phi(k_j \odot a)^T \phi(q_i \odot a)},
        \qquad o_i^{(m,n)} = S_i^{(m,n)} \odot a, \qquad a = a^{(m,n)}

    This is :func:`favor_s` on M x N grids of one stream, with the keys that each stream has in the
    superposition; so it costs what M x N inputs cost one by one. It is not plain linear attention:
    signs leave <q, k> as it is, but not the features, which read q and k in other directions.

    **Damping.** q and k keep the factor (M N)^(-1/2) of the superposition. The weights that a
    stream's own queries and keys ask for are then the same before and after the others join in.

    Arguments are those of :func:`favor_s`; ``normalise="stream"`` gives o, ``"joint"`` gives S,
    which is still bound.

    Returns:
        (g, m, n, h, t, d), whatever ``normalise`` is: nothing was added up.
    """
    keys = check_streams(q, k, v, stream_keys, mask, normalise).to(v.dtype).unsqueeze(-2)
    scale = (q.shape[1] * q.shape[2]) ** -0.5 if damping else 1.0
    dtype = accumulation_dtype(v)
    answers = linear_attention(
        (q.to(dtype) * keys * scale).flatten(0, 2),
        (k.to(dtype) * keys * scale).flatten(0, 2),
        (v * keys).flatten(0, 2),
        feature_map,
        mask=None if mask is None else mask.flatten(0, 2),
        causal=causal,
        chunk_size=chunk_size,
    ).unflatten(0, v.shape[:3])
    return answers * keys if normalise == "stream" else answers


def exact_solo(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    r"""Attend in every stream of the grid alone, with a softmax: :func:`softmax_attention`.

    No binding: the same +-1 key on q and k cancels in their dot product, and that of v is undone in
    the answer. No damping either: a Transformer with these weights gives the same answers. Without
    damping, :func:`favor_solo` with many :class:`SoftmaxFeatures` comes near to this.

    Arguments are those of :func:`favor_s`. If v is bound, so is the answer.
    """
    return softmax_attention(
        *(x.flatten(0, 2) for x in (q, k, v)),
        mask=None if mask is None else mask.flatten(0, 2),
        causal=causal,
    ).unflatten(0, v.shape[:3])
