"""Put a batch into streams and take the answers out again. MIMONets, sections 2 and A.4.

A *group* is the set of inputs that share one pass. With A active inputs and N streams, stream k
carries input k mod A of its group: each input sits in N/A streams, rounded up or down. The last
group of a batch may be short; its inputs then spread over all N streams by the same rule, so that
no stream is ever empty and no input is ever lost.
"""

import math
from numbers import Integral

import torch
from torch import Tensor

# b batch   g groups   a active inputs of a group   s streams


def check_active_streams(active_streams: int | None, num_streams: int) -> int:
    """Return how many inputs share a pass; ``None`` means as many as there are streams.

    >>> check_active_streams(None, num_streams=4), check_active_streams(3, num_streams=4)
    (4, 3)
    """
    if active_streams is None:
        return num_streams
    if isinstance(active_streams, bool) or not isinstance(active_streams, int | Integral):
        raise ValueError(
            f"active_streams={active_streams!r} must be an integer: "
            f"pass one from 1 (slow) to {num_streams} (fast), or None for {num_streams}."
        )
    if not 1 <= active_streams <= num_streams:
        raise ValueError(
            f"active_streams={active_streams} does not fit {num_streams} superposition streams: "
            f"pass one from 1 (slow) to {num_streams} (fast)."
        )
    return int(active_streams)


def squarest_grid(count: int) -> tuple[int, int]:
    """Find rows and columns that hold ``count`` streams, as near to a square as integers allow.

    >>> [squarest_grid(count) for count in (1, 2, 4, 8, 16, 7)]
    [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (1, 7)]
    """
    rows = next(rows for rows in range(math.isqrt(count), 0, -1) if count % rows == 0)
    return rows, count // rows


def stream_assignment(active: int, num_streams: int, device: torch.device | None = None) -> Tensor:
    """Which input of its group each stream carries, (s,): stream k carries input k mod A.

    >>> stream_assignment(2, num_streams=4).tolist()      # 2 divides 4: two streams each
    [0, 1, 0, 1]
    >>> stream_assignment(3, num_streams=4).tolist()      # 3 does not: the first input gets two
    [0, 1, 2, 0]
    """
    check_active_streams(active, num_streams)
    return torch.arange(num_streams, device=device) % active


def whole_and_short_groups(x: Tensor, active: int) -> list[Tensor]:
    """Split a batch into its whole groups and, if inputs are left over, one short group.

    Nothing is copied. For ``active=4``, ten inputs give parts of shape (2, 4, ...) and (1, 2, ...).

    Args:
        x: (b, ...).

    Returns:
        One or two parts, each (g, a, ...).

    >>> [tuple(part.shape) for part in whole_and_short_groups(torch.zeros(10, 5), active=4)]
    [(2, 4, 5), (1, 2, 5)]
    """
    if x.shape[0] == 0:
        raise ValueError("An empty batch has no groups: pass at least one input.")
    groups, left_over = x.shape[0] // active, x.shape[0] % active
    if _is_all(x, groups * active):
        return [x.unflatten(0, (groups, active))]
    parts = []
    if groups:
        parts.append(x[: groups * active].unflatten(0, (groups, active)))
    if left_over:
        parts.append(x[groups * active :].unsqueeze(0))
    return parts


def _is_all(x: Tensor, count: int | torch.SymInt) -> bool:
    """Whether the first ``count`` are all of x; while a graph is traced, whether that is certain.

    Exported graphs would copy x to take a slice of all of it.
    """
    if isinstance(count, int):
        return x.shape[0] == count
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(x.shape[0] == count)


def fold_streams(x: Tensor, num_streams: int, active_streams: int | None = None) -> Tensor:
    """Put a batch of any size into streams, copying inputs where a group has more streams.

    A batch of whole groups with all streams busy is not copied: the result is a view of it.

    Args:
        x: (b, ...).

    Returns:
        (g, s, ...) with g = ceil(b / active_streams).

    >>> fold_streams(torch.arange(5), num_streams=4, active_streams=2)
    tensor([[0, 1, 0, 1],
            [2, 3, 2, 3],
            [4, 4, 4, 4]])
    """
    active = check_active_streams(active_streams, num_streams)
    parts = whole_and_short_groups(x, active)
    if len(parts) == 1 and active == num_streams and parts[0].shape[1] == num_streams:
        return parts[0]  # nothing to copy
    return torch.cat(
        [part[:, stream_assignment(part.shape[1], num_streams, x.device)] for part in parts]
    )


def average_copies(x: Tensor, active: int) -> Tensor:
    """Average the streams that carry the same input: (g, s, ...) -> (g, a, ...).

    >>> average_copies(torch.tensor([[1.0, 10.0, 3.0]]), active=2)   # streams 0 and 2 share
    tensor([[ 2., 10.]])
    """
    num_streams = x.shape[1]
    if active == num_streams:
        return x
    if num_streams % active == 0:
        return x.unflatten(1, (-1, active)).mean(dim=1)
    assignment = stream_assignment(active, num_streams, x.device)
    each, more = num_streams // active, num_streams % active  # the first have one stream more
    copies = torch.tensor([each + (i < more) for i in range(active)], dtype=x.dtype).to(x.device)
    total = x.new_zeros(x.shape[0], active, *x.shape[2:]).index_add(1, assignment, x)
    return total / copies.view(-1, *[1] * (x.ndim - 2))


def unfold_streams(x: Tensor, batch_size: int, active_streams: int | None = None) -> Tensor:
    """Take the answers out of their streams, in order and as many as there were inputs.

    The inverse of :func:`fold_streams`; answers of copies are averaged.

    Args:
        x: (g, s, ...).

    Returns:
        (b, ...).

    >>> streams = fold_streams(torch.arange(5.0), num_streams=4, active_streams=3)
    >>> unfold_streams(streams, batch_size=5, active_streams=3)
    tensor([0., 1., 2., 3., 4.])
    """
    groups, num_streams = x.shape[:2]
    active = check_active_streams(active_streams, num_streams)
    whole, left_over = batch_size // active, batch_size % active  # exporters know no divmod
    if batch_size < 1 or groups != whole + (left_over > 0):
        raise ValueError(
            f"{groups} groups of {active} inputs do not hold a batch of {batch_size}: "
            f"pass the batch size that fold_streams was given."
        )
    answers = average_copies(x[:whole], active).flatten(0, 1)
    if left_over == 0:
        return answers
    return torch.cat([answers, average_copies(x[whole:], left_over).flatten(0, 1)])
