"""Before the first step: processes and devices, and whether model, data and config fit."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mimonets._device import to_channels_last
from mimonets._extras import need
from mimonets._memory import keep_freed_memory
from mimonets._messages import first_line
from mimonets.data.interface import Batches
from mimonets.models import operating_points
from mimonets.training.config import TrainConfig


def launch_fabric(config: TrainConfig, model: Any) -> Any:
    """Start as many processes as there are devices, and connect them.

    Each further process runs the same script again up to this point, as with ``torchrun``, which
    works too. Gradients are averaged over all processes. Only rank 0 writes to disk.
    """
    library = need("lightning_fabric", "Lightning Fabric", extra="train", what="Training")
    # Some steps give some parameters no gradient: the readout's while retrieval warms up, and those
    # of widths that do not run. The other processes should not wait for them.
    points = [point.inputs_per_pass for point in operating_points(model)]
    unused = config.retrieval > 0 or len(points) > len(set(points))
    strategy = "ddp_find_unused_parameters_true" if unused else "ddp"
    try:
        fabric = library.Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=num_machines(),
            strategy=strategy if config.devices * num_machines() > 1 else "auto",
            precision="bf16-mixed" if config.precision == "bf16" else "32-true",
        )
    except Exception as error:  # Fabric has many kinds of them
        reason = first_line(error)
        raise ValueError(
            f"Training cannot run with train.accelerator={config.accelerator} and train.devices="
            f"{config.devices} on this machine: {reason}. train.accelerator=cpu always works."
        ) from error
    fabric.launch()
    return fabric


def num_machines() -> int:
    """Count the machines that ``torchrun --nnodes`` started; one without it."""
    return int(os.environ.get("GROUP_WORLD_SIZE", 1))


def make_fast(network: nn.Module, config: TrainConfig, device: torch.device) -> Callable[..., Any]:
    """Give what to call in place of the network: the same weights, laid out and compiled.

    Batches have two sizes, the usual one and an epoch's last: each is compiled by itself.
    """
    if device.type == "cuda" or config.compile:
        to_channels_last(network)
    return torch.compile(network, dynamic=False) if config.compile else network


def cpp_compiler() -> str:
    """Name the compiler that ``torch.compile`` runs."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return os.environ.get("CXX", usual)


@contextmanager
def workplace(model: nn.Module, config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Training mode, hardware as the config says, random numbers of our own, for a while."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    was_training = model.training
    try:
        with torch.random.fork_rng(), fast_products(device):
            torch.set_num_threads(config.threads or threads)
            model.train()
            yield
    finally:
        torch.set_num_threads(threads)
        model.train(was_training)


@contextmanager
def fast_products(device: torch.device) -> Iterator[None]:
    """Use TF32 and the fastest convolutions on a CUDA device, for a while; elsewhere nothing."""
    if device.type != "cuda":
        yield
        return
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = benchmark


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
    world_size = config.devices * num_machines()
    if len(batches) < world_size:
        problems.append(
            f"An epoch has {len(batches)} batches, too few for {world_size} processes: lower "
            f"train.batch_size."
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
    wanted, found = config.batch_size * streams, len(data[-1])
    if found > wanted or (found < wanted and not last):
        raise ValueError(
            f"A batch holds {found} inputs, and a step is made for {wanted} (batch_size="
            f"{config.batch_size}{f' for each of {streams} streams' if streams > 1 else ''}): make "
            f"the batches for this model and config."
        )
