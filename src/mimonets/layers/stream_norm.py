"""Batch norm that keeps one set of statistics per number of active streams.

With all streams carrying the same input, a superposition is distributed differently than with N
different ones, so one set of running statistics fits neither mode of a dynamic model. The affine
weights are shared: they belong to the network, the statistics belong to the mode.
"""

from collections.abc import Iterable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mimonets.layers.batch_norm import (
    normalise_together,
    own_statistics,
    several_processes,
    update_statistics,
)
from mimonets.layers.mode import recomputing, running_mode
from mimonets.vsa import check_active_streams

# a active streams   s streams   c feature maps


class StreamBatchNorm(nn.Module):
    r"""Normalise feature maps with the statistics of the mode that is running.

    .. math:: y = \gamma \, \frac{x - \mu_A}{\sqrt{\sigma_A^2 + \epsilon}} + \beta

    with the mean and variance of A active streams. In training they come from the batch and update
    row A of the running statistics; in evaluation mode row A is used. :func:`running` sets the
    mode; outside of it, all streams are active.

    A drop-in for BatchNorm1d, 2d and 3d: :meth:`convert` replaces them in a network. Where several
    processes train together, statistics are those of all their batches, so that two processes
    equal one with twice the batch. They must then run the same mode at the same time.

    A mode that was never trained borrows the statistics of the nearest trained mode when the layer
    goes to evaluation mode (of two equally near ones, the faster). :func:`recalibrate` measures
    its own.

    >>> from mimonets.layers import running
    >>> norm = StreamBatchNorm(8, num_streams=4).eval()
    >>> with running(2):
    ...     y = norm(torch.randn(5, 8, 6, 6))
    """

    running_mean: Tensor  # (s, c): row a - 1 belongs to a active streams
    running_var: Tensor  # (s, c)
    batches_seen: Tensor  # (s,): 0 marks a mode that was never trained or recalibrated

    def __init__(
        self,
        maps: int,
        num_streams: int = 1,
        *,
        epsilon: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
    ) -> None:
        super().__init__()
        self.num_streams = num_streams
        self.epsilon = epsilon
        self.momentum = momentum  # None: plain average over all batches
        self.weight = nn.Parameter(torch.ones(maps)) if affine else None
        self.bias = nn.Parameter(torch.zeros(maps)) if affine else None
        self.register_buffer("running_mean", torch.zeros(num_streams, maps))
        self.register_buffer("running_var", torch.ones(num_streams, maps))
        self.register_buffer("batches_seen", torch.zeros(num_streams, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (g, c, ...)."""
        row = running_mode(self.num_streams) - 1 if self.num_streams > 1 else 0
        mean, var = self.running_mean[row], self.running_var[row]
        if self.training:
            if recomputing():  # the pass itself has updated the statistics
                mean, var = mean.clone(), var.clone()
            else:
                self.batches_seen[row] += 1
            if self.momentum is None or several_processes():
                y, batch = normalise_together(x, self.weight, self.bias, self.epsilon)
                seen = self.batches_seen[row].to(mean.dtype)
                fraction = 1 / seen if self.momentum is None else self.momentum
                update_statistics(mean, var, batch, fraction)
                return y
        return F.batch_norm(
            x,
            mean,
            var,
            self.weight,
            self.bias,
            training=self.training,
            momentum=self.momentum or 0.0,
            eps=self.epsilon,
        )

    @classmethod
    def convert(cls, module: nn.Module, num_streams: int) -> nn.Module:
        """Give every BatchNorm1d, 2d and 3d inside a module statistics per mode.

        Like ``SyncBatchNorm.convert_sync_batchnorm``: the module is changed in place and returned;
        only if it is a batch norm itself, another is returned. Weights and biases stay the same
        parameters. Running statistics are copied to all modes as a start. They were measured
        without superposition, so every mode counts as not yet trained, and :func:`recalibrate`
        measures it; for ``num_streams=1`` they are what they were. A layer of this class with one
        mode is replaced likewise. Layers without running statistics stay as they are.

        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> StreamBatchNorm.convert(network, num_streams=4)[1]
        StreamBatchNorm(8, num_streams=4)
        """
        check_active_streams(1, num_streams)
        return _convert(cls, module, num_streams, {})

    @classmethod
    @torch.no_grad()
    def _with_modes(cls, norm: "_BatchNorm | StreamBatchNorm", num_streams: int) -> Self:
        """Make a layer of several modes with the weights of one that has none, or one mode."""
        seen: Tensor | None
        if isinstance(norm, StreamBatchNorm):
            epsilon, seen = norm.epsilon, norm.batches_seen
        else:
            epsilon, seen = norm.eps, norm.num_batches_tracked
        assert norm.running_mean is not None
        assert norm.running_var is not None
        with torch.device(norm.running_mean.device):
            found = cls(
                norm.running_mean.shape[-1],
                num_streams,
                epsilon=epsilon,
                momentum=norm.momentum,
                affine=norm.weight is not None,
            )
        found.weight, found.bias = norm.weight, norm.bias
        found.running_mean = norm.running_mean.view(1, -1).repeat(num_streams, 1)
        found.running_var = norm.running_var.view(1, -1).repeat(num_streams, 1)
        if num_streams == 1 and seen is not None:
            found.batches_seen = seen.view(1).clone()
        found.training = norm.training
        return found

    def train(self, mode: bool = True) -> Self:
        """Switch mode; on the way to evaluation, lend statistics to the modes that have none."""
        if not mode and self.num_streams > 1:
            self._lend_statistics()
        return super().train(mode)

    @torch.no_grad()
    def _lend_statistics(self) -> None:
        """Copy, for every mode without statistics, those of the nearest mode that has some.

        Without looking at a value from Python, since that would wait for a GPU.
        """
        rows = torch.arange(self.num_streams, device=self.batches_seen.device)
        trained = self.batches_seen > 0
        away = rows - rows.unsqueeze(1)  # from each mode (row) to each lender (column)
        distance = 2 * away.abs() - (away > 0).long()  # of two equally near ones, the faster
        lender = distance.where(trained, 2 * self.num_streams).argmin(dim=1)
        lender = lender.where(trained.any(), rows)
        self.running_mean.copy_(self.running_mean[lender])
        self.running_var.copy_(self.running_var[lender])

    def extra_repr(self) -> str:
        """Show what was asked for in the module's printed form."""
        return f"{self.running_mean.shape[1]}, num_streams={self.num_streams}"


StreamBatchNorm2d = StreamBatchNorm  # its name in version 0.1


def untrained_modes(model: nn.Module) -> list[int]:
    """List the numbers of active streams that have no statistics of their own yet.

    >>> untrained_modes(StreamBatchNorm(8, num_streams=3))
    [1, 2, 3]
    """
    norms = _stream_norms(model)
    if not norms:
        return []
    seen = torch.stack([norm.batches_seen for norm in norms]).amin(dim=0)
    return [row + 1 for row, batches in enumerate(seen.tolist()) if not batches]


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    batches: Iterable[Tensor],
    active_streams: Iterable[int] | int | None = None,
    *,
    shared: bool = False,
) -> list[int]:
    """Measure the batch-norm statistics of some modes anew, with the weights as they are.

    Each mode gets the plain average over all batches. Nothing else changes: no weight, no other
    mode that has statistics of its own, not the model's training flag. Each process uses its own
    batches: where several train together, give all of them the same.

    Args:
        model: any model whose ``forward(inputs, active_streams=a)`` runs in mode a.
        batches: inputs as the model takes them; a few batches of training data are enough. Read
            once and kept, since every mode needs them. Inputs that do not fill a whole group are
            left out, as they would be measured in a mode of their own.
        active_streams: the modes; by default those that were never trained.
        shared: measure the batch norms that all modes share, such as the stem's, too.

    Returns:
        The modes that were measured.
    """
    norms = _stream_norms(model)
    others = [
        module
        for module in model.modules()
        if shared and isinstance(module, StreamBatchNorm | _BatchNorm)
        if module not in norms and module.running_mean is not None
    ]
    if isinstance(active_streams, int):
        active_streams = [active_streams]
    modes = untrained_modes(model) if active_streams is None else sorted(set(active_streams))
    if isinstance(batches, Tensor):
        raise ValueError("batches is one tensor: pass a list of batches, such as [inputs].")
    batches = list(batches)
    if not batches:
        raise ValueError("Nothing to measure with: pass at least one batch of inputs.")
    if not (norms or others) or not modes:
        return []
    for mode in modes if norms else ():
        check_active_streams(mode, norms[0].num_streams)
    if min(len(inputs) for inputs in batches) < max(modes):
        raise ValueError(
            f"A batch of {min(len(inputs) for inputs in batches)} does not fill a group of "
            f"{max(modes)} active streams: pass batches of at least {max(modes)} inputs."
        )

    was_training = {module: module.training for module in model.modules()}
    measured = [*norms, *others]
    momenta = [norm.momentum for norm in measured]
    before = [{name: buffer.clone() for name, buffer in norm.named_buffers()} for norm in measured]
    passes = 0
    try:
        model.eval()
        for one in measured:
            nn.Module.train(one)
        for norm in norms:
            norm.batches_seen[[mode - 1 for mode in modes]] = 0
        for mode in modes:
            for count, inputs in enumerate(batches, start=1):
                passes += 1
                for norm in norms:
                    norm.momentum = 1 / count  # so that all batches weigh the same in the end
                for other in others:
                    other.momentum = 1 / passes
                with own_statistics():
                    model(inputs[: len(inputs) // mode * mode], active_streams=mode)
    except BaseException:
        for one, buffers in zip(measured, before, strict=True):
            one.load_state_dict(buffers, strict=False)
        raise
    finally:
        for one, momentum in zip(measured, momenta, strict=True):
            one.momentum = momentum
        for module, flag in was_training.items():
            module.training = flag
        for norm in norms:
            if not norm.training:  # modes without statistics borrow the new ones, as on eval()
                norm._lend_statistics()
    return modes


def _stream_norms(model: nn.Module) -> list[StreamBatchNorm]:
    """Find the layers with the most modes; those of a single mode have nothing to choose."""
    norms = [module for module in model.modules() if isinstance(module, StreamBatchNorm)]
    most = max((norm.num_streams for norm in norms), default=1)
    return [norm for norm in norms if norm.num_streams == most]


def _convert(
    kind: type[StreamBatchNorm],
    module: nn.Module,
    num_streams: int,
    done: dict[nn.Module, nn.Module],
) -> nn.Module:
    if module not in done:
        done[module] = module
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            done[module] = kind._with_modes(module, num_streams)
        elif isinstance(module, StreamBatchNorm) and module.num_streams == 1 < num_streams:
            done[module] = type(module)._with_modes(module, num_streams)
        for name, child in module._modules.items():  # named_children lists shared ones once
            if child is not None:
                setattr(module, name, _convert(kind, child, num_streams, done))
    return done[module]
