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
from mimonets.models.baselines.slimmable import SlimmableWideResNet, SlimmableWideResNetConfig
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
from mimonets.models.operating_points import (
    FixedAt,
    find_point,
    fixed_at,
    operating_points,
    usual_points,
)
from mimonets.models.registry import MODELS
from mimonets.models.sequence import SequenceModel, TransformerConfig
from mimonets.models.superposed import Superposed, suggest_boundaries, superpose
from mimonets.models.surgery import SuperposedConfig

__all__ = [
    "MODELS",
    "DataMUXConv",
    "DataMUXConvConfig",
    "DataMUXFormer",
    "DataMUXFormerConfig",
    "FixedAt",
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
    "SlimmableWideResNet",
    "SlimmableWideResNetConfig",
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
    "find_point",
    "fixed_at",
    "name_of",
    "operating_points",
    "register_builder",
    "suggest_boundaries",
    "superpose",
    "usual_points",
]

__getattr__ = renamed(__name__)
