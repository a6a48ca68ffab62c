"""The optimiser, what it decays, and the learning rate from step to step."""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from mimonets.bindings import Binding
from mimonets.layers import ShiftedReLU, StreamUnbinding
from mimonets.models.sequence import Embedding
from mimonets.training.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Make SGD or AdamW with weight decay where it belongs."""
    groups = decay_groups(model, config)
    start = config.lr_range[0]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=start, betas=config.betas, eps=config.epsilon)
    return torch.optim.SGD(groups, lr=start, momentum=config.momentum[0])


def decay_groups(model: nn.Module, config: TrainConfig) -> list[dict[str, object]]:
    """Split the parameters into those with and those without weight decay.

    The paper's rule (appendix E): none on the slopes and bends of activations, on stream keys and
    on unbinding, its bias included. With ``decay_all=False`` none on biases, norms and embeddings
    either.
    """
    spared: tuple[type[nn.Module], ...] = (nn.PReLU, ShiftedReLU, StreamUnbinding, Binding)
    if not config.decay_all:
        spared += (Embedding, nn.Embedding)
    without: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, spared):
            without.update(module.parameters())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not config.decay_all:
        without.update(parameter for parameter in trained if parameter.ndim < 2)
    groups = (
        ([p for p in trained if p not in without], config.weight_decay),
        ([p for p in trained if p in without], 0.0),
    )
    return [{"params": group, "weight_decay": decay} for group, decay in groups if group]


def make_scheduler(
    optimizer: torch.optim.Optimizer, config: TrainConfig, total_steps: int
) -> LRScheduler:
    """Make the learning-rate schedule; one-cycle is PyTorch's own.

    Smith & Topin, "Super-convergence", 2019: the rate rises from the first of ``lr_ends`` to ``lr``
    and falls to the second, while momentum goes the other way. ``warmup`` only rises, in a line
    from 0; ``warmup-cosine`` rises so and falls along a cosine.
    """
    start, top, final = config.lr_range
    rising = warmup_steps(config, total_steps)
    if "onecycle" not in config.schedule:
        for group in optimizer.param_groups:
            group["lr"] = top
        falling = max(1, total_steps - 1 - rising)

        def factor(step: int) -> float:
            if step < rising and config.schedule != "constant":
                return (step + 1) / rising
            if config.schedule != "warmup-cosine":
                return 1.0
            part = (1 + math.cos(math.pi * (step - rising) / falling)) / 2
            return part + (1 - part) * final / top

        return LambdaLR(optimizer, factor)
    high, low = config.momentum
    rising = min(rising, total_steps - 1)
    return OneCycleLR(
        optimizer,
        max_lr=top,
        total_steps=total_steps,
        # PyTorch divides by zero if the rise is one step long, or if nothing follows it.
        pct_start=rising / total_steps if rising > 1 else 0.0,
        anneal_strategy="cos" if config.schedule == "onecycle" else "linear",
        cycle_momentum=config.cycle_momentum,
        base_momentum=low,
        max_momentum=high,
        div_factor=top / start,
        final_div_factor=start / final,
    )


def warmup_steps(config: TrainConfig, total_steps: int) -> int:
    """Count the steps until the highest learning rate.

    >>> warmup_steps(TrainConfig(warmup=0.3), 1000), warmup_steps(TrainConfig(warmup=175), 1000)
    (300, 175)
    """
    steps = config.warmup * total_steps if config.warmup < 1 else config.warmup
    return min(round(steps), total_steps)
