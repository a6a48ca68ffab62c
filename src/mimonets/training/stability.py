"""What keeps training stable: skip batches with huge gradients, average weights over time."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.layers import StreamBatchNorm
from mimonets.training.config import TrainConfig


class TrainingDivergedError(RuntimeError):
    """Training cannot go on; the message says why and what to change."""


PATIENCE = 10  # skipped batches in a row, then one is clipped
MAX_SKIPS = 50  # skipped batches in a row that stop the run
MAX_SKIP_SHARE = 0.5  # of an epoch's batches, which stops the run too


class GradientFilter:
    r"""Accept or skip batches by the norm of their gradient. MIMONets, appendix E.

    .. math:: \text{skip if } \|g\| > 10 \cdot \text{mean of } \|g\| \text{ over last epoch}

    The mean is over the batches that were accepted; the first epoch has no limit. A norm that is
    not finite is always skipped. Skipping leaves the weights where gradients are large, so after
    ``PATIENCE`` skipped batches in a row one is taken, its gradient clipped to the limit (ours).
    """

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.last_mean = math.inf
        self.norm_sum = 0.0
        self.accepted = 0  # in this epoch
        self.skipped = 0  # in this epoch
        self.in_a_row = 0
        self.total_skipped = 0
        self.total_not_finite = 0
        self.last_skipped = math.nan  # norm of the last batch that was

    def judge(self, gradient_norm: Tensor | float) -> float:
        """Judge a batch, and count it; stop the run after too many skipped ones in a row.

        Returns:
            The largest norm that its gradient may have in the step: infinite as it is, or the
            limit it is to be clipped to; 0 to skip the batch.
        """
        norm = float(gradient_norm)  # the one place where a step waits for the device
        factor = self.config.grad_filter
        limit = math.inf if factor is None else factor * self.last_mean
        if math.isfinite(norm) and (norm <= limit or self.in_a_row >= PATIENCE):
            self.norm_sum += min(norm, limit)
            self.accepted += 1
            self.in_a_row = 0
            return math.inf if norm <= limit else limit
        self.last_skipped = norm
        self.skipped += 1
        self.in_a_row += 1
        self.total_skipped += 1
        self.total_not_finite += not math.isfinite(norm)
        if self.in_a_row >= MAX_SKIPS:
            raise TrainingDivergedError(
                f"{self.in_a_row} batches in a row were skipped: {self._reason(norm)}"
            )
        return 0.0

    def end_epoch(self) -> float:
        """Return the mean gradient norm of the epoch, which limits the next one."""
        batches = self.accepted + self.skipped
        if batches > 1 and self.skipped > MAX_SKIP_SHARE * batches:
            raise TrainingDivergedError(
                f"{self.skipped} of the {batches} batches of an epoch were skipped: "
                f"{self._reason(self.last_skipped)}"
            )
        if self.accepted:
            self.last_mean = self.norm_sum / self.accepted
        self.norm_sum, self.accepted, self.skipped = 0.0, 0, 0
        return self.last_mean

    def _reason(self, norm: float) -> str:
        if not math.isfinite(norm):
            return (
                "their gradients were not finite or far too large. Lower train.lr, or set "
                "train.grad_clip."
            )
        return (
            f"their gradient norm, {norm:.3g} at last, is above {self.config.grad_filter:g} times "
            f"last epoch's mean of {self.last_mean:.3g}. Lower train.lr, or raise "
            f"train.grad_filter."
        )

    def state_dict(self) -> dict[str, Any]:
        """Give the counts as plain data."""
        return {name: value for name, value in vars(self).items() if name != "config"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the counts of :meth:`state_dict` back."""
        vars(self).update(state)


class Statistics:
    """The batch-norm statistics of a model, and how they were before the batch at hand."""

    def __init__(self, model: nn.Module) -> None:
        norms = (StreamBatchNorm, nn.modules.batchnorm._BatchNorm)
        self.now = [
            buffer
            for module in model.modules()
            if isinstance(module, norms)
            for buffer in module.buffers(recurse=False)
        ]
        self.before = [buffer.clone() for buffer in self.now]

    def remember(self) -> None:
        """Keep a copy."""
        if self.now:
            torch._foreach_copy_(self.before, self.now)

    def restore(self) -> None:
        """Go back to the copy."""
        if self.now:
            torch._foreach_copy_(self.now, self.before)


class WeightAverage:
    r"""An exponential moving average of weights and batch-norm statistics.

    .. math:: \bar w_t = d_t \bar w_{t-1} + (1 - d_t) w_t, \quad
        d_t = \min\bigl(d, \tfrac{1 + t}{10 + t}\bigr)

    The smaller decay at the start keeps the random initial weights out of the average. Statistics
    are averaged like the weights they belong to; counts are copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = model
        self.decay = decay
        self.updates = 0
        current = model.state_dict()  # these tensors are the model's own: they follow it
        self.values = {name: value.clone() for name, value in current.items()}
        self._weights: tuple[list[Tensor], list[Tensor]] = ([], [])  # averages, the model's own
        self._counts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for name, value in current.items():
            averages, own = self._weights if value.is_floating_point() else self._counts
            averages.append(self.values[name])
            own.append(value)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        torch._foreach_lerp_(*self._weights, 1 - decay)
        if self._counts[0]:
            torch._foreach_copy_(*self._counts)

    def load_into_model(self) -> None:
        """Give the model the averages for good."""
        self.model.load_state_dict(self.values)

    def state_dict(self) -> dict[str, Any]:
        """Give the averages and their number."""
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the averages of :meth:`state_dict` back."""
        self.updates = state["updates"]
        for name, value in state["values"].items():
            self.values[name].copy_(value)


@contextmanager
def averaged(average: WeightAverage | None) -> Iterator[None]:
    """Give the model the averages for a while; without an average, change nothing."""
    if average is None:
        yield
        return
    own = {name: value.clone() for name, value in average.model.state_dict().items()}
    average.load_into_model()
    try:
        yield
    finally:
        average.model.load_state_dict(own)
