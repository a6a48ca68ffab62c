"""Whole networks, and how they are saved and loaded."""

from mimonets.models.base import ImageModel, Model
from mimonets.models.checkpoint import load, read_config, save
from mimonets.models.config import MIMOConvConfig, WideIsoNetConfig, WideResNetConfig
from mimonets.models.mimoconv import MIMOConv
from mimonets.models.registry import MODELS
from mimonets.models.wide_resnet import WideIsoNet, WideResNet

__all__ = [
    "MODELS",
    "ImageModel",
    "MIMOConv",
    "MIMOConvConfig",
    "Model",
    "WideIsoNet",
    "WideIsoNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "load",
    "read_config",
    "save",
]
