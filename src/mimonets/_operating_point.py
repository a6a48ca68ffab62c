"""OperatingPoint: one way to run a network, with what is known about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OperatingPoint:
    """One way to run a network: how many inputs share a pass, and what ``forward`` gets.

    A network with streams has a point for every number of active streams; a slimmable network has
    one for every width. Every network lists its points, see
    :func:`mimonets.models.operating_points`.

    >>> point = OperatingPoint(number=4, name="4 active", inputs_per_pass=4)
    >>> point.name, point.inputs_per_pass
    ('4 active', 4)
    """

    number: int  # by which commands and records name it: active streams, or its place in the list
    name: str  # as tables show it
    inputs_per_pass: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of forward
    accuracy: float | None = None  # fraction of right answers on test data, where it is known


def stream_points(num_streams: int) -> tuple[OperatingPoint, ...]:
    """List the points of a network with streams: one for every number of active streams.

    >>> [point.name for point in stream_points(3)]
    ['1 active', '2 active', '3 active']
    """
    return tuple(
        OperatingPoint(
            number=active,
            name=f"{active} active",
            inputs_per_pass=active,
            options={"active_streams": active},
        )
        for active in range(1, num_streams + 1)
    )
