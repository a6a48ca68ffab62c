"""Make a network run fast on its device: memory layout, and ``torch.compile`` if that is wanted."""

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mimonets._device import to_channels_last
from mimonets.training.config import TrainConfig


def make_fast(network: nn.Module, config: TrainConfig, device: torch.device) -> Callable[..., Any]:
    """Give what to call in place of the network: the same weights, laid out and compiled.

    Batches have two sizes, the usual one and an epoch's last: each is compiled by itself.
    """
    if config.channels_last and (device.type == "cuda" or config.compile):
        to_channels_last(network)
    return torch.compile(network, dynamic=False) if config.compile else network


def cpp_compiler() -> str:
    """Name the compiler that ``torch.compile`` runs."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return os.environ.get("CXX", usual)
