"""Whole networks, and how they are saved and loaded."""

from mimonets.models.base import ImageModel, Model
from mimonets.models.checkpoint import load, read_config, save
from mimonets.models.config import (
    DataMUXConvConfig,
    MIMOConvConfig,
    WideIsoNetConfig,
    WideResNetConfig,
)
from mimonets.models.datamux_conv import DataMUXConv
from mimonets.models.datamux_former import DataMUXFormer
from mimonets.models.mimoconv import MIMOConv
from mimonets.models.mimoformer import MIMOFormer
from mimonets.models.registry import MODELS
from mimonets.models.sequence import SequenceModel
from mimonets.models.sequence_config import (
    DataMUXFormerConfig,
    MIMOFormerConfig,
    PerformerConfig,
    TransformerConfig,
)
from mimonets.models.transformer import Performer, Transformer
from mimonets.models.wide_resnet import WideIsoNet, WideResNet

__all__ = [
    "MODELS",
    "DataMUXConv",
    "DataMUXConvConfig",
    "DataMUXFormer",
    "DataMUXFormerConfig",
    "ImageModel",
    "MIMOConv",
    "MIMOConvConfig",
    "MIMOFormer",
    "MIMOFormerConfig",
    "Model",
    "Performer",
    "PerformerConfig",
    "SequenceModel",
    "Transformer",
    "TransformerConfig",
    "WideIsoNet",
    "WideIsoNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "load",
    "read_config",
    "save",
]
