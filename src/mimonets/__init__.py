"""mimonets: computation in superposition, several inputs in one pass through one network."""

from mimonets.layers import recalibrate
from mimonets.models import (
    MIMOConv,
    MIMOConvConfig,
    WideIsoNet,
    WideIsoNetConfig,
    WideResNet,
    WideResNetConfig,
    load,
    save,
)

__version__ = "0.1.0"

__all__ = [
    "MIMOConv",
    "MIMOConvConfig",
    "WideIsoNet",
    "WideIsoNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "load",
    "recalibrate",
    "save",
]
