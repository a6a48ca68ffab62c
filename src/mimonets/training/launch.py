"""Before the first step: processes and devices, and whether model, data and config fit."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mimonets.evaluation.accuracy import Batches
from mimonets.models import Model
from mimonets.models.sequence import SequenceModel
from mimonets.training.config import TrainConfig


def launch_fabric(config: TrainConfig) -> Any:
    """Start as many processes as there are devices, and connect them.

    Each further process runs the same script again up to this point, as with ``torchrun``, which
    works too. Gradients are averaged over all processes. Batch norm is not synchronised: each
    process normalises with its own batch, and the running statistics are those of rank 0, which
    every process takes over and which alone writes to disk.
    """
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise ValueError("Training needs Lightning Fabric: pip install 'mimonets[train]'") from None
    # While retrieval warms up, the readout has no gradients, and the others should not wait for it.
    strategy = "ddp_find_unused_parameters_true" if config.retrieval else "ddp"
    fabric = Fabric(
        accelerator=config.accelerator,
        devices=config.devices,
        num_nodes=config.num_nodes,
        strategy=strategy if config.devices * config.num_nodes > 1 else "auto",
        precision="bf16-mixed" if config.precision == "bf16" else "32-true",
    )
    fabric.launch()
    return fabric


@contextmanager
def workplace(model: Model, config: TrainConfig) -> Iterator[None]:
    """Training mode, the threads of the config, and random numbers of our own, for a while."""
    keep_freed_memory()
    threads = torch.get_num_threads()
    was_training = model.training
    try:
        with torch.random.fork_rng():
            torch.set_num_threads(config.threads or threads)
            model.train()
            yield
    finally:
        torch.set_num_threads(threads)
        model.train(was_training)


def keep_freed_memory() -> bool:
    """Ask glibc to keep what is freed for the next step; returns whether it agreed.

    By default it hands large blocks back to the system at once, and every step pays to have them
    mapped and zeroed again: on a CPU that can be more than half of a step's time. The process
    then stays as large as its largest step. ``docs/speed.md`` has the ratio.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # as in malloc.h
    wishes = ((mmap_threshold, 2**30), (trim_threshold, 2**31 - 1), (top_pad, 2**26))
    return all(mallopt(setting, value) == 1 for setting, value in wishes)


def seed_step(seed: int) -> None:
    """Seed the generators that dropout and mixing draw from."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def check_fit(model: Model, batches: Batches, config: TrainConfig) -> None:
    """Refuse a config that does not fit the model or the data, and name every mistake."""
    problems = []
    name = type(model).__name__
    sequences = isinstance(model, SequenceModel)
    if sequences and config.mixup:
        problems.append(
            f"mixup={config.mixup} mixes images, and {name} takes token ids: set train.mixup=0."
        )
    if config.curriculum and not hasattr(model.config, "grid"):
        problems.append(
            f"curriculum={config.curriculum:g} starts with half of the grid, and {name} has none: "
            f"set train.curriculum=0."
        )
    for warm_up, share in config.warm_ups.items():
        if share and warm_up not in model.warm_ups:
            problems.append(
                f"{warm_up}={share:g} is a warm-up that {name} does not have: "
                f"set train.{warm_up}=0."
            )
    if config.teacher == "slow" and 1 not in config.mode_shares(model.num_streams):
        problems.append(
            "teacher='slow' is this network with one active stream, a mode that is not trained: "
            "set train.fast_share below 1, or name 1 in train.modes."
        )
    if config.teacher == "slow" and model.num_streams == 1:
        problems.append(f"teacher='slow' needs several streams, and {name} has one.")
    top = max(config.evaluate_modes or (1,))
    if top > model.num_streams:
        problems.append(
            f"evaluate_modes={config.evaluate_modes} asks for {top} active streams, and the model "
            f"has {model.num_streams}."
        )
    answers = getattr(model.config, "num_classes", None)
    classes = getattr(batches, "num_classes", answers)
    next_token = sequences and model.config.head == "next_token"
    if not next_token and classes != answers:
        problems.append(
            f"The data has {classes} classes, and the model answers with {answers}: "
            f"set model.num_classes={classes}."
        )
    world_size = config.devices * config.num_nodes
    if len(batches) < world_size:
        problems.append(
            f"An epoch has {len(batches)} batches, too few for {world_size} processes: lower "
            f"train.batch_size."
        )
    if problems:
        raise ValueError("Training cannot start. " + " ".join(problems))
    config.mode_shares(model.num_streams)


def check_batch(data: tuple[Tensor, ...], model: Model, config: TrainConfig, *, last: bool) -> None:
    """Refuse batches of another size than the config promises; an epoch's last may be short."""
    streams = model.num_streams if config.per_stream else 1
    wanted, found = config.batch_size * streams, len(data[-1])
    if found > wanted or (found < wanted and not last):
        raise ValueError(
            f"A batch holds {found} inputs, and a step is made for {wanted} (batch_size="
            f"{config.batch_size}{f' for each of {streams} streams' if streams > 1 else ''}): make "
            f"the batches for this model and config."
        )
