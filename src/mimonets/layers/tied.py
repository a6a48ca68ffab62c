"""Keep streams apart in lanes: a trunk that commutes with their rotation. Beyond the paper.

The feature maps form N lanes, and stream k lives in lane k. Weights from one lane to another depend
only on how far apart the two are, so that rotating the lanes of the input rotates those of the
output: all streams share one function, and one classifier reads them all.

Lanes are a batch axis everywhere but inside convolutions: feature maps are (g s, d, h, w), with d
maps per lane, so norms and activations are shared by the lanes without further ado.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets.vsa import stream_assignment

# g groups   s lanes, one per stream   o, i maps out and in, per lane   d maps per lane   k kernel


class TiedConv2d(nn.Module):
    r"""Convolve all lanes with all lanes, by weights that depend on their distance only.

    .. math:: y^{(k)} = \sum_j W_{(k - j) \bmod N} * x^{(j)}

    The matrix of all weights is block-circulant. It costs what a dense convolution over N d feature
    maps costs: the structure saves parameters, not products.

    Args:
        maps_in: feature maps per lane that come in.
        maps_out: feature maps per lane that go out.
        lanes: N.
    """

    def __init__(
        self, maps_in: int, maps_out: int, kernel_size: int, *, lanes: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.lanes = lanes
        self.stride = (stride, stride)
        self.padding = kernel_size // 2
        size = (maps_out, maps_in, kernel_size, kernel_size)
        self.own = nn.Parameter(torch.empty(size))  # W_0: from a lane to itself
        self.cross = nn.Parameter(torch.empty(lanes - 1, *size))  # W_1 ...: to lanes further on
        self.reset_parameters()

    def reset_parameters(self, *, dirac: bool = False) -> None:
        """Draw the weights as the dense convolution's (Kaiming's rule, fan out), or an identity."""
        if dirac:
            nn.init.dirac_(self.own)
            nn.init.zeros_(self.cross)
            return
        deviation = math.sqrt(2 / (self.lanes * self.own[:, 0].numel()))
        nn.init.normal_(self.own, std=deviation)
        nn.init.normal_(self.cross, std=deviation)

    @property
    def weight(self) -> Tensor:
        """The weights of the dense convolution that this is, (s o, s i, k, k)."""
        blocks = torch.cat([self.own.unsqueeze(0), self.cross])  # s o i k k
        lane = torch.arange(self.lanes, device=blocks.device)
        blocks = blocks[(lane[:, None] - lane) % self.lanes]  # s s o i k k
        return blocks.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (g s, i, h, w) -> (g s, o, h', w')."""
        x = x.unflatten(0, (-1, self.lanes)).flatten(1, 2)  # g (s i) h w
        x = F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        return x.unflatten(1, (self.lanes, -1)).flatten(0, 1)

    def extra_repr(self) -> str:
        """Show the sizes in the module's printed form."""
        maps_out, maps_in, kernel, _ = self.own.shape
        return f"{maps_in}, {maps_out}, {kernel}x{kernel}, lanes={self.lanes}, stride={self.stride}"


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
