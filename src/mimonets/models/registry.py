"""Every model by the name that recipes and checkpoints use for it."""

from mimonets.models.base import Model
from mimonets.models.mimoconv import MIMOConv
from mimonets.models.wide_resnet import WideIsoNet, WideResNet

MODELS: dict[str, type[Model]] = {model.kind: model for model in (WideResNet, WideIsoNet, MIMOConv)}
