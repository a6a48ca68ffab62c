"""Keep convolutions close to isometries, so that streams stay apart. MIMONets, appendix B.2."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# o, p output maps   i input maps   h, w height and width of the kernel   a, b taps   s shifts

FEW_MAPS = 48  # up to so many a CPU spends its time on calls, above on multiplications


def isometry_penalty(weight: Tensor, stride: int | tuple[int, ...] = 1) -> Tensor:
    r"""Measure how far a convolution is from an isometry, in whichever direction it can be one.

    .. math:: L(W) = \tfrac{1}{2} \| \mathrm{Conv}(W, W) - \delta \|_F^2
        \text{ if } C_i \ge C_o, \text{ else } L(W^T)

    where Conv(W, W) correlates the kernel with all its own shifts (by multiples of the stride) and
    delta is the identity at shift zero. The factor gamma belongs to the training recipe. (The paper
    takes the transpose for C_i = C_o too, which is the same where the stride is 1.)

    Computed without the convolution, in one of two forms that agree up to rounding. A GPU, and a
    CPU with small kernels, take the one with the fewest operators (:class:`_ByTaps`); a CPU with
    many feature maps takes the one with the fewest multiplications (:class:`_ByShifts`). Under
    autocast the products have its type. Qi et al., "Deep isometric learning", ICML 2020.

    Args:
        weight: (o, i, h, w), of a convolution without groups and dilation.
        stride: the stride of the layer that uses it; two numbers for height and width.
    """
    return _twice_the_penalty(weight, stride, {}) / 2


def total_isometry_penalty(module: nn.Module) -> Tensor:
    """Add up :func:`isometry_penalty` over all convolutions inside ``module``; 0 if it has none."""
    found = []
    pairs: dict[Any, Tensor] = {}
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Conv2d):
            continue
        if layer.groups > 1 or max(layer.dilation) > 1:
            raise ValueError(
                f"The convolution {name!r} has groups={layer.groups} and dilation="
                f"{layer.dilation}, and the isometry penalty knows neither: replace it, or leave "
                f"it out and add up isometry_penalty(weight, stride) over the others."
            )
        found.append(_twice_the_penalty(layer.weight, layer.stride, pairs))
    if not found:
        return next(module.parameters(), torch.empty(0)).new_zeros(())
    return torch.stack(found).sum() / 2


def _twice_the_penalty(
    weight: Tensor, stride: int | tuple[int, ...], pairs: dict[Any, Tensor]
) -> Tensor:
    """Choose the form; ``pairs`` keeps what all kernels of one size and stride share."""
    if weight.shape[0] > weight.shape[1]:
        weight = weight.transpose(0, 1)
    down, right = (stride, stride) if isinstance(stride, int) else stride
    device, dtype = weight.device, weight.dtype
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    if device.type == "cpu" and len(weight) > FEW_MAPS:
        return cast(Tensor, _ByShifts.apply(weight, down, right, dtype))
    kind = (weight.shape[2], weight.shape[3], down, right, dtype)
    if kind not in pairs:
        pairs[kind] = pairs_of_shifts(*kind, device)
    return cast(Tensor, _ByTaps.apply(weight, pairs[kind]))


def pairs_of_shifts(
    height: int, width: int, down: int, right: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Mark the pairs of taps that every shift brings together: (s, a b), shift zero in the middle.

    >>> pairs_of_shifts(1, 2, 1, 1, torch.int8, torch.device("cpu")).view(3, 2, 2).tolist()
    [[[0, 1], [0, 0]], [[1, 0], [0, 1]], [[0, 0], [1, 0]]]
    """
    row = 2 * width - 1  # rows this far apart: every shift has a number of its own
    taps = torch.arange(height * width, device=device)
    places = taps // width * row + taps % width
    downwards, sideways = (
        torch.arange(-((size - 1) // step * step), size, step, device=device)
        for size, step in ((height, down), (width, right))
    )
    shifts = (downwards.unsqueeze(1) * row + sideways).view(-1, 1)
    return ((places.unsqueeze(1) - places).flatten() == shifts).to(dtype)


class _ByTaps(torch.autograd.Function):
    r"""The squared distance from one product of all pairs of taps, which is then added up by shift.

    .. math:: R_s = \sum_{a - b = s} W_a W_b^T - \delta_s, \qquad
        \|R\|^2 = \sum_s \|R_s\|_F^2, \qquad
        \frac{\partial \|R\|^2}{\partial W_a} = 4 \sum_b R_{a - b} W_b

    For a 3x3 kernel that is 81 C^3 multiplications, and as many for the gradient. It is computed
    at once, since it is smaller than R. Gradients of gradients are refused.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, pairs: Tensor) -> Tensor:
        maps, maps_in, height, width = weight.shape
        kernel = weight.permute(0, 2, 3, 1).to(pairs.dtype)  # o h w i
        left = kernel.reshape(-1, maps_in)  # (o a) i
        right = kernel.permute(1, 2, 0, 3).reshape(-1, maps_in)  # (b p) i
        products = (left @ right.T).view(maps, -1, maps)  # o (a b) p
        gram = torch.bmm(pairs.expand(maps, -1, -1), products).to(weight.dtype)  # o s p
        gram.select(1, len(pairs) // 2).diagonal().sub_(1)
        if ctx.needs_input_grad[0]:
            spread = torch.bmm(pairs.mT.expand(maps, -1, -1), gram.to(pairs.dtype))  # o (a b) p
            gradient = (spread.view(len(left), -1) @ right).view(maps, height, width, maps_in)
            ctx.save_for_backward(gradient.permute(0, 3, 1, 2).to(weight.dtype))
        return torch.dot(gram.view(-1), gram.view(-1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * (4 * above), None


class _ByShifts(torch.autograd.Function):
    r"""The same as :class:`_ByTaps`, from one product per shift of the taps that overlap.

    Shift -s is the transpose of shift s. For a 3x3 kernel that is 45 C^3 multiplications, and
    twice as many for the gradient.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, down: int, right: int, dtype: torch.dtype) -> Tensor:
        kernel = weight.permute(0, 2, 3, 1).to(dtype).contiguous()  # o h w i
        height, width = kernel.shape[1:3]
        gradient = torch.zeros_like(kernel, dtype=weight.dtype)
        total = weight.new_zeros(())
        reach = (width - 1) // right * right
        shifts = [(y, x) for y in range(0, height, down) for x in range(-reach, width, right)]
        for y, x in shifts[reach // right :]:  # those before are transposes of those after
            to = (slice(None), slice(y, None), slice(max(x, 0), width + min(x, 0)))
            of = (slice(None), slice(height - y), slice(max(-x, 0), width - max(x, 0)))
            moved, still = kernel[to].flatten(1), kernel[of].flatten(1)
            gram = (moved @ still.T).to(weight.dtype)
            if (y, x) == (0, 0):
                gram.diagonal().sub_(1)
            total += (1 if (y, x) == (0, 0) else 2) * torch.dot(gram.view(-1), gram.view(-1))
            if ctx.needs_input_grad[0]:
                factor = gram.to(dtype)
                gradient[to] += (factor @ still).view_as(gradient[to])
                if (y, x) != (0, 0):
                    gradient[of] += (factor.T @ moved).view_as(gradient[of])
        ctx.save_for_backward(gradient.permute(0, 3, 1, 2))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * (4 * above), None, None, None


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


@torch.no_grad()
def init_convolution(layer: nn.Conv2d, *, dirac: bool = False, lanes: int = 1) -> None:
    """Initialise by Kaiming's rule over outgoing connections, or as an identity (DiracInit).

    With several ``lanes`` it starts as so many equal convolutions side by side, each for its part
    of the feature maps. The weights between them start at zero, and training may use them.
    """
    own, *others = (
        rows.chunk(lanes, dim=1)[lane] for lane, rows in enumerate(layer.weight.chunk(lanes))
    )
    layer.weight.zero_()
    if dirac:
        nn.init.dirac_(own)
    else:
        nn.init.kaiming_normal_(own, mode="fan_out", nonlinearity="relu")
    for other in others:
        other.copy_(own)
