"""TrainConfig: everything that decides how a model is trained. MIMONets, appendices E and F."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from mimonets._config import Config, integer, is_integer, is_number, number

OptimizerName = Literal["sgd", "adamw"]
ScheduleName = Literal["onecycle", "linear-onecycle", "warmup-cosine", "warmup", "constant"]
LossName = Literal["cross_entropy", "squared_error", "binary"]
PrecisionName = Literal["32", "bf16"]
SlowInputs = Literal["all", "per-stream"]
LearningRateRule = Literal["keep", "linear", "sqrt"]
KeptModel = Literal["best", "last"]

LAST_VERSION_WITH_REMOVED = "0.2.0"
REMOVED: dict[str, Any] = {  # settings that are gone -> their default, which is what is done now
    "distill_features": 0.0,
    "stream_curriculum": 0.0,
    "cross_decay": None,
    "max_skips": 50,
    "max_skip_share": 0.5,
    "num_nodes": 1,
    "matmul_precision": "high",
    "cudnn_benchmark": True,
    "channels_last": True,
    "checkpoint_every": None,
    "checkpoint_seconds": 600.0,
    "evaluate_modes": None,
    "recalibrate_mixed": True,
}
REPLACED = {"start_lr": "lr_ends", "final_lr": "lr_ends"}  # settings that have another name
# On the trained weights.
REMOVED_WITHOUT_EFFECT = {"checkpoint_every", "checkpoint_seconds", "recalibrate_mixed"}


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """How to train. The defaults are the paper's for CIFAR.

    >>> TrainConfig(epochs=50).total_steps(steps_per_epoch=430)
    21500
    """

    # How long, and how much at a time.
    epochs: int = integer(1200)  # 50 for MNIST, 200 for SVHN
    steps: int | None = integer(None)  # so many optimiser steps instead, as the paper for LRA
    batch_size: int = integer(128)  # superpositions per step: mode A takes batch_size x A inputs
    per_stream: bool = True  # False: batch_size counts all inputs of a step, as on LRA
    seed: int = integer(0, least=0)  # decides modes, mixing and dropout, step by step

    # What is minimised: the task's loss and two penalties.
    # Or squared_error, to numbers, or to +1 and -1 for labels as in DataMUX; binary: 0 and 1.
    loss: LossName = "cross_entropy"
    label_smoothing: float = number(0.0, least=0, below=1)
    mixup: float = number(1.0, least=0)  # alpha of the Beta distribution; 0: no mixing
    isometry: float = number(1e-4, least=0)  # gamma: weight of the isometry penalty, if any
    key_penalty: float = number(0.1, least=0)  # mu: weight of the stream-key penalty, if any

    # What a teacher adds to that, see mimonets.training.distillation.
    teacher: str | None = None  # folder of a trained network, or "slow": this one's own slow mode
    distill: float = number(0.5, least=0, most=1)  # weight of its answers; labels: the rest
    temperature: float = number(4.0, above=0)  # softens the answers of both

    # Which mode a batch runs in.
    fast_share: float = number(1.0, least=0, most=1)  # of batches; the rest has one active
    modes: Mapping[int, float] | None = None  # or in full: active streams -> share of batches
    slow_inputs: SlowInputs = "all"  # of a batch; per-stream: mode A uses batch_size x A of them

    # Warm-ups: fractions of training, at its start, that run in a simpler way.
    retrieval: float = number(0.0, least=0, most=1)  # name the tokens, as in DataMUX
    exact: float = number(0.0, least=0, most=1)  # then: softmax attention
    solo: float = number(0.0, least=0, most=1)  # then: every input alone in its stream
    curriculum: float = number(0.0, least=0, most=1)  # half the grid; 1/6 for 4 x 4

    # The optimiser and its learning rate.
    optimizer: OptimizerName = "sgd"
    schedule: ScheduleName = "onecycle"  # cosine; linear-onecycle for LRA; warmup for recall
    lr: float = number(0.2, above=0)  # the highest learning rate
    # At the first and at the last step; null: lr / 25 and lr / 10000, here 0.008 and 2e-5.
    lr_ends: tuple[float | None, float | None] = number((None, None), above=0)
    warmup: float = number(0.3, least=0)  # until lr: a fraction of the steps, or steps if >= 1
    # At the lowest and at the highest rate.
    momentum: tuple[float, float] = number((0.95, 0.85), least=0, below=1)
    cycle_momentum: bool = True  # with onecycle; AdamW cycles its first beta. False: keep still
    betas: tuple[float, float] = number((0.9, 0.999), least=0, below=1)  # of AdamW
    epsilon: float = number(1e-6, above=0)  # of AdamW
    weight_decay: float = number(1e-5, least=0)  # not on activations, stream keys and unbinding
    decay_all: bool = True  # False: not on biases, norms and embeddings either

    # What keeps training stable.
    # Skip a batch whose gradient norm exceeds this many times last epoch's mean.
    grad_filter: float | None = number(10.0, above=1)
    grad_clip: float | None = number(None, above=0)  # clip the gradient's norm
    ema: float | None = number(None, least=0, below=1)  # decay of averaged weights, used instead

    # How it runs.
    precision: PrecisionName = "32"  # or bf16: mixed precision
    # Work on a batch in so many parts: less memory, the same step, but batch norm sees each part
    # by itself. auto: as few as fit into the memory of a CUDA device.
    accumulate: int | Literal["auto"] = integer(1)
    recompute: bool = False  # features of linear attention again in the backward pass: less memory
    accelerator: str = "auto"  # or cpu, cuda, mps
    devices: int = integer(1)  # processes on this machine, which share every batch
    threads: int | None = integer(None, most=1024)  # CPU threads; None: as many as PyTorch chooses
    compile: bool = False  # through torch.compile: a slow start, then faster steps

    # What is measured and kept.
    keep: KeptModel | None = None  # the model to measure; None: best if there is validation data
    evaluate_every: int = integer(1, least=0)  # epochs; 0: only at the end
    # For batch norm in modes that are not trained, after mixup in all; 0: do not.
    recalibrate_batches: int = integer(8, least=0)

    def __post_init__(self) -> None:
        """Check all settings; numbers of streams that JSON wrote as text become numbers."""
        if isinstance(self.modes, Mapping):
            modes = {
                int(mode) if str(mode).isdigit() else mode: p for mode, p in self.modes.items()
            }
            object.__setattr__(self, "modes", modes)
        super().__post_init__()

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found, modes, parts = super().problems(), self.modes, self.warm_ups
        if isinstance(modes, Mapping) and not (
            modes
            and all(is_integer(mode) and mode >= 1 for mode in modes)
            and all(is_number(share) and share >= 0 for share in modes.values())
            and abs(sum(modes.values()) - 1) < 1e-6
        ):
            found.append(
                f"modes={modes!r} must map numbers of active streams to shares that add up to 1, "
                f"such as {{1: 0.2, 4: 0.8}}."
            )
        if all(map(is_number, parts.values())) and sum(parts.values()) > 1:
            written = ", ".join(f"{name}={part:g}" for name, part in parts.items() if part)
            found.append(f"{written} are fractions of the same steps, and add up to more than 1.")
        if is_number(self.warmup) and self.warmup >= 1 and self.warmup % 1:
            found.append(
                f"warmup={self.warmup!r} is neither a fraction of the steps (below 1) nor an "
                f"integer number of steps."
            )
        if not found and any(end is not None and end > self.lr for end in self.lr_ends):
            found.append(f"lr_ends={self.lr_ends!r} must be at most lr={self.lr:g}.")
        return found

    def total_steps(self, steps_per_epoch: int) -> int:
        """Count the optimiser steps of the whole training."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    def multiplied(self, times: int, lr: LearningRateRule) -> Self:
        """Take a batch that is so many times larger, and say what that does to the learning rate.

        ``linear`` multiplies it too (Goyal et al., "Accurate, large minibatch SGD", 2017), ``sqrt``
        by the square root, which is usual for AdamW, and ``keep`` leaves it as it is. This is
        another recipe: there are as many times fewer steps in an epoch.

        >>> config = TrainConfig(batch_size=128, lr=0.2).multiplied(4, lr="linear")
        >>> config.batch_size, config.lr
        (512, 0.8)
        """
        factor = {"linear": times, "sqrt": math.sqrt(times), "keep": 1}[lr]
        first, last = (None if end is None else end * factor for end in self.lr_ends)
        size, rate = self.batch_size * times, self.lr * factor
        return replace(self, batch_size=size, lr=rate, lr_ends=(first, last))

    @property
    def warm_ups(self) -> dict[str, float]:
        """Fractions of the steps of those that follow one another, in this order."""
        return {"retrieval": self.retrieval, "exact": self.exact, "solo": self.solo}

    @property
    def lr_range(self) -> tuple[float, float, float]:
        """Learning rate at the start, at the top and at the end.

        >>> TrainConfig(lr=1e-3).lr_range
        (4e-05, 0.001, 1e-07)
        """
        start, final = self.lr_ends
        return (
            self.lr / 25 if start is None else start,
            self.lr,
            self.lr / 10_000 if final is None else final,
        )

    def mode_shares(self, num_streams: int) -> dict[int, float]:
        """Share of the batches that each number of active streams gets.

        >>> TrainConfig(fast_share=0.75).mode_shares(num_streams=4)
        {1: 0.25, 4: 0.75}
        """
        if self.modes is not None:
            shares = dict(self.modes)
        elif num_streams == 1:
            shares = {1: 1.0}
        else:
            shares = {1: 1 - self.fast_share, num_streams: self.fast_share}
        wrong = [mode for mode in shares if mode > num_streams]
        if wrong:
            raise ValueError(
                f"train.modes names {', '.join(map(str, wrong))} active streams, but the model has "
                f"{num_streams}: use numbers from 1 to {num_streams}."
            )
        return {mode: share for mode, share in shares.items() if share > 0}

    def cuts_batches(self, num_streams: int) -> bool:
        """Whether ``slow_inputs`` makes a difference: some mode has fewer than all streams."""
        smaller = any(mode < num_streams for mode in self.mode_shares(num_streams))
        return self.per_stream and (smaller or self.curriculum > 0)


def drop_removed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out settings of an old run that are gone; refuse those that changed its training.

    >>> drop_removed({"lr": 0.1, "evaluate_modes": None, "checkpoint_every": 5})
    {'lr': 0.1}
    """
    ends = settings.get("start_lr"), settings.get("final_lr")  # two settings before 0.3.0
    settings = {key: settings[key] for key in settings if key not in REPLACED}
    if ends != (None, None):
        settings["lr_ends"] = list(ends)
    changed = [
        f"train.{name}={settings[name]!r}"
        for name, default in REMOVED.items()
        if name not in REMOVED_WITHOUT_EFFECT and settings.get(name, default) != default
    ]
    if changed:
        raise ValueError(
            f"{', '.join(changed)}: mimonets {LAST_VERSION_WITH_REMOVED} is the last version with "
            f"this setting, use it for this run."
        )
    return {name: value for name, value in settings.items() if name not in REMOVED}
