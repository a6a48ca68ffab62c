"""Before the first step: processes and devices, memory layout, compiling."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from mimonets._device import to_channels_last, use_threads
from mimonets._extras import need
from mimonets._memory import keep_freed_memory
from mimonets._messages import first_line
from mimonets.layers.batch_norm import shared_statistics
from mimonets.models import operating_points
from mimonets.training.config import TrainConfig
from mimonets.training.footprint import out_of_memory, set_recompute

MOST_GRAPHS = 256  # of one function when compiled; PyTorch gives up after 8


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
    processes = config.devices * num_machines()
    # After its first step DDP adds gradients in another order, which more than two processes round
    # otherwise: a resumed run would differ in the last bit. Looking for unused ones it does not.
    exact = processes > 2 and not torch.cuda.is_available()
    strategy = "ddp_find_unused_parameters_true" if unused or exact else "ddp"
    try:
        fabric = library.Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=num_machines(),
            strategy=strategy if processes > 1 else "auto",
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


def agree(fabric: Any, *wishes: bool) -> list[bool]:
    """Let all processes do what any of them wants; all must ask at the same step."""
    if fabric.world_size == 1:
        return list(wishes)
    flags = torch.tensor(wishes, dtype=torch.float32, device=fabric.device)
    return [flag > 0 for flag in fabric.all_reduce(flags, reduce_op="max").tolist()]


def num_machines() -> int:
    """Count the machines that ``torchrun --nnodes`` started; one without it."""
    return int(os.environ.get("GROUP_WORLD_SIZE", 1))


def make_fast(network: nn.Module, config: TrainConfig, device: torch.device) -> Callable[..., Any]:
    """Give what to call in place of the network: the same weights, laid out and compiled.

    Every mode, warm-up, size of a batch and width of sequences is compiled by itself.
    """
    if device.type == "cuda" or config.compile:
        to_channels_last(network)
    return torch.compile(network, dynamic=False) if config.compile else network


@contextmanager
def training_setup(model: nn.Module, config: TrainConfig, device: torch.device) -> Iterator[None]:
    """Training mode, hardware as the config says, random numbers of our own, for a while."""
    keep_freed_memory()
    was_training = model.training
    precision, benchmark = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    try:
        with (
            torch.random.fork_rng(),
            shared_statistics(model),
            use_threads(config.threads),
            torch._dynamo.config.patch(recompile_limit=MOST_GRAPHS)
            if config.compile
            else nullcontext(),
        ):
            if device.type == "cuda":  # TF32 and the fastest convolutions
                torch.set_float32_matmul_precision("high")
                torch.backends.cudnn.benchmark = True
            model.train()
            set_recompute(model, config.recompute)
            yield
    except torch.OutOfMemoryError as error:
        raise ValueError(out_of_memory(model, config, device)) from error
    finally:
        set_recompute(model, False)
        if device.type == "cuda":
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.benchmark = benchmark
        model.train(was_training)
