"""mimonets: computation in superposition, several inputs in one pass through one network.

The public names load on first use, so that ``mimonets --help`` need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mimonets._renamed import renamed

if TYPE_CHECKING:
    from mimonets._operating_point import OperatingPoint
    from mimonets.checkpoints import load, save
    from mimonets.experiments.compare import compare
    from mimonets.inference import Engine, ExportOptions, export
    from mimonets.layers import recalibrate
    from mimonets.models import (
        DataMUXConv,
        DataMUXConvConfig,
        DataMUXFormer,
        DataMUXFormerConfig,
        MIMOConv,
        MIMOConvConfig,
        MIMOFormer,
        MIMOFormerConfig,
        Performer,
        PerformerConfig,
        SlimmableWideResNet,
        SlimmableWideResNetConfig,
        Transformer,
        TransformerConfig,
        WideIsoNet,
        WideIsoNetConfig,
        WideResNet,
        WideResNetConfig,
        register_builder,
        suggest_boundaries,
        superpose,
    )
    from mimonets.recipes.create import create, list_models

__version__ = "0.3.0"

__all__ = [
    "DataMUXConv",
    "DataMUXConvConfig",
    "DataMUXFormer",
    "DataMUXFormerConfig",
    "Engine",
    "ExportOptions",
    "MIMOConv",
    "MIMOConvConfig",
    "MIMOFormer",
    "MIMOFormerConfig",
    "OperatingPoint",
    "Performer",
    "PerformerConfig",
    "SlimmableWideResNet",
    "SlimmableWideResNetConfig",
    "Transformer",
    "TransformerConfig",
    "WideIsoNet",
    "WideIsoNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "compare",
    "create",
    "export",
    "list_models",
    "load",
    "recalibrate",
    "register_builder",
    "save",
    "suggest_boundaries",
    "superpose",
]

_ROOMS = {
    "Engine": "mimonets.inference",
    "OperatingPoint": "mimonets._operating_point",
    "ExportOptions": "mimonets.inference",
    "compare": "mimonets.experiments.compare",
    "create": "mimonets.recipes.create",
    "export": "mimonets.inference",
    "list_models": "mimonets.recipes.create",
    "load": "mimonets.checkpoints",
    "recalibrate": "mimonets.layers",
    "save": "mimonets.checkpoints",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        return renamed(__name__)(name)
    return getattr(import_module(_ROOMS.get(name, "mimonets.models")), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
