"""FAVOR+S for queries, keys and values that are in superposition already. Beyond the paper."""

from torch import Tensor

from mimonets.attention.features import FeatureMap
from mimonets.attention.sums import (
    accumulation_dtype,
    attend,
    check_mask,
    mask_pieces,
    piece_size,
    pieces,
    reciprocal,
    without_autocast,
)

# g groups   m, n the two stream axes   h heads   t tokens   d head size


def favor_s_bundled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    damping: bool = True,
    chunk_size: int = 32,
) -> Tensor:
    r"""Attend in superposition, with bundles that were made before the projections.

    .. math::
        \bar S_i^{(n)} = \frac{\bigl[\sum_j \sum_u v_j^{(u)} \phi(k_j^{(u)})^T\bigr] \,
            \phi(q_i^{(n)})}{\sum_m \sum_j \phi(k_j^{(m)})^T \phi(q_i^{(n)})}

    This is :func:`favor_s` with ``normalise="joint"``, minus the binding: q arrives bundled over
    m, k and v over n, and padded tokens are expected to be in no bundle.

    Args:
        q: (g, n, h, t, d).
        k: (g, m, h, t, d).
        v: (g, m, h, t, d).
        feature_map: phi.
        mask: (g, m, n, t), True = real token; weighs the normaliser and silences empty places.
        causal: Sum over j <= i only.
        damping: Whether to multiply q and k by (M N)^(-1/2), as :func:`favor_s` does.
        chunk_size: Tokens that causal attention compares directly.

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
    tokens, rows = q.shape[3], q.shape[0] * q.shape[2] * max(m, n)
    size = piece_size(tokens, rows, feature_map, chunk_size if causal else None, q.device)
    masks = mask_pieces(mask, size, tokens)
    with without_autocast(v):
        dtype = accumulation_dtype(v)
        scale = (m * n) ** -0.5 if damping else 1.0
        mixture, normaliser = attend(
            (piece.to(dtype).transpose(1, 2) * scale for piece in pieces(q, size)),
            (
                (
                    k_piece.to(dtype).transpose(1, 2) * scale,
                    _without_padding(v_piece.to(dtype).transpose(1, 2), real),
                    None if real is None else real.unsqueeze(1),  # g 1 m n t
                )
                for k_piece, v_piece, real in zip(
                    pieces(k, size), pieces(v, size), masks, strict=True
                )
            ),
            feature_map,
            joint=True,
            causal=causal,
        )
        inverse = reciprocal(normaliser, mixture, feature_map.ceiling).squeeze(-3)  # g h n t
        if mask is not None:
            inverse = inverse * mask.any(dim=1).unsqueeze(1)
        return (mixture * inverse.unsqueeze(-1)).transpose(1, 2).to(v.dtype)


def _without_padding(v: Tensor, mask: Tensor | None) -> Tensor:
    """Empty the values, (g, h, m, t, d), where all streams of a bundle are padded."""
    return v if mask is None else v * mask.any(dim=2)[:, None, :, :, None]
