"""TrainConfig: everything that decides how a model is trained. MIMONets, appendices E and F."""

from dataclasses import dataclass

from mimonets.training.parts import (
    HardwareConfig,
    LengthConfig,
    ModesConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RecordConfig,
    StabilityConfig,
    TeacherConfig,
    WarmUpConfig,
)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    RecordConfig,  # dataclasses list the fields of their last base first
    HardwareConfig,
    StabilityConfig,
    OptimizerConfig,
    WarmUpConfig,
    ModesConfig,
    TeacherConfig,
    ObjectiveConfig,
    LengthConfig,
):
    """How to train: nine ideas, each with a few settings. The defaults are the paper's for CIFAR.

    >>> TrainConfig(epochs=50).total_steps(steps_per_epoch=430)
    21500
    """

    def total_steps(self, steps_per_epoch: int) -> int:
        """Count the optimiser steps of the whole training."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    def cuts_batches(self, num_streams: int) -> bool:
        """Whether ``slow_inputs`` makes a difference: some mode has fewer than all streams."""
        smaller = any(mode < num_streams for mode in self.mode_shares(num_streams))
        return self.per_stream and (smaller or self.curriculum + self.stream_curriculum > 0)
