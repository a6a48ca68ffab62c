"""Activations that can stay close to linear, and so to an isometry. MIMONets, appendix B.1."""

from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

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


class PReLU(nn.PReLU):
    r"""PyTorch's parametric ReLU, in operations that a CPU runs fast.

    .. math:: \mathrm{pReLU}_b(x) = \max(x, 0) + b \min(x, 0)

    PyTorch's own decides number by number, which takes its backward pass on a CPU about six times
    as long. The output is the same to the last bit.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (b, maps, ...)."""
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        return cast(Tensor, _ParametricReLU.apply(x, self.weight.to(x.dtype)))


class _ParametricReLU(torch.autograd.Function):
    r"""PReLU with its gradients, for g from above and its part :math:`g_-` where x is not positive.

    .. math:: \frac{\partial}{\partial x} = (g - g_-) + b \, g_-, \qquad
        \frac{\partial}{\partial b} = \sum g_- x
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slopes: Tensor) -> Tensor:
        ctx.save_for_backward(x, slopes)
        return F.prelu(x, slopes)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, Tensor]:
        x, slopes = ctx.saved_tensors
        if above.stride() != x.stride():  # a copy costs less than reading two layouts at once
            above = torch.empty_like(x).copy_(above)
        positive = torch.ops.aten.threshold_backward(above, x, 0)
        negative = above - positive
        others = [axis for axis in range(x.ndim) if axis != 1]
        wide = torch.promote_types(x.dtype, torch.float32)
        of_slopes = (negative * x).sum(others, dtype=wide).to(slopes.dtype)
        return positive.addcmul_(negative, slopes.view(-1, *[1] * (x.ndim - 2))), of_slopes


def make_activation(name: ActivationName, maps: int) -> nn.Module:
    r"""Make the activation for ``maps`` feature maps.

    ``relu`` has no parameters. ``prelu``, the paper's choice, is :class:`PReLU` with one slope per
    feature map, 0.5 at the start. The paper has it between -1 and 1; here training may move it
    beyond. ``srelu`` is :class:`ShiftedReLU`.
    """
    if name == "relu":
        return nn.ReLU()
    if name == "prelu":
        return PReLU(maps, init=0.5)
    if name == "srelu":
        return ShiftedReLU(maps)
    raise ValueError(f"activation={name!r} is not known: choose from {get_args(ActivationName)}.")
