"""Batch norm that keeps one set of statistics per number of active streams.

With all streams carrying the same input, a superposition is distributed differently than with N
different ones, so one set of running statistics fits neither mode of a dynamic model. The affine
weights are shared: they belong to the network, the statistics belong to the mode.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets.vsa import check_active_streams

# a active streams   s streams   c feature maps


class StreamBatchNorm2d(nn.Module):
    r"""Normalise feature maps with the statistics of the mode that is running.

    .. math:: y = \gamma \, \frac{x - \mu_A}{\sqrt{\sigma_A^2 + \epsilon}} + \beta

    with the mean and variance of A active streams. In training they come from the batch and update
    row A of the running statistics; in evaluation mode row A is used.

    A mode that was never trained borrows the statistics of the nearest trained mode when the layer
    goes to evaluation mode (of two equally near ones, the faster). :func:`recalibrate` measures
    its own.
    """

    running_mean: Tensor  # (s, c): row a - 1 belongs to a active streams
    running_var: Tensor  # (s, c)
    batches_seen: Tensor  # (s,): 0 marks a mode that was never trained or recalibrated

    def __init__(
        self, maps: int, num_streams: int = 1, *, epsilon: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.num_streams = num_streams
        self.epsilon = epsilon
        self.momentum: float | None = momentum  # None: plain average over all batches
        self.weight = nn.Parameter(torch.ones(maps))
        self.bias = nn.Parameter(torch.zeros(maps))
        self.register_buffer("running_mean", torch.zeros(num_streams, maps))
        self.register_buffer("running_var", torch.ones(num_streams, maps))
        self.register_buffer("batches_seen", torch.zeros(num_streams, dtype=torch.long))

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Normalise (g, c, h, w)."""
        row = check_active_streams(active_streams, self.num_streams) - 1
        share = 0.0
        if self.training:
            self.batches_seen[row] += 1
            share = 1 / int(self.batches_seen[row]) if self.momentum is None else self.momentum
        return F.batch_norm(
            x,
            self.running_mean[row],
            self.running_var[row],
            self.weight,
            self.bias,
            training=self.training,
            momentum=share,
            eps=self.epsilon,
        )

    def train(self, mode: bool = True) -> "StreamBatchNorm2d":
        """Switch mode; on the way to evaluation, lend statistics to the modes that have none."""
        if not mode:
            self._lend_statistics()
        return super().train(mode)

    @torch.no_grad()
    def _lend_statistics(self) -> None:
        if self.num_streams == 1 or self.batches_seen.is_meta:
            return
        seen = self.batches_seen.tolist()
        trained = [row for row, batches in enumerate(seen) if batches]
        for row, batches in enumerate(seen):
            if not batches and trained:
                lender = min(trained, key=lambda other: (abs(other - row), -other))
                self.running_mean[row] = self.running_mean[lender]
                self.running_var[row] = self.running_var[lender]

    def extra_repr(self) -> str:
        """Show what was asked for in the module's printed form."""
        return f"{len(self.weight)}, num_streams={self.num_streams}"


def untrained_modes(model: nn.Module) -> list[int]:
    """List the numbers of active streams that have no statistics of their own yet.

    >>> untrained_modes(StreamBatchNorm2d(8, num_streams=3))
    [1, 2, 3]
    """
    norms = _stream_norms(model)
    if not norms:
        return []
    seen = torch.stack([norm.batches_seen for norm in norms]).amin(dim=0)
    return [row + 1 for row, batches in enumerate(seen.tolist()) if not batches]


@torch.no_grad()
def recalibrate(
    model: nn.Module, batches: Iterable[Tensor], active_streams: Iterable[int] | None = None
) -> list[int]:
    """Measure the batch-norm statistics of some modes anew, with the weights as they are.

    Each mode gets the plain average over all batches. Nothing else changes: no weight, no other
    mode, not the model's training flag.

    Args:
        model: any model whose ``forward(inputs, active_streams=a)`` runs in mode a.
        batches: inputs as the model takes them; a few batches of training data are enough. Read
            once and kept, since every mode needs them. Inputs that do not fill a whole group are
            left out, as they would be measured in a mode of their own.
        active_streams: the modes; by default those that were never trained.

    Returns:
        The modes that were measured.
    """
    norms = _stream_norms(model)
    modes = untrained_modes(model) if active_streams is None else sorted(set(active_streams))
    batches = list(batches)
    if not batches:
        raise ValueError("Nothing to measure with: pass at least one batch of inputs.")
    if not norms or not modes:
        return []
    for mode in modes:
        check_active_streams(mode, norms[0].num_streams)
    if min(len(inputs) for inputs in batches) < max(modes):
        raise ValueError(
            f"A batch of {min(len(inputs) for inputs in batches)} does not fill a group of "
            f"{max(modes)} active streams: pass batches of at least {max(modes)} inputs."
        )

    was_training = {module: module.training for module in model.modules()}
    momentum = norms[0].momentum
    try:
        model.eval()
        for norm in norms:
            norm.momentum = None
            nn.Module.train(norm)
            norm.batches_seen[[mode - 1 for mode in modes]] = 0
        for mode in modes:
            for inputs in batches:
                model(inputs[: len(inputs) // mode * mode], active_streams=mode)
    finally:
        for norm in norms:
            norm.momentum = momentum
        for module, flag in was_training.items():
            module.training = flag
    return modes


def _stream_norms(model: nn.Module) -> list[StreamBatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, StreamBatchNorm2d)]
