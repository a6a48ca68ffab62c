"""Evaluation mode for a while, of a whole network."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn

AnyModule = TypeVar("AnyModule", bound=nn.Module)


@contextmanager
def evaluating(model: AnyModule, *, inference: bool = True) -> Iterator[AnyModule]:
    """Switch to evaluation mode without gradients; the previous mode comes back afterwards.

    Args:
        model: the network; every module of it gets its own mode back.
        inference: in PyTorch's inference mode, whose tensors no backward pass can use later;
            tracing and compiling need plain ones.
    """
    was_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode() if inference else torch.no_grad():
            yield model
    finally:
        for module, flag in was_training.items():
            module.training = flag
