"""The ways to run a network: cost, speed, accuracy and training go through this list."""

from typing import Any

from torch import Tensor, nn

from mimonets._inputs import InputSpec
from mimonets._operating_point import OperatingPoint, stream_points
from mimonets.models.base import cost_part_of
from mimonets.vsa import check_active_streams


def operating_points(network: Any) -> tuple[OperatingPoint, ...]:
    """List the ways to run a network, the most accurate first.

    A network, or its config, may have a list of its own, ``operating_points``. Otherwise there is
    a point for every number of active streams.

    Args:
        network: a network or the config of one of ours.

    >>> from mimonets.models import MIMOConvConfig
    >>> [point.name for point in operating_points(MIMOConvConfig(num_streams=3))]
    ['1 active', '2 active', '3 active']
    """
    points = getattr(network, "operating_points", None)
    return stream_points(getattr(network, "num_streams", 1)) if points is None else tuple(points)


def find_point(network: Any, number: int | None) -> OperatingPoint:
    """Find an operating point by its number; None is the last one, with all streams busy."""
    points = operating_points(network)
    if number is None:
        return points[-1]
    if "active_streams" in points[-1].options:
        return points[check_active_streams(number, len(points)) - 1]
    for point in points:
        if point.number == number and not isinstance(number, bool):
            return point
    raise ValueError(
        f"There is no operating point {number!r}: choose from "
        f"{', '.join(f'{point.number} ({point.name})' for point in points)}."
    )


def usual_points(network: Any) -> list[OperatingPoint]:
    """List the points worth looking at: all up to four streams, else those that spread evenly.

    >>> from mimonets.models import MIMOConvConfig
    >>> [point.number for point in usual_points(MIMOConvConfig(num_streams=16))]
    [1, 2, 4, 8, 16]
    """
    points = operating_points(network)
    most = max(point.inputs_per_pass for point in points)
    return [point for point in points if most <= 4 or most % point.inputs_per_pass == 0]


def fixed_at(network: Any, point: OperatingPoint) -> Any:
    """Give a network that is told apart from others by ``active_streams`` alone.

    That is the network itself where the point is a number of active streams, else the network
    fixed at the point.
    """
    return network if "active_streams" in point.options else FixedAt(network, point)


class FixedAt(nn.Module):
    """A network fixed at one operating point: the same weights, and the protocol of all networks.

    Whatever knows no operating points, such as export, takes it as any network of one input per
    pass.
    """

    num_streams = 1

    def __init__(self, network: Any, point: OperatingPoint) -> None:
        super().__init__()
        self.network = network
        self.point = point

    @property
    def input_spec(self) -> InputSpec | None:
        """What one input is."""
        return self.network.input_spec

    def forward(self, x: Tensor, active_streams: int | None = None) -> Any:
        """Answer inputs (b, ...)."""
        check_active_streams(active_streams, self.num_streams)
        return self.network(x, **self.point.options)

    def example_inputs(self, batch_size: int) -> Tensor:
        """Make random inputs of the shape that the network is made for."""
        return self.network.example_inputs(batch_size)

    def cost_part(self, layer: str) -> str:
        """Name the part that the cost of a layer is counted under."""
        return cost_part_of(self.network, layer.removeprefix("network."))
