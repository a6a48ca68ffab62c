"""TrainConfig: everything that decides how a model is trained. MIMONets, appendices D and F."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mimonets._config import Config, is_number, is_whole, number, whole

OptimizerName = Literal["sgd", "adamw"]
ScheduleName = Literal["onecycle", "linear-onecycle", "warmup", "constant"]
LossName = Literal["cross_entropy", "squared_error"]
PrecisionName = Literal["32", "bf16"]
SlowInputs = Literal["all", "per-stream"]
MatmulPrecision = Literal["highest", "high", "medium"]
KeptModel = Literal["best", "last"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """How to train. The defaults are the paper's for MIMOConv on CIFAR.

    >>> TrainConfig(epochs=50).total_steps(steps_per_epoch=430)
    21500
    >>> TrainConfig(lr=1e-3).lr_range
    (4e-05, 0.001, 1e-07)
    """

    # How long, and how much at a time
    epochs: int = whole(1200)  # 50 for MNIST, 200 for SVHN
    steps: int | None = whole(None)  # so many optimiser steps instead, as the paper says it for LRA
    # Superpositions per step; a batch has batch_size x num_streams inputs.
    batch_size: int = whole(128)
    per_stream: bool = True  # False: batch_size counts all inputs of a step, as on LRA

    # What is minimised
    loss: LossName = "cross_entropy"  # or squared_error to targets of +1 and -1, as in DataMUX
    label_smoothing: float = number(0.0, least=0, below=1)
    # Alpha of the Beta distribution; 0 mixes nothing, as sequences need it.
    mixup: float = number(1.0, least=0)
    # Gamma: weight of the isometry penalty, where the model has one.
    isometry: float = number(1e-4, least=0)
    # Mu: weight of the stream-key penalty, where the model has one.
    key_penalty: float = number(0.1, least=0)

    # What a teacher adds, see training/distillation.py
    teacher: str | None = None  # folder of a trained network, or "slow": this one's own slow mode
    # Weight of the teacher's answers; the labels have the rest.
    distill: float = number(0.5, least=0, most=1)
    temperature: float = number(4.0, above=0)  # softens the answers of both
    # Weight of the distance between their features' similarities.
    distill_features: float = number(0.0, least=0)

    # Which mode a batch runs in
    # Share of batches with all streams busy; the rest has one active.
    fast_share: float = number(1.0, least=0, most=1)
    modes: Mapping[int, float] | None = None  # or in full: active streams -> share of batches
    slow_inputs: SlowInputs = "all"  # of a batch; per-stream: mode A uses batch_size x A of them
    # Fraction of training, at its start, that names tokens, as in DataMUX.
    retrieval: float = number(0.0, least=0, most=1)
    # Fraction of training, at its start, on half the grid; 1/6 for 4 x 4.
    curriculum: float = number(0.0, least=0, most=1)
    # Fraction of training, at its start, with 1, 2, 4 ... active.
    stream_curriculum: float = number(0.0, least=0, most=1)
    # Fraction of training, at its start, that uses softmax attention.
    exact: float = number(0.0, least=0, most=1)
    # Fraction of training, after exact, with every input alone in its stream.
    solo: float = number(0.0, least=0, most=1)

    # The optimiser and its schedule
    optimizer: OptimizerName = "sgd"
    schedule: ScheduleName = "onecycle"  # cosine; linear-onecycle for LRA; warmup for recall
    lr: float = number(0.2, above=0)  # the highest learning rate
    # At the first step; None: lr / 25, the paper's 0.008.
    start_lr: float | None = number(None, above=0)
    # At the last step; None: lr / 10000, the paper's 2e-5.
    final_lr: float | None = number(None, above=0)
    # Until lr is reached: a fraction of the steps if below 1, else steps.
    warmup: float = number(0.3, least=0)
    momentum: tuple[float, float] = (0.95, 0.85)  # at the lowest and at the highest rate
    cycle_momentum: bool = True  # with onecycle; AdamW cycles its first beta. False: keep still
    betas: tuple[float, float] = (0.9, 0.999)  # of AdamW
    epsilon: float = number(1e-6, above=0)  # of AdamW
    # Never on activations, stream keys and unbinding matrices.
    weight_decay: float = number(1e-5, least=0)
    # Between tied lanes; None: like the other weights.
    cross_decay: float | None = number(None, least=0)
    decay_all: bool = True  # False: not on biases, norms and embeddings either

    # What keeps it stable
    # Skip a batch this many times above last epoch's mean norm.
    grad_filter: float | None = number(10.0, optional=True, above=1)
    max_skips: int = whole(50)  # so many skipped batches in a row stop the run
    # So does an epoch that skipped more than this share of them.
    max_skip_share: float = number(0.5, above=0, most=1)
    grad_clip: float | None = number(None, above=0)  # clip the gradient's norm
    # Decay of a running average of the weights, used in their place.
    ema: float | None = number(None, least=0, below=1)

    # How it runs
    precision: PrecisionName = "32"  # or bf16: mixed precision
    accumulate: int = whole(1)  # work on a batch in so many parts: less memory, the same step
    accelerator: str = "auto"  # or cpu, cuda, mps
    devices: int = whole(1)  # processes on this machine, each with a batch of its own
    num_nodes: int = whole(1)  # machines
    threads: int | None = whole(None)  # CPU threads; None: as many as PyTorch chooses
    matmul_precision: MatmulPrecision = "high"  # on CUDA: TF32; highest: full float32
    cudnn_benchmark: bool = True  # on CUDA: time the convolution algorithms, use the fastest
    channels_last: bool = True  # on CUDA: how images and convolutions lie in memory
    seed: int = whole(0, least=0)  # decides modes, mixing and dropout, step by step

    # What is written down
    keep: KeptModel | None = None  # the model to measure; None: best if there is validation data
    checkpoint_every: int | None = whole(None)  # steps; besides every epoch's end
    checkpoint_seconds: float = number(600.0, above=0, most=math.inf)  # and after this time
    evaluate_every: int = whole(1, least=0)  # epochs; 0: only at the end
    evaluate_modes: tuple[int, ...] | None = None  # None: those that are trained
    # To measure batch norm in modes that were not trained; 0: do not.
    recalibrate_batches: int = whole(8, least=0)

    def __post_init__(self) -> None:
        """Check all settings; sequences and mappings read from JSON or YAML are made ours."""
        for name in ("momentum", "betas", "evaluate_modes"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):
                object.__setattr__(self, name, tuple(value))
        if isinstance(self.modes, Mapping):
            modes = {
                int(mode) if str(mode).isdigit() else mode: p for mode, p in self.modes.items()
            }
            object.__setattr__(self, "modes", modes)
        super().__post_init__()

    def total_steps(self, steps_per_epoch: int) -> int:
        """Count the optimiser steps of the whole training."""
        return self.epochs * steps_per_epoch if self.steps is None else self.steps

    @property
    def lr_range(self) -> tuple[float, float, float]:
        """Learning rate at the start, at the top and at the end."""
        start = self.lr / 25 if self.start_lr is None else self.start_lr
        return start, self.lr, self.lr / 10_000 if self.final_lr is None else self.final_lr

    @property
    def warm_ups(self) -> dict[str, float]:
        """Fractions of the steps that run in a simpler way first, in this order."""
        return {"retrieval": self.retrieval, "exact": self.exact, "solo": self.solo}

    def cuts_batches(self, num_streams: int) -> bool:
        """Whether ``slow_inputs`` makes a difference: some mode has fewer than all streams."""
        smaller = any(mode < num_streams for mode in self.mode_shares(num_streams))
        return self.per_stream and (smaller or self.curriculum + self.stream_curriculum > 0)

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

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        for name, choices in (
            ("optimizer", OptimizerName),
            ("schedule", ScheduleName),
            ("loss", LossName),
            ("precision", PrecisionName),
            ("slow_inputs", SlowInputs),
            ("matmul_precision", MatmulPrecision),
        ):
            found += self._wrong_choice(name, get_args(choices))
        if self.keep is not None:
            found += self._wrong_choice("keep", get_args(KeptModel))
        found += self._wrong_numbers()
        found += self._wrong_pairs()
        return found

    def _wrong_numbers(self) -> list[str]:
        found = []
        for name in ("start_lr", "final_lr"):
            value = getattr(self, name)
            if is_number(value) and is_number(self.lr) and value > self.lr:
                found.append(f"{name}={value!r} must be a number <= lr={self.lr!r}.")
        if is_number(self.warmup) and self.warmup >= 1 and self.warmup != int(self.warmup):
            found.append(
                f"warmup={self.warmup!r} is neither a fraction of the steps (below 1) nor an "
                f"integer number of steps."
            )
        return found

    def _wrong_pairs(self) -> list[str]:
        found = []
        shares = self.warm_ups
        if all(map(is_number, shares.values())) and sum(shares.values()) > 1:
            written = ", ".join(f"{name}={share:g}" for name, share in shares.items() if share)
            found.append(f"{written} are fractions of the same steps, and add up to more than 1.")
        for name in ("momentum", "betas"):
            pair = getattr(self, name)
            if not (
                isinstance(pair, tuple)
                and len(pair) == 2
                and all(is_number(value) and 0 <= value < 1 for value in pair)
            ):
                found.append(f"{name}={pair!r} must be two numbers, each >= 0 and < 1.")
        modes = self.modes
        if modes is not None and not (
            modes
            and all(is_whole(mode) and mode >= 1 for mode in modes)
            and all(is_number(share) and share >= 0 for share in modes.values())
            and abs(sum(modes.values()) - 1) < 1e-6
        ):
            found.append(
                f"modes={modes!r} must map numbers of active streams to shares that add up to 1, "
                f"such as {{1: 0.2, 4: 0.8}}."
            )
        chosen = self.evaluate_modes
        if chosen is not None and not (chosen and all(is_whole(m) and m >= 1 for m in chosen)):
            found.append(f"evaluate_modes={chosen!r} must list integers >= 1, or be null.")
        return found
