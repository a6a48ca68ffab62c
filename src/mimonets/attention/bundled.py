"""FAVOR+S for queries, keys and values that are in superposition already. Beyond the paper."""

from torch import Tensor

from mimonets.attention.features import FeatureMap
from mimonets.attention.sums import (
    accumulation_dtype,
    attend,
    cache_block,
    check_mask,
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
    chunk_size: int = 64,
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
    if q.ndim != 5 or k.shape != v.shape or q.shape[2:] != k.shape[2:] or len(q) != len(k):
        raise ValueError(
            f"Bundled q is (groups, n, heads, tokens, head size), k and v the same with m in place "
            f"of n, and they came as {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
        )
    check_mask(mask, (q.shape[0], m, n, q.shape[3]), "(groups, m, n, tokens)")
    with without_autocast(v):
        dtype = accumulation_dtype(v)
        scale = (m * n) ** -0.5 if damping else 1.0
        held = None if mask is None else mask.any(dim=2)[:, None, :, :, None]  # g 1 m t 1

        def queries(here: slice) -> Tensor:
            return q[..., here, :].to(dtype).transpose(1, 2) * scale  # g h n t d

        def keys_and_values(here: slice) -> tuple[Tensor, Tensor]:
            keys, values = (x[..., here, :].to(dtype).transpose(1, 2) for x in (k, v))
            if held is not None:  # where all streams of a bundle are padded there is no value
                values = values * held[..., here, :]
            return keys * scale, values  # g h m t d

        mixture, normaliser = attend(
            q.shape[3],
            queries,
            keys_and_values,
            feature_map,
            mask=None if mask is None else mask.unsqueeze(1),
            joint=True,
            chunk_size=chunk_size if causal else None,
            block_size=cache_block(q.shape[0] * q.shape[2] * max(m, n), feature_map),
        )
        inverse = reciprocal(normaliser).squeeze(-3)  # g h n t
        if mask is not None:
            inverse = inverse * mask.any(dim=1).unsqueeze(1)
        return (mixture * inverse.unsqueeze(-1)).transpose(1, 2).to(v.dtype)
