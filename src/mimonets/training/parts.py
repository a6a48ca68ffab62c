"""The settings of a training, one small config per idea. MIMONets, appendices E and F.

:class:`~mimonets.training.config.TrainConfig` is all of them together, so a recipe writes
``train: {lr: 0.1}``. A function that needs one idea takes its config.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mimonets._config import Config, is_number, is_whole, number, whole

OptimizerName = Literal["sgd", "adamw"]
ScheduleName = Literal["onecycle", "linear-onecycle", "warmup-cosine", "warmup", "constant"]
LossName = Literal["cross_entropy", "squared_error"]
PrecisionName = Literal["32", "bf16"]
SlowInputs = Literal["all", "per-stream"]
MatmulPrecision = Literal["highest", "high", "medium"]
KeptModel = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class LengthConfig(Config):
    """How long, and how much at a time."""

    epochs: int = whole(1200)  # 50 for MNIST, 200 for SVHN
    steps: int | None = whole(None)  # so many optimiser steps instead, as the paper for LRA
    batch_size: int = whole(128)  # superpositions per step: mode A takes batch_size x A inputs
    per_stream: bool = True  # False: batch_size counts all inputs of a step, as on LRA
    seed: int = whole(0, least=0)  # decides modes, mixing and dropout, step by step


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig(Config):
    """What is minimised: the task's loss and two penalties."""

    loss: LossName = "cross_entropy"  # or squared_error to targets of +1 and -1, as in DataMUX
    label_smoothing: float = number(0.0, least=0, below=1)
    mixup: float = number(1.0, least=0)  # alpha of the Beta distribution; 0: no mixing
    isometry: float = number(1e-4, least=0)  # gamma: weight of the isometry penalty, if any
    key_penalty: float = number(0.1, least=0)  # mu: weight of the stream-key penalty, if any


@dataclass(frozen=True, kw_only=True)
class TeacherConfig(Config):
    """What a teacher adds to the objective, see :mod:`mimonets.training.distillation`."""

    teacher: str | None = None  # folder of a trained network, or "slow": this one's own slow mode
    distill: float = number(0.5, least=0, most=1)  # weight of its answers; labels: the rest
    temperature: float = number(4.0, above=0)  # softens the answers of both
    distill_features: float = number(0.0, least=0)  # weight of how alike inputs look to both


