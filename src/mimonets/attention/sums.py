"""The sums of linear attention, of one stream or of a grid of them. Appendices C.1 and C.3.

Linear attention needs two sums over keys and values: the matrix A of values times keys, and the
vector C of the normaliser. This file builds them, carries them from chunk to chunk, and multiplies
them with queries. Plain linear attention is the case m = n = 1.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from mimonets.attention.features import FeatureMap

# ... groups and heads   m, n the two stream axes   t query, s key tokens   d head size   r features

BLOCK = 2**20  # numbers, 4 MB: features that are used up while they are still in the cache


class AttentionState(NamedTuple):
    """What linear attention remembers of the tokens so far; its size does not grow with them."""

    context: Tensor  # A, (..., r, d), summed over m
    weight: Tensor  # C, (..., m or 1, n or 1, r): m = 1 if joint, n = 1 if nothing is masked
    peak: Tensor | None  # (..., 1, 1, r or 1), logarithm of the scale of both, if there is one


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None,
    joint: bool,
    chunk_size: int | None,
) -> tuple[Tensor, Tensor]:
    r"""Mix the values of all m, and give the normaliser of each (m, n) beside it.

    .. math::
        S_i^{(n)} = A \, \phi(q_i^{(n)}), \quad A = \sum_{j, m} v_j^{(m)} \phi(k_j^{(m)})^T
        \qquad
        B_i^{(m,n)} = C^{(m,n)} \phi(q_i^{(n)}), \quad
        C^{(m,n)} = \sum_j w_j^{(m,n)} \phi(k_j^{(m)})^T

    Args:
        q: (..., n, t, d).
        k: (..., m, t, d).
        v: (..., m, t, d), zero where tokens are padded.
        feature_map: phi.
        mask: The weights w, (..., m, n, t): True = real token; None if all are.
        joint: Sum the normaliser over m, which is cheaper than doing so afterwards.
        chunk_size: For causal attention, which sums over :math:`j \le i`: how many tokens compare
            their scores directly; A and C hold what lies before them. Memory grows with the number
            of tokens, not with tokens x r x d. None to attend to all tokens.

    Returns:
        S, (..., n, t, d), and B, (..., m, n, t); of size 1 along m if joint. Both carry the same
        factor per query, which only their ratio is free of.
    """
    if chunk_size is not None and works_at_once(q):
        return attend_in_parallel(q, k, v, feature_map, mask=mask, joint=joint, size=chunk_size)
    size = chunk_size or cache_size(q, k, feature_map)
    state, parts = None, []
    queries, keys, values = (split_tokens(x, size) for x in (q, k, v))
    masks = [None] * len(keys) if mask is None else split_tokens(mask, size, dim=-1)
    if chunk_size is None:
        for key, value, real in zip(keys, values, masks, strict=True):
            phi_k, peak = _key_features(key, feature_map, state, real)
            added = _sums(phi_k, value, real, joint, peak)
            state = added if state is None else _add(_rescale(state, peak), added)
        assert state is not None
        columns = _columns(state)
        for query in queries:
            phi_q = feature_map.queries(query, state.peak)
            parts.append(_read(phi_q, columns, v.shape[-1]))
    else:
        chunks = list(zip(queries, keys, values, masks, strict=True))
        for place, (query, key, value, real) in enumerate(chunks):
            last = place == len(chunks) - 1  # no later chunk needs its sums
            mixture, normaliser, state = advance(
                query, key, value, feature_map, state, mask=real, joint=joint, last=last
            )
            parts.append((mixture, normaliser))
    mixtures, normalisers = zip(*parts, strict=True)
    return torch.cat(mixtures, dim=-2), torch.cat(normalisers, dim=-1)


def attend_in_parallel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    *,
    mask: Tensor | None,
    joint: bool,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Attend causally as :func:`attend` does, in all chunks at once.

    No loop depends on the number of tokens, so a GPU is not kept waiting for many small operators,
    and a graph that is traced once serves every length. It holds A and C of every chunk, and with
    :class:`SoftmaxFeatures` all tokens share a scale, not those of a chunk only.
    """
    phi_k, peak = _key_features(k, feature_map, None, mask)
    tokens = q.shape[-2]
    chunks = (tokens + size - 1) // size
    if torch.compiler.is_exporting():
        chunks = torch.sym_max(2, chunks)  # an axis of 1 is traced as fixed
    phi_q, phi_k, v = (
        _in_chunks(x, chunks, size) for x in (feature_map.queries(q, peak), phi_k, v)
    )
    if mask is not None:  # as a tensor whose last axis but one is that of tokens, too
        mask = _in_chunks(mask.unsqueeze(-1).to(v.dtype), chunks, size, streams=2).squeeze(-1)
    mixture, normaliser = _within(phi_q, phi_k, v, mask, joint)
    sums = _sums(phi_k, v, mask, joint, None)
    before = AttentionState(_before(sums.context, -3), _before(sums.weight, -4), None)
    mixture_before, normaliser_before = _read(phi_q, _columns(before), v.shape[-1])
    mixture = (mixture + mixture_before).movedim(-4, -3)  # ... n c t d
    normaliser = (normaliser + normaliser_before).movedim(-4, -2)  # ... m n c t
    return (
        mixture.flatten(-3, -2).narrow(-2, 0, tokens),
        normaliser.flatten(-2).narrow(-1, 0, tokens),
    )


