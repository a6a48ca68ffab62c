"""What attention of every kind asks of its tokens and masks."""

import torch
from torch import Tensor


def check_tokens(q: Tensor, chunk_size: int = 1) -> None:
    """Refuse to attend to nothing, and chunks of nothing."""
    if any(size == 0 for size in q.shape):
        raise ValueError(
            f"In queries of shape {tuple(q.shape)} there are no tokens to attend to: pass at least "
            f"one sequence of at least one token."
        )
    if chunk_size < 1:
        raise ValueError(f"chunk_size={chunk_size} holds no token: take at least 1, such as 64.")


def check_heads(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, kind: str) -> None:
    """Refuse q, k and v that are not (b, h, t, d), alike but for the last axis of v."""
    if q.ndim != 4 or q.shape != k.shape or v.ndim != 4 or v.shape[:-1] != k.shape[:-1]:
        raise ValueError(
            f"q, k and v of {kind} attention are (batch, heads, tokens, head size), alike but for "
            f"the last axis of v, and came as {tuple(q.shape)}, {tuple(k.shape)} and "
            f"{tuple(v.shape)}."
        )
    check_mask(mask, (q.shape[0], q.shape[2]), "(batch, tokens)")


def check_mask(mask: Tensor | None, shape: tuple[int, ...], names: str) -> None:
    """Refuse a mask that is not boolean or not of the shape that ``names`` describes."""
    if mask is None:
        return
    if mask.dtype != torch.bool:
        raise ValueError(
            f"A mask is boolean, True = real token, but this one is {mask.dtype}: "
            f"pass mask.bool(), or tokens != padding_index."
        )
    if tuple(mask.shape) != shape:
        raise ValueError(f"The mask is {names}, here {shape}, and came as {tuple(mask.shape)}.")
