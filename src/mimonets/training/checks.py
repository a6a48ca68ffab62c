"""Whether model, data and config fit, said before the first step."""

import os
import shutil
import sys
from typing import Any

from torch import Tensor, nn

from mimonets.data.interface import Batches
from mimonets.training.config import TrainConfig


def check_fit(
    model: Any, batches: Batches, config: TrainConfig, validation: Batches | None = None
) -> None:
    """Refuse a config that does not fit the model or the data, and name every mistake."""
    name = type(model).__name__
    streams = getattr(model, "num_streams", None)
    if not isinstance(model, nn.Module) or not isinstance(streams, int):
        raise ValueError(
            f"Training takes a network with an attribute num_streams and "
            f"forward(inputs, active_streams=...), and {name} is none: num_streams is {streams!r}."
        )
    problems = []
    settings = getattr(model, "config", None)  # third-party networks need not have one
    tokens = hasattr(settings, "vocab_size")
    if tokens and config.mixup:
        problems.append(
            f"mixup={config.mixup} mixes images, and {name} takes token ids: set train.mixup=0."
        )
    if config.curriculum and not hasattr(settings, "grid"):
        problems.append(
            f"curriculum={config.curriculum:g} starts with half of the grid, and {name} has none: "
            f"set train.curriculum=0."
        )
    for warm_up, fraction in config.warm_ups.items():
        if fraction and warm_up not in getattr(model, "warm_ups", ()):
            problems.append(
                f"{warm_up}={fraction:g} is a warm-up that {name} does not have: "
                f"set train.{warm_up}=0."
            )
    if config.teacher == "slow" and 1 not in config.mode_shares(streams):
        problems.append(
            "teacher='slow' is this network with one active stream, a mode that is not trained: "
            "set train.fast_share below 1, or name 1 in train.modes."
        )
    if config.teacher == "slow" and streams == 1:
        problems.append(f"teacher='slow' needs several streams, and {name} has one.")
    answers = getattr(settings, "num_classes", None)
    classes = getattr(batches, "num_classes", answers)
    next_token = getattr(settings, "head", None) == "next_token"
    if not next_token and None not in (classes, answers) and classes != answers:
        problems.append(
            f"The data has {classes} classes, and the model answers with {answers}: "
            f"set model.num_classes={classes}."
        )
    problems += image_problems(settings, getattr(getattr(batches, "data", None), "shape", None))
    if config.keep == "best" and validation is None:
        problems.append(
            "keep=best chooses a model by validation data, and there is none: hold some out "
            "(data.validation=5000), or set train.keep=last."
        )
    if config.compile and shutil.which(compiler := cpp_compiler()) is None:
        problems.append(
            f"compile=true needs a C++ compiler, and {compiler} is not installed: install it, "
            f"name yours in the environment variable CXX, or set train.compile=false."
        )
    if problems:
        raise ValueError("Training cannot start. " + " ".join(problems))
    config.mode_shares(streams)


def image_problems(settings: Any, shape: Any) -> list[str]:
    """Say where images (c, h, w) are not those that a model's config describes."""
    size, channels = (getattr(settings, name, None) for name in ("image_size", "in_channels"))
    if shape is None or len(shape) != 3 or None in (size, channels):
        return []
    found = []
    if shape[0] != channels:
        found.append(
            f"Images have {shape[0]} channels, and the model takes {channels}: set "
            f"model.in_channels={shape[0]}."
        )
    if shape[1:] != (size, size):
        cut = "crop them to a square (data.crop)" if shape[1] != shape[2] else "or crop them"
        fits = f"set model.image_size={shape[1]}, " if shape[1] == shape[2] else ""
        found.append(
            f"Images are {shape[1]}x{shape[2]}, and the model is for {size}x{size}: {fits}{cut}."
        )
    return found


def check_batch(data: tuple[Tensor, ...], model: Any, config: TrainConfig, *, last: bool) -> None:
    """Refuse batches of another size than the config promises; an epoch's last may be short."""
    streams = model.num_streams if config.per_stream else 1
    wanted, found = config.batch_size * streams, len(data[0])
    if found > wanted or (found < wanted and not last):
        raise ValueError(
            f"A batch holds {found} inputs, and a step is made for {wanted} (batch_size="
            f"{config.batch_size}{f' for each of {streams} streams' if streams > 1 else ''}): make "
            f"the batches for this model and config."
        )


def cpp_compiler() -> str:
    """Name the compiler that ``torch.compile`` runs."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return os.environ.get("CXX", usual)
