"""Batch norm with statistics of the whole batch, also when processes hold a part of it each.

Ioffe & Szegedy, "Batch normalization", ICML 2015. PyTorch's SyncBatchNorm does the same, but on
GPUs only and for one set of statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# b batch   c feature maps   r processes

_ALONE = False  # see own_statistics


class _Together(_BatchNorm):
    """PyTorch's batch norm, with statistics over all processes while training."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (b, c, ...)."""
        if not (self.training and several_processes()):
            return super().forward(x)
        y, batch = normalise_together(x, self.weight, self.bias, self.eps)
        if self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            fraction = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
            update_statistics(self.running_mean, self.running_var, batch, fraction)
        return y


class BatchNorm1d(_Together, nn.BatchNorm1d):
    """PyTorch's batch norm of (b, c) or (b, c, t)."""


class BatchNorm2d(_Together, nn.BatchNorm2d):
    """PyTorch's batch norm of (b, c, h, w)."""


class BatchNorm3d(_Together, nn.BatchNorm3d):
    """PyTorch's batch norm of (b, c, t, h, w)."""


TOGETHER: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


@contextmanager
def shared_statistics(module: nn.Module) -> Iterator[None]:
    """Let PyTorch's own batch norms inside a module take part for a while."""
    changed = [layer for layer in module.modules() if type(layer) in TOGETHER]
    before = [type(layer) for layer in changed]
    for layer in changed:
        layer.__class__ = TOGETHER[type(layer)]  # the same parameters and buffers
    try:
        yield
    finally:
        for layer, kind in zip(changed, before, strict=True):
            layer.__class__ = kind


@dataclass(frozen=True)
class BatchStatistics:
    """What one batch says about the distribution of each feature map."""

    mean: Tensor  # (c,)
    var: Tensor  # (c,), biased
    count: Tensor  # numbers per feature map, over all processes


def several_processes() -> bool:
    """Tell whether this process takes statistics together with others."""
    if _ALONE or not (dist.is_available() and dist.is_initialized()):
        return False
    return dist.get_world_size() > 1


@contextmanager
def own_statistics() -> Iterator[None]:
    """Take statistics of this process's batches alone, although others train with it."""
    global _ALONE
    before, _ALONE = _ALONE, True
    try:
        yield
    finally:
        _ALONE = before


def normalise_together(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, epsilon: float
) -> tuple[Tensor, BatchStatistics]:
    r"""Normalise with mean and variance over the batches of all processes.

    .. math:: \mu = \sum_r \frac{n_r}{n} \mu_r, \qquad
        \sigma^2 = \sum_r \frac{n_r}{n} \bigl(\sigma_r^2 + (\mu_r - \mu)^2\bigr)

    Combining variances around their own means loses no digits, unlike a difference of squares.
    Gradients flow through the statistics to every process.

    Args:
        x: (b, c, ...).

    Returns:
        The normalised x, and the statistics it was normalised with.
    """
    axes = [0, *range(2, x.ndim)]
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    own_var, own_mean = torch.var_mean(wide, dim=axes, correction=0)
    own_count = wide.new_full((1,), wide.numel() // wide.shape[1])
    own = torch.cat([own_mean, own_var, own_count])
    rows = _FromAll.apply(own) if several_processes() else own.unsqueeze(0)  # r (c + c + 1)
    means, variances, counts = rows.split([len(own_mean), len(own_var), 1], dim=1)
    count = counts.sum()
    mean = (counts * means).sum(dim=0) / count
    var = (counts * (variances + (means - mean).square())).sum(dim=0) / count
    column = (-1, *[1] * (x.ndim - 2))
    y = (wide - mean.view(column)) * (var + epsilon).rsqrt().view(column)
    if weight is not None and bias is not None:
        y = y * weight.view(column) + bias.view(column)
    return y.to(x.dtype), BatchStatistics(mean.detach(), var.detach(), count.detach())


@torch.no_grad()
def update_statistics(
    running_mean: Tensor, running_var: Tensor, batch: BatchStatistics, fraction: float | Tensor
) -> None:
    """Move running statistics towards those of a batch; the variance becomes unbiased."""
    unbiased = batch.var * (batch.count / (batch.count - 1).clamp_min(1))
    running_mean.lerp_(batch.mean.to(running_mean.dtype), fraction)
    running_var.lerp_(unbiased.to(running_var.dtype), fraction)


class _FromAll(torch.autograd.Function):
    """Collect a vector of each process, (d,) -> (r, d), in a way that gradients find back.

    As a sum of matrices that are zero outside their own row.
    """

    @staticmethod
    def forward(ctx: Any, row: Tensor) -> Tensor:
        rows = row.new_zeros(dist.get_world_size(), len(row))
        rows[dist.get_rank()] = row
        dist.all_reduce(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient[dist.get_rank()]
