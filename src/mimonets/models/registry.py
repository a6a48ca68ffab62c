"""Every model by the name that recipes and checkpoints use for it."""

from typing import Any

from mimonets.models.base import Model
from mimonets.models.baselines.datamux_conv import DataMUXConv
from mimonets.models.baselines.datamux_former import DataMUXFormer
from mimonets.models.baselines.slimmable import SlimmableWideResNet
from mimonets.models.baselines.transformer import Performer, Transformer
from mimonets.models.baselines.wide_resnet import WideIsoNet, WideResNet
from mimonets.models.mimoconv import MIMOConv
from mimonets.models.mimoformer import MIMOFormer
from mimonets.models.surgery import SuperposedConfig

MODELS: dict[str, type[Model]] = {
    model.kind: model
    for model in (
        *(WideResNet, WideIsoNet, SlimmableWideResNet, MIMOConv, DataMUXConv),
        *(Transformer, Performer, MIMOFormer, DataMUXFormer),
    )
}


def model_class_for(config: Any) -> type[Model]:
    """Find the model that a config describes.

    >>> from mimonets.models.mimoconv import MIMOConvConfig
    >>> model_class_for(MIMOConvConfig()).__name__
    'MIMOConv'
    """
    for model in MODELS.values():
        if type(config) is model.config_class:
            return model
    if isinstance(config, SuperposedConfig):
        raise ValueError(
            "A superposed network is more than its config: load it from Python, "
            "mimonets.load(folder, network=...), and pass the model itself."
        )
    raise ValueError(
        f"{type(config).__name__} describes no model: pass a model or one of "
        f"{', '.join(model.config_class.__name__ for model in MODELS.values())}."
    )