@dataclass(frozen=True, kw_only=True)
class ModesConfig(Config):
    """Which mode a batch runs in."""

    fast_share: float = number(1.0, least=0, most=1)  # of batches; the rest has one active
    modes: Mapping[int, float] | None = None  # or in full: active streams -> share of batches
    slow_inputs: SlowInputs = "all"  # of a batch; per-stream: mode A uses batch_size x A of them

    def __post_init__(self) -> None:
        """Check all settings; numbers that JSON wrote as text become numbers."""
        if isinstance(self.modes, Mapping):
            modes = {
                int(mode) if str(mode).isdigit() else mode: p for mode, p in self.modes.items()
            }
            object.__setattr__(self, "modes", modes)
        super().__post_init__()

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found, modes = super().problems(), self.modes
        if modes is not None and not (
            isinstance(modes, Mapping)
            and modes
            and all(is_whole(mode) and mode >= 1 for mode in modes)
            and all(is_number(share) and share >= 0 for share in modes.values())
            and abs(sum(modes.values()) - 1) < 1e-6
        ):
            found.append(
                f"modes={modes!r} must map numbers of active streams to shares that add up to 1, "
                f"such as {{1: 0.2, 4: 0.8}}."
            )
        return found

    def mode_shares(self, num_streams: int) -> dict[int, float]:
        """Share of the batches that each number of active streams gets.

        >>> ModesConfig(fast_share=0.75).mode_shares(num_streams=4)
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


@dataclass(frozen=True, kw_only=True)
class WarmUpConfig(Config):
    """Fractions of training, at its start, that run in a simpler way."""

    retrieval: float = number(0.0, least=0, most=1)  # name the tokens, as in DataMUX
    exact: float = number(0.0, least=0, most=1)  # then: softmax attention
    solo: float = number(0.0, least=0, most=1)  # then: every input alone in its stream
    curriculum: float = number(0.0, least=0, most=1)  # half the grid; 1/6 for 4 x 4
    stream_curriculum: float = number(0.0, least=0, most=1)  # 1, 2, 4 ... active streams

    @property
    def warm_ups(self) -> dict[str, float]:
        """Fractions of the steps of those that follow one another, in this order."""
        return {"retrieval": self.retrieval, "exact": self.exact, "solo": self.solo}

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found, parts = super().problems(), self.warm_ups
        if all(map(is_number, parts.values())) and sum(parts.values()) > 1:
            written = ", ".join(f"{name}={part:g}" for name, part in parts.items() if part)
            found.append(f"{written} are fractions of the same steps, and add up to more than 1.")
        return found


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Config):
    """The optimiser and its learning rate.

    >>> OptimizerConfig(lr=1e-3).lr_range
    (4e-05, 0.001, 1e-07)
    """

    optimizer: OptimizerName = "sgd"
    schedule: ScheduleName = "onecycle"  # cosine; linear-onecycle for LRA; warmup for recall
    lr: float = number(0.2, above=0)  # the highest learning rate
    start_lr: float | None = number(None, above=0)  # at the first step; None: lr / 25, here 0.008
    final_lr: float | None = number(None, above=0)  # at the last step; None: lr / 10000, here 2e-5
    warmup: float = number(0.3, least=0)  # until lr: a fraction of the steps, or steps if >= 1
    momentum: tuple[float, float] = (0.95, 0.85)  # at the lowest and at the highest rate
    cycle_momentum: bool = True  # with onecycle; AdamW cycles its first beta. False: keep still
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    epsilon: float = number(1e-6, above=0)  # of AdamW
    weight_decay: float = number(1e-5, least=0)  # not on activations, stream keys and unbinding
    cross_decay: float | None = number(None, least=0)  # between tied lanes; None: as the others
    decay_all: bool = True  # False: not on biases, norms and embeddings either

    def __post_init__(self) -> None:
        """Check all settings; pairs that were read from JSON or YAML become tuples."""
        _make_tuples(self, "momentum", "betas")
        super().__post_init__()

    @property
    def lr_range(self) -> tuple[float, float, float]:
        """Learning rate at the start, at the top and at the end."""
        start = self.lr / 25 if self.start_lr is None else self.start_lr
        return start, self.lr, self.lr / 10_000 if self.final_lr is None else self.final_lr

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        for name in ("start_lr", "final_lr"):
            value = getattr(self, name)
            if is_number(value) and is_number(self.lr) and value > self.lr:
                found.append(f"{name}={value!r} must be a number at most lr={self.lr!r}.")
        if is_number(self.warmup) and self.warmup >= 1 and self.warmup % 1:
            found.append(
                f"warmup={self.warmup!r} is neither a fraction of the steps (below 1) nor an "
                f"integer number of steps."
            )
        for name in ("momentum", "betas"):
            pair = getattr(self, name)
            if not (
                isinstance(pair, tuple)
                and len(pair) == 2
                and all(is_number(value) and 0 <= value < 1 for value in pair)
            ):
                found.append(f"{name}={pair!r} must be two numbers, each at least 0 and below 1.")
        return found


@dataclass(frozen=True, kw_only=True)
class StabilityConfig(Config):
    """What keeps training stable."""

    # Skip a batch whose gradient norm exceeds this many times last epoch's mean.
    grad_filter: float | None = number(10.0, optional=True, above=1)
    max_skips: int = whole(50)  # so many skipped batches in a row stop the run
    max_skip_share: float = number(0.5, above=0, most=1)  # so does such a share of an epoch
    grad_clip: float | None = number(None, above=0)  # clip the gradient's norm
    ema: float | None = number(None, least=0, below=1)  # decay of averaged weights, used instead


@dataclass(frozen=True, kw_only=True)
class HardwareConfig(Config):
    """How it runs."""

    precision: PrecisionName = "32"  # or bf16: mixed precision
    # Work on a batch in so many parts: less memory, the same step (but for distill_features, which
    # compares the inputs of a part).
    accumulate: int = whole(1)
    accelerator: str = "auto"  # or cpu, cuda, mps
    devices: int = whole(1)  # processes on this machine, each with a batch of its own
    num_nodes: int = whole(1)  # machines
    threads: int | None = whole(None, most=1024)  # CPU threads; None: as many as PyTorch chooses
    compile: bool = False  # through torch.compile: a slow start, then faster steps
    matmul_precision: MatmulPrecision = "high"  # on CUDA: TF32; highest: full float32
    cudnn_benchmark: bool = True  # on CUDA: time the convolution algorithms, use the fastest
    channels_last: bool = True  # on CUDA or compiled: how images and convolutions lie in memory


@dataclass(frozen=True, kw_only=True)
class RecordConfig(Config):
    """What is measured and written down."""

    keep: KeptModel | None = None  # the model to measure; None: best if there is validation data
    checkpoint_every: int | None = whole(None)  # steps; besides every epoch's end
    checkpoint_seconds: float = number(600.0, above=0, most=float("inf"))  # and after this time
    evaluate_every: int = whole(1, least=0)  # epochs; 0: only at the end
    evaluate_modes: tuple[int, ...] | None = None  # None: those that are trained
    recalibrate_batches: int = whole(8, least=0)  # for batch norm in modes not trained; 0: do not
    recalibrate_mixed: bool = True  # after mixup in all modes, on as many unmixed batches

    def __post_init__(self) -> None:
        """Check all settings; lists that were read from JSON or YAML become tuples."""
        _make_tuples(self, "evaluate_modes")
        super().__post_init__()

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found, chosen = super().problems(), self.evaluate_modes
        if chosen is not None and not (
            isinstance(chosen, tuple) and chosen and all(is_whole(m) and m >= 1 for m in chosen)
        ):
            found.append(f"evaluate_modes={chosen!r} must list integers >= 1, or be null.")
        return found


def _make_tuples(config: Config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            object.__setattr__(config, name, tuple(value))
