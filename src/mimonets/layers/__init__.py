"""Modules that carry a superposition safely."""

from mimonets._renamed import renamed
from mimonets.layers.activations import ActivationName, ShiftedReLU, make_activation
from mimonets.layers.batch_norm import BatchNorm2d
from mimonets.layers.isometric import (
    SkipScale,
    init_convolution,
    isometry_penalty,
    total_isometry_penalty,
)
from mimonets.layers.mode import keep_mode, running, running_mode
from mimonets.layers.pooling import GridPool2d
from mimonets.layers.stream_norm import (
    StreamBatchNorm,
    StreamBatchNorm2d,
    recalibrate,
    untrained_modes,
)
from mimonets.layers.unbinding import StreamAverage, StreamUnbinding

__all__ = [
    "ActivationName",
    "BatchNorm2d",
    "GridPool2d",
    "ShiftedReLU",
    "SkipScale",
    "StreamAverage",
    "StreamBatchNorm",
    "StreamBatchNorm2d",
    "StreamUnbinding",
    "init_convolution",
    "isometry_penalty",
    "keep_mode",
    "make_activation",
    "recalibrate",
    "running",
    "running_mode",
    "total_isometry_penalty",
    "untrained_modes",
]

__getattr__ = renamed(__name__)
