"""Keep streams apart in lanes: a trunk that commutes with their rotation. Beyond the paper.

The feature maps form N lanes, and stream k lives in lane k. Weights from one lane to another depend
only on how far apart the two are, so that rotating the lanes of the input rotates those of the
output: all streams share one function, and one classifier reads them all.

Lanes are a batch axis everywhere but inside :class:`TiedLayer`: feature maps are (g s, d, h, w),
with d maps per lane, so norms and activations are shared by the lanes without further ado.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets.vsa import stream_assignment

# g groups   s lanes, one per stream   o, i maps out and in, per lane   d maps per lane   k kernel


class TiedLayer(nn.Module):
    r"""Weights from all lanes to all lanes that depend on their distance only, block-circulant.

    .. math:: y^{(k)} = b + \sum_j W_{(k - j) \bmod N} \, x^{(j)}

    It costs what the dense layer over N d features costs: the structure saves parameters, not
    products.

    Args:
        size: of the weights from one lane to another, (o, i, ...).
        lanes: N.
    """

    def __init__(self, size: tuple[int, ...], lanes: int, *, bias: bool) -> None:
        super().__init__()
        self.lanes = lanes
        self.own = nn.Parameter(torch.empty(size))  # W_0: from a lane to itself
        self.cross = nn.Parameter(torch.empty(lanes - 1, *size))  # W_1 ...: to lanes further on
        self.bias = nn.Parameter(torch.zeros(size[0])) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as the dense layer's, by Kaiming's rule, fan out."""
        deviation = math.sqrt(2 / (self.lanes * self.own[:, 0].numel()))
        nn.init.normal_(self.own, std=deviation)
        nn.init.normal_(self.cross, std=deviation)

    @torch.no_grad()
    def copy_first_lane(self, dense: nn.Conv2d | nn.Linear) -> None:
        """Start with what a dense layer does with its first lane, and where that goes."""
        blocks = dense.weight[:, : self.own.shape[1]].unflatten(0, (self.lanes, -1))  # s o i ...
        self.own.copy_(blocks[0])
        self.cross.copy_(blocks[1:])
        if self.bias is not None:
            assert dense.bias is not None
            self.bias.copy_(dense.bias[: len(self.bias)])

    @property
    def weight(self) -> Tensor:
        """The weights of the dense layer that this is, (s o, s i, ...)."""
        blocks = torch.cat([self.own.unsqueeze(0), self.cross])  # s o i ...
        lane = torch.arange(self.lanes, device=blocks.device)
        blocks = blocks[(lane[:, None] - lane) % self.lanes]  # s s o i ...
        return blocks.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    @property
    def dense_bias(self) -> Tensor | None:
        """The bias of the dense layer that this is, (s o)."""
        return None if self.bias is None else self.bias.repeat(self.lanes)


class TiedConv2d(TiedLayer):
    """Convolve all lanes with all lanes, see :class:`TiedLayer`.

    Args:
        maps_in: feature maps per lane that come in.
        maps_out: feature maps per lane that go out.
        lanes: N.
        padding: half the kernel by default.
    """

    def __init__(
        self,
        maps_in: int,
        maps_out: int,
        kernel_size: int | tuple[int, ...],
        *,
        lanes: int,
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str | None = None,
        dilation: int | tuple[int, ...] = 1,
        bias: bool = False,
    ) -> None:
        height, width = _pair(kernel_size)
        super().__init__((maps_out, maps_in, height, width), lanes, bias=bias)
        self.stride = _pair(stride)
        half = (height // 2, width // 2)
        self.padding: Any = half if padding is None else padding  # as F.conv2d takes it
        self.dilation = _pair(dilation)

    def reset_parameters(self, *, dirac: bool = False) -> None:
        """Draw the weights as the dense convolution's (Kaiming's rule, fan out), or an identity."""
        if dirac:
            nn.init.dirac_(self.own)
            nn.init.zeros_(self.cross)
        else:
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (g s, i, h, w) -> (g s, o, h', w')."""
        x = x.unflatten(0, (-1, self.lanes)).flatten(1, 2)  # g (s i) h w
        weight, bias = self.weight, self.dense_bias
        x = F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)
        return x.unflatten(1, (self.lanes, -1)).flatten(0, 1)

    def extra_repr(self) -> str:
        """Show the sizes in the module's printed form."""
        maps_out, maps_in, height, width = self.own.shape
        sizes = f"{maps_in}, {maps_out}, {height}x{width}"
        return f"{sizes}, lanes={self.lanes}, stride={self.stride}"


class TiedLinear(TiedLayer):
    """Multiply all lanes with all lanes, see :class:`TiedLayer`; features are the last axis."""

    def __init__(self, inputs: int, outputs: int, *, lanes: int, bias: bool = True) -> None:
        super().__init__((outputs, inputs), lanes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply (g s, ..., i) -> (g s, ..., o)."""
        x = x.unflatten(0, (-1, self.lanes)).movedim(1, -2).flatten(-2)  # g ... (s i)
        x = F.linear(x, self.weight, self.dense_bias)
        return x.unflatten(-1, (self.lanes, -1)).movedim(-2, 1).flatten(0, 1)

    def extra_repr(self) -> str:
        """Show the sizes in the module's printed form."""
        return f"{self.own.shape[1]}, {self.own.shape[0]}, lanes={self.lanes}"


class Lanes(nn.Module):
    """Put every input of a group into a lane of its own, and take the lanes apart again.

    With A < N active inputs, lane k carries input k mod A.

    >>> lanes = Lanes(4)
    >>> lanes(torch.arange(2.0).view(1, 2, 1, 1, 1)).flatten()
    tensor([0., 1., 0., 1.])
    """

    def __init__(self, num_streams: int) -> None:
        super().__init__()
        self.num_streams = num_streams

    def zoom(self, active_streams: int) -> int:
        """Say that no mode sees its inputs finer than another."""
        return 1

    def places(self, active_streams: int) -> int:
        """Count the lanes: as many in every mode."""
        return self.num_streams

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Fill the lanes: (g, a, d, h, w) -> (g s, d, h, w)."""
        if x.shape[1] != self.num_streams:
            x = x[:, stream_assignment(x.shape[1], self.num_streams, x.device)]
        return x.flatten(0, 1)

    def cut(self, maps: Tensor, active_streams: int | None = None) -> Tensor:
        """Take the lanes apart: (g s, d, h, w) -> (g, s, d, h, w)."""
        return maps.unflatten(0, (-1, self.num_streams))

    def penalty(self) -> Tensor:
        """Measure nothing: lanes overlap nowhere, and no key is learned."""
        return torch.zeros(())

    def extra_repr(self) -> str:
        """Show the number of lanes in the module's printed form."""
        return str(self.num_streams)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Write one number for both sides as two."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])
