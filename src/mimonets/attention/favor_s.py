"""FAVOR+S: linear attention of a grid of streams in superposition. Section 4.1 and appendix C.3."""

from typing import Literal

from torch import Tensor

from mimonets.attention.checks import check_mask, check_tokens
from mimonets.attention.features import FeatureMap
from mimonets.attention.sums import (
    accumulation_dtype,
    attend,
    reciprocal,
    without_autocast,
)

# g groups   m, n the two stream axes   h heads   t tokens   d head size

Normalise = Literal["stream", "joint"]
CHUNK_SIZE = 64  # tokens; half of what one stream takes: M x N scores per pair of tokens


def favor_s(
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
    chunk_size: int = CHUNK_SIZE,
) -> Tensor:
    r"""Attend in M x N streams at about the price of max(M, N) of them.

    With every q, k and v bound to the key of its stream, :math:`x^{(m,n)} \odot a^{(m,n)}`:

    .. math::
        S_i^{(n)} = \Big[\sum_j \sum_u \Big(\sum_w v_j^{(u,w)}\Big)
                    \phi\Big(\sum_w k_j^{(u,w)}\Big)^T\Big] \, \phi\Big(\sum_u q_i^{(u,n)}\Big)
        \qquad
        B_i^{(m,n)} = \sum_j \phi\Big(\sum_w k_j^{(m,w)}\Big)^T \phi\Big(\sum_u q_i^{(u,n)}\Big)

    * ``normalise="stream"`` unbinds: :math:`o_i^{(m,n)} = S_i^{(n)} \odot a^{(m,n)} / B_i^{(m,n)}`.
    * ``normalise="joint"`` stays in superposition over m:
      :math:`\bar S_i^{(n)} = S_i^{(n)} / \sum_m B_i^{(m,n)}`.

    **Crosstalk.** The attention *weights* of a stream approach those it would have alone, with an
    error of order D^(-1/2). Its *answer* contains the values of the other streams too, each with a
    random sign per entry: its distance to the exact answer does not shrink with D. But the inner
    product of those values with any fixed vector, such as a row of the next linear layer, shrinks
    as D^(-1/2).

    **Damping.** The norm of a bundle grows with the number of its streams, and that of the noise in
    <q, k> with it. By default the bundled q and k are each multiplied by (M N)^(-1/2), M x N the
    grid of this call. The paper's equations do not have this factor, its authors' code does, and
    training without it is unstable. ``damping=False`` is the paper's equation.

    **Masks.** Streams of one group may differ in length. A padded token enters no bundle and no
    normaliser: it changes nothing in any stream, and its own answer is zero.

    Args:
        q: (g, m, n, h, t, d), not yet bound.
        k: (g, m, n, h, t, d), not yet bound.
        v: (g, m, n, h, t, d), not yet bound.
        stream_keys: a, bipolar, (m, n, d) for all heads or (m, n, h, d). A larger set serves a
            smaller grid with its first m x n keys.
        feature_map: Such as ``ReLUFeatures(d, 256)``.
        mask: (g, m, n, t), True = real token.
        causal: Sum over j <= i only.
        normalise: Per stream or jointly, as above.
        damping: Whether to multiply q and k by (M N)^(-1/2), as above.
        chunk_size: Tokens that causal attention compares directly, at M N chunk_size r operations
            a token; see :func:`linear_attention`.

    Returns:
        (g, m, n, h, t, d) for ``"stream"``, (g, n, h, t, d) for ``"joint"``.
    """
    stream_keys = check_streams(q, k, v, stream_keys, mask, normalise)
    check_tokens(q, chunk_size)
    with without_autocast(v):
        bundles, keys = _bundles(q, k, v, stream_keys, mask, damping)
        sums = attend(
            *bundles,
            feature_map,
            mask=weights(mask),
            joint=normalise == "joint",
            chunk_size=chunk_size if causal else None,
        )
        return answers(*sums, feature_map, mask, None if normalise == "joint" else keys).to(v.dtype)


