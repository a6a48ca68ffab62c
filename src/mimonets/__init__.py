"""mimonets: computation in superposition, several inputs in one pass through one network.

The public names load on first use, so that ``mimonets --help`` need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mimonets.layers import recalibrate
    from mimonets.models import (
        DataMUXConv,
        DataMUXConvConfig,
        DataMUXFormer,
        DataMUXFormerConfig,
        GearedWideResNet,
        GearedWideResNetConfig,
        MIMOConv,
        MIMOConvConfig,
        MIMOFormer,
        MIMOFormerConfig,
        Performer,
        PerformerConfig,
        Transformer,
        TransformerConfig,
        WideIsoNet,
        WideIsoNetConfig,
        WideResNet,
        WideResNetConfig,
        load,
        save,
    )

__version__ = "0.1.0"

__all__ = [
    "DataMUXConv",
    "DataMUXConvConfig",
    "DataMUXFormer",
    "DataMUXFormerConfig",
    "GearedWideResNet",
    "GearedWideResNetConfig",
    "MIMOConv",
    "MIMOConvConfig",
    "MIMOFormer",
    "MIMOFormerConfig",
    "Performer",
    "PerformerConfig",
    "Transformer",
    "TransformerConfig",
    "WideIsoNet",
    "WideIsoNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "load",
    "recalibrate",
    "save",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'mimonets' has no attribute {name!r}")
    room = "mimonets.layers" if name == "recalibrate" else "mimonets.models"
    return getattr(import_module(room), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
