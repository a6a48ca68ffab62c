"""Activations that can stay close to linear, and so to an isometry. MIMONets, appendix B.1."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

ActivationName = Literal["relu", "prelu", "srelu"]


class ShiftedReLU(nn.Module):
    r"""ReLU with a trainable bend, one per feature map.

    .. math:: \mathrm{sReLU}_b(x) = \mathrm{ReLU}(x - b) + b = \max(x, b)

    The lower b, the more linear. Starts at -1.
    """

    def __init__(self, maps: int, init: float = -1.0) -> None:
        super().__init__()
        self.bend = nn.Parameter(torch.full((maps,), init))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (..., maps, height, width)."""
        return torch.maximum(x, self.bend[:, None, None])


def make_activation(name: ActivationName, maps: int) -> nn.Module:
    r"""Make the activation for ``maps`` feature maps.

    ``relu`` has no parameters. ``prelu``, the paper's choice, has one slope per feature map:

    .. math:: \mathrm{pReLU}_b(x) = \max(x, 0) + b \min(x, 0), \quad b = 0.5 \text{ at the start}

    The paper has b between -1 and 1; here training may move it beyond.

    ``srelu`` is :class:`ShiftedReLU`.
    """
    if name == "relu":
        return nn.ReLU()
    if name == "prelu":
        return nn.PReLU(maps, init=0.5)
    if name == "srelu":
        return ShiftedReLU(maps)
    raise ValueError(f"activation={name!r} is not known: choose from {get_args(ActivationName)}.")