def advance(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    state: AttentionState | None,
    *,
    mask: Tensor | None,
    joint: bool,
    last: bool = False,
) -> tuple[Tensor, Tensor, AttentionState | None]:
    """Attend to the tokens of ``state`` and, causally, to these; give the state that knows both.

    Shapes are those that :func:`attend` names. After the ``last`` tokens there is no state.
    """
    phi_k, peak = _key_features(k, feature_map, state, mask)
    phi_q = feature_map.queries(q, peak)
    mixture, normaliser = _within(phi_q, phi_k, v, mask, joint)
    if state is not None:
        state = _rescale(state, peak)
        mixture_before, normaliser_before = _read(phi_q, _columns(state), v.shape[-1])
        mixture, normaliser = mixture + mixture_before, normaliser + normaliser_before
    if last:
        return mixture, normaliser, None
    added = _sums(phi_k, v, mask, joint, peak)
    return mixture, normaliser, added if state is None else _add(state, added)


def reciprocal(normaliser: Tensor, mixture: Tensor, ceiling: float) -> Tensor:
    r"""Give 1 / B, and zero for a query that none of its stream's keys answers.

    That is a query before the first real token, one of a stream of padding only, or one whose B
    is lost in rounding: below eps^2 of what all m have together.

    **Range.** With :math:`\phi \le c`, gradients with respect to features reach
    :math:`c \, S / B^2`. So B is also taken as zero where that is above 2^-44 of the largest
    number there is, which leaves a factor of 2^44 to the gradient of the answer and to sums over
    tokens. With :math:`c = 2^{42}` and one stream, B can lie between :math:`2^{-42}` and
    :math:`2^{84}` times the number of features and tokens: as wide a range as float32 has.

    Args:
        normaliser: B, (..., m, n, t).
        mixture: S, (..., n, t, d).
        ceiling: c, as the feature map has it.
    """
    limits = torch.finfo(normaliser.dtype)
    scale = normaliser.detach()
    together = scale.sum(dim=-3, keepdim=True)
    size = torch.maximum(mixture.detach().amax(dim=-1), -mixture.detach().amin(dim=-1))  # ... n t
    largest = torch.maximum(together, size.unsqueeze(-3))
    lowest = largest.sqrt() * (ceiling * 2.0**44 / limits.max) ** 0.5
    empty = scale <= torch.maximum(limits.eps**2 * together, lowest)
    scale = scale.masked_fill(empty, 1.0).reciprocal()
    # 1 / B = scale / (B scale). The gradient of 1 / B squares it; that of this divides twice.
    relative = normaliser * scale  # 1, up to rounding
    inverse = scale / (1 + (relative - relative.detach()))
    return inverse.masked_fill(empty, 0.0)


