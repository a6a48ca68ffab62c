"""Whole networks: MIMOConv, MIMOFormer, superpose() for any network, and the baselines."""

from mimonets._renamed import renamed
from mimonets.models.base import (
    ImageModel,
    Model,
    MultipleInput,
    alternatives_of,
    cost_part_of,
    eval_mode,
    name_of,
)
from mimonets.models.baselines.datamux_conv import DataMUXConv, DataMUXConvConfig
from mimonets.models.baselines.datamux_former import DataMUXFormer, DataMUXFormerConfig
from mimonets.models.baselines.geared import GearedWideResNet, GearedWideResNetConfig
from mimonets.models.baselines.transformer import Performer, PerformerConfig, Transformer
from mimonets.models.baselines.wide_resnet import (
    WideIsoNet,
    WideIsoNetConfig,
    WideResNet,
    WideResNetConfig,
)
from mimonets.models.builders import register_builder
from mimonets.models.mimoconv import MIMOConv, MIMOConvConfig
from mimonets.models.mimoformer import MIMOFormer, MIMOFormerConfig
from mimonets.models.registry import MODELS
from mimonets.models.sequence import SequenceModel, TransformerConfig
from mimonets.models.superposed import Superposed, superpose
from mimonets.models.surgery import SuperposedConfig

__all__ = [
    "MODELS",
    "DataMUXConv",
    "DataMUXConvConfig",
    "DataMUXFormer",
    "DataMUXFormerConfig",
    "GearedWideResNet",
    "GearedWideResNetConfig",
    "ImageModel",
    "MIMOConv",
    "MIMOConvConfig",
    "MIMOFormer",
    "MIMOFormerConfig",
    "Model",
    "MultipleInput",
    "Performer",
    "PerformerConfig",
    "SequenceModel",
    "Superposed",
    "SuperposedConfig",
    "Transformer",
    "TransformerConfig",
    "WideIsoNet",
    "WideIsoNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "alternatives_of",
    "cost_part_of",
    "eval_mode",
    "name_of",
    "register_builder",
    "superpose",
]

_MOVED = ("ModelCard", "load", "read_config", "save")
__getattr__ = renamed(__name__, {name: f"mimonets.checkpoints.{name}" for name in _MOVED})