def favor_s_bundled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    damping: bool = True,
    chunk_size: int = CHUNK_SIZE,
) -> Tensor:
    r"""Attend in superposition, with bundles that were made before the projections.

    .. math::
        \bar S_i^{(n)} = \frac{\bigl[\sum_j \sum_u v_j^{(u)} \phi(k_j^{(u)})^T\bigr] \,
            \phi(q_i^{(n)})}{\sum_m \sum_j \phi(k_j^{(m)})^T \phi(q_i^{(n)})}

    This is :func:`favor_s` with ``normalise="joint"``, minus the binding: q arrives bundled over
    m, (g, n, h, t, d), k and v over n, (g, m, h, t, d), and padded tokens are expected to be in no
    bundle. The mask weighs the normaliser and silences empty places. Beyond the paper.

    Returns:
        (g, n, h, t, d), superposed over m.
    """
    m, n = k.shape[1], q.shape[1]
    if q.ndim != 5 or k.shape != v.shape or q.shape[2:] != k.shape[2:] or q.shape[0] != k.shape[0]:
        raise ValueError(
            f"Bundled q is (groups, n, heads, tokens, head size), k and v the same with m in place "
            f"of n, and they came as {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    check_mask(mask, (q.shape[0], m, n, q.shape[3]), "(groups, m, n, tokens)")
    check_tokens(q, chunk_size)
    with without_autocast(v):
        scale = (m * n) ** -0.5 if damping else 1.0
        q, k, v_heads = (x.to(accumulation_dtype(v)).transpose(1, 2) for x in (q, k, v))
        if mask is not None:  # nothing is mixed from places where all streams are padded
            v_heads = v_heads * mask.any(dim=2)[:, None, :, :, None]
        sums = attend(
            q * scale,
            k * scale,
            v_heads,
            feature_map,
            mask=weights(mask),
            joint=True,
            chunk_size=chunk_size if causal else None,
        )
        return answers(*sums, feature_map, mask).to(v.dtype)


def _bundles(
    q: Tensor, k: Tensor, v: Tensor, stream_keys: Tensor, mask: Tensor | None, damping: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Bind and bundle q over m, k and v over n; beside them the keys of v, (m, n, h, 1, d)."""
    keys = stream_keys.to(accumulation_dtype(v)).unsqueeze(-2)
    damped = keys * (keys.shape[0] * keys.shape[1]) ** -0.5 if damping else keys
    bound = bundle(q, damped, mask, over="m"), bundle(k, damped, mask, over="n")
    return (*bound, bundle(v, keys, mask, over="n")), keys


def bundle(x: Tensor, keys: Tensor, mask: Tensor | None, over: Literal["m", "n"]) -> Tensor:
    """Bind the real tokens of every stream and add them up: (g, m, n, h, t, d) -> (g, h, .., t, d).

    One stream at a time: the product of all of them would be as large as x again. The sum may be
    updated in place, since no gradient needs its earlier values.
    """
    axis = 0 if over == "m" else 1
    if mask is not None:
        x = x.masked_fill(~mask[:, :, :, None, :, None], 0.0)
    (first, first_key), *others = zip(x.unbind(axis + 1), keys.unbind(axis), strict=True)
    total = first * first_key
    for stream, key in others:
        total.addcmul_(stream, key)
    return total.transpose(1, 2)


def answers(
    mixture: Tensor,
    normaliser: Tensor,
    feature_map: FeatureMap,
    mask: Tensor | None,
    keys: Tensor | None = None,
) -> Tensor:
    """Normalise (g, h, n, t, d) jointly over m: (g, n, h, t, d), zero where all m are padded.

    With ``keys`` normalise and unbind every stream: (g, m, n, h, t, d), zero where it is padded.
    """
    inverse = reciprocal(normaliser, mixture, feature_map.ceiling)  # g h m n t
    if keys is None:
        inverse = inverse.squeeze(2)  # g h n t
        if mask is not None:
            inverse = inverse * mask.any(dim=1).unsqueeze(1)
        return (mixture * inverse.unsqueeze(-1)).transpose(1, 2)
    inverse = inverse.permute(0, 2, 3, 1, 4)  # g m n h t
    if mask is not None:
        inverse = inverse * mask.unsqueeze(3)
    unbound = mixture.transpose(1, 2).unsqueeze(1) * keys
    return unbound.mul_(inverse.unsqueeze(-1))


def weights(mask: Tensor | None) -> Tensor | None:
    """Give a mask (g, m, n, t) the axis of heads."""
    return None if mask is None else mask.unsqueeze(1)


def check_streams(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stream_keys: Tensor,
    mask: Tensor | None,
    normalise: str,
) -> Tensor:
    """Refuse what does not fit; return the keys of this grid, (m, n, h, d) or (m, n, 1, d)."""
    if q.ndim != 6 or not q.shape == k.shape == v.shape:
        raise ValueError(
            f"q, k and v of favor_s are (groups, m, n, heads, tokens, head size), all alike, and "
            f"came as {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    _, m, n, heads, tokens, dim = q.shape
    if stream_keys.ndim == 3:
        stream_keys = stream_keys.unsqueeze(2)
    if (
        stream_keys.ndim != 4
        or stream_keys.shape[0] < m
        or stream_keys.shape[1] < n
        or stream_keys.shape[2] not in (1, heads)
        or stream_keys.shape[3] != dim
    ):
        raise ValueError(
            f"A grid of {m} x {n} streams with {heads} heads of size {dim} needs stream keys of "
            f"shape ({m}, {n}, {dim}) or ({m}, {n}, {heads}, {dim}), or of a larger grid, and got "
            f"{tuple(stream_keys.shape)}."
        )
    if normalise not in ("stream", "joint"):
        raise ValueError(
            f'normalise={normalise!r} is unknown: take "stream" for an answer per stream, or '
            f'"joint" to stay in superposition.'
        )
    check_mask(mask, (q.shape[0], m, n, tokens), "(groups, m, n, tokens)")
    return stream_keys[:m, :n]