def cache_size(q: Tensor, k: Tensor, feature_map: FeatureMap) -> int | None:
    """How many tokens to work on at once where their order does not matter; None for all of them.

    This changes only the speed: on a CPU, features of that many tokens should fit the cache.
    """
    if works_at_once(q):
        return None
    rows = max(q[..., 0, 0].numel(), k[..., 0, 0].numel())  # of features per token
    return max(64, BLOCK // (rows * feature_map.num_features))


def works_at_once(x: Tensor) -> bool:
    """Tell whether few large operators are faster than many small ones: on a GPU, and compiled."""
    return x.device.type != "cpu" or torch.compiler.is_compiling()


def split_tokens(x: Tensor, size: int | None, dim: int = -2) -> tuple[Tensor, ...]:
    """Cut the tokens of x into pieces of this size; the gradient puts them together in one go."""
    return (x,) if size is None else torch.split(x, size, dim=dim)


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Choose what sums over tokens are taken in: float32, or float64 if that is what came."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Keep autocast from rounding the factors of the sums over tokens."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _key_features(
    k: Tensor, feature_map: FeatureMap, state: AttentionState | None, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    visible = None if mask is None else mask.any(dim=-2)
    return feature_map.keys(k, visible, None if state is None else state.peak)


def _sums(
    phi_k: Tensor, v: Tensor, mask: Tensor | None, joint: bool, peak: Tensor | None
) -> AttentionState:
    """Build A and the C of every stream in one product, with the weights as columns beside v."""
    if mask is None:
        columns = v.new_ones(1).expand(*v.shape[:-1], 1)  # ... m s 1
    else:
        columns = mask.mT.to(v.dtype).expand(*v.shape[:-1], -1)  # ... m s n
    sums = phi_k.mT @ torch.cat([v, columns], dim=-1)  # ... m r (d + n)
    context, weight = torch.split(sums, [v.shape[-1], columns.shape[-1]], dim=-1)
    weight = weight.mT.sum(dim=-3, keepdim=True) if joint else weight.mT
    return AttentionState(context.sum(dim=-3), weight, peak)


def _columns(state: AttentionState) -> Tensor:
    """Put A and the C of every stream side by side: (..., n or 1, r, d + m)."""
    weight = state.weight.movedim(-3, -1)  # ... n r m
    context = state.context.unsqueeze(-3).expand(*weight.shape[:-1], -1)  # ... n r d
    return torch.cat([context, weight], dim=-1)


def _read(phi_q: Tensor, columns: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Multiply the queries with A, of values of this size, and with the Cs, in one product."""
    if columns.shape[-3] == 1:  # the same for all n: one large product in place of n
        both = phi_q.flatten(-3, -2) @ columns.squeeze(-3)
        both = both.view(*phi_q.shape[:-1], -1)
    else:
        both = phi_q @ columns  # ... n t (d + m)
    mixture, normaliser = torch.split(both, [size, columns.shape[-1] - size], dim=-1)
    return mixture, normaliser.movedim(-1, -3)


def _within(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, mask: Tensor | None, joint: bool
) -> tuple[Tensor, Tensor]:
    """Attend causally among the tokens of one chunk, with a score for every pair of them."""
    n, t, m = phi_q.shape[-3], phi_q.shape[-2], phi_k.shape[-3]
    scores = phi_q.flatten(-3, -2) @ phi_k.flatten(-3, -2).mT  # ... (n t) (m s)
    past = torch.ones(t, t, dtype=scores.dtype, device=v.device).tril_().unsqueeze(-2)
    scores = scores.view(*scores.shape[:-2], n, t, m, t) * past  # ... n t m s
    mixture = scores.flatten(-2).flatten(-3, -2) @ v.flatten(-3, -2)  # ... (n t) d
    if mask is not None:
        weights = mask.movedim(-3, -2).unsqueeze(-3)  # ... n 1 m s
        scores = scores * weights
    normaliser = scores.sum(dim=(-2, -1)).unsqueeze(-1) if joint else scores.sum(dim=-1)
    return mixture.view(*mixture.shape[:-2], n, t, -1), normaliser.movedim(-1, -3)


def _in_chunks(x: Tensor, chunks: int, size: int, streams: int = 1) -> Tensor:
    """Cut (..., m, t, d) into (..., c, m, t, d), the last chunk filled with zeros."""
    missing = chunks * size - x.shape[-2]
    x = torch.nn.functional.pad(x, (0, 0, 0, missing)).unflatten(-2, (chunks, size))
    return x.movedim(-3, -3 - streams)


def _before(sums: Tensor, dim: int) -> Tensor:
    """Add up what the chunks before each chunk hold, along the axis of chunks."""
    total = sums.cumsum(dim)
    first = torch.zeros_like(total.narrow(dim, 0, 1))
    return torch.cat([first, total], dim).narrow(dim, 0, sums.shape[dim])


def _rescale(state: AttentionState, peak: Tensor | None) -> AttentionState:
    """Bring the sums so far to the scale of a new, higher peak."""
    if peak is None or state.peak is None:
        return state
    decay = torch.exp(state.peak - peak)  # ... 1 1 r
    return AttentionState(state.context * decay.squeeze(-3).mT, state.weight * decay, peak)


def _add(before: AttentionState, added: AttentionState) -> AttentionState:
    """Join two states of the same scale."""
    context, weight = before.context + added.context, before.weight + added.weight
    return AttentionState(context, weight, added.peak)
