"""Keep convolutions close to isometries, so that streams stay apart. MIMONets, appendix B.2."""

import torch
from torch import Tensor, nn

# o, i output and input maps   h, w height and width of the kernel


def isometry_penalty(weight: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    r"""Measure how far a convolution is from an isometry, in whichever direction it can be one.

    .. math:: L(W) = \tfrac{1}{2} \| \mathrm{Conv}(W, W) - \delta \|_F^2
        \text{ if } C_i \ge C_o, \text{ else } L(W^T)

    where Conv(W, W) correlates the kernel with all its own shifts (by multiples of the stride) and
    delta is the identity at shift zero. The factor gamma belongs to the training recipe. (The paper
    takes the transpose for C_i = C_o too, which is the same where the stride is 1.)

    Computed without the convolution: shift s of the correlation is one matrix product over the
    taps that overlap, and shift -s is its transpose. For a 3x3 kernel that is 45 C^3
    multiplications instead of 225 C^3. Qi et al., "Deep isometric learning", ICML 2020.

    Args:
        weight: (o, i, h, w), of a convolution without groups and dilation.
        stride: the stride of the layer that uses it; two numbers for height and width.
    """
    if weight.shape[0] > weight.shape[1]:
        weight = weight.transpose(0, 1)
    weight = weight.permute(0, 2, 3, 1).contiguous()  # o h w i
    height, width = weight.shape[1:3]
    step_down, step_right = (stride, stride) if isinstance(stride, int) else stride

    def gram(down: int, right: int) -> Tensor:
        """Correlate the kernel with itself, shifted by (down, right) taps."""
        moved = weight[:, down:, max(right, 0) : width + min(right, 0)]
        still = weight[:, : height - down, max(-right, 0) : width - max(right, 0)]
        return moved.flatten(1) @ still.flatten(1).T

    identity = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
    total = (gram(0, 0) - identity).square().sum()
    reach = (width - 1) // step_right * step_right
    for down in range(0, height, step_down):
        for right in range(-reach, reach + 1, step_right):
            if (down, right) > (0, 0):  # the other half are transposes of this one
                total = total + 2 * gram(down, right).square().sum()
    return total / 2


def total_isometry_penalty(module: nn.Module) -> Tensor:
    """Add up :func:`isometry_penalty` over all convolutions inside ``module``; 0 if it has none."""
    penalties = []
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        if layer.groups > 1 or max(layer.dilation) > 1:
            raise ValueError(
                f"The convolution {name!r} has groups={layer.groups} and dilation="
                f"{layer.dilation}, and the isometry penalty knows neither: replace it, or leave "
                f"it out and add up isometry_penalty(weight, stride) over the others."
            )
        penalties.append(isometry_penalty(layer.weight, layer.stride))
    if not penalties:
        return next(module.parameters(), torch.empty(0)).new_zeros(())
    return torch.stack(penalties).sum()


class SkipScale(nn.Module):
    r"""Scale the residual branch by one trained number that starts at 0 (SkipInit).

    .. math:: y = x + \alpha \, f(x), \quad \alpha = 0 \text{ at the start}

    So the network starts as its skip connections. De & Smith, "Batch normalization biases residual
    blocks towards the identity function in deep networks", NeurIPS 2020.
    """

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Scale (g, c, h, w)."""
        return self.alpha * x


def init_convolution(layer: nn.Conv2d, *, dirac: bool = False) -> None:
    """Initialise by Kaiming's rule over outgoing connections, or as an identity (DiracInit)."""
    if dirac:
        nn.init.dirac_(layer.weight)
    else:
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
