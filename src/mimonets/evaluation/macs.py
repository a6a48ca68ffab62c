"""Count multiply-accumulates per input, by part of the network. MIMONets, appendix E.2.

Two conventions, counted side by side:

* *plain*: one multiply-accumulate of a convolution or matrix product is one MAC; everything else is
  left out. PyTorch's own operator counter gives the same number, and a test holds us to it.
* *paper*: the paper's tables, which add 2 per element for batch norm and 1 for an activation or a
  pooled element.

Parts that run once per input (stem, classifier) cost the same in every mode. The trunk runs once
per group, so its cost is shared by the active inputs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, singledispatch
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.layers import (
    PositionBinding,
    ShiftedReLU,
    StreamBatchNorm2d,
    StreamUnbinding,
)
from mimonets.models import Model
from mimonets.models.registry import model_class_for
from mimonets.vsa import check_active_streams


@dataclass(frozen=True)
class PartCost:
    """What one part of a network costs per input, in MACs."""

    name: str
    plain: float
    paper: float


@dataclass(frozen=True)
class Cost:
    """What a network costs per input in one mode.

    >>> from mimonets import MIMOConvConfig
    >>> cost = count_macs(MIMOConvConfig(num_streams=4))
    >>> round(cost.paper / 1e6), round(cost["binding"].plain / 1e6, 2)
    (1339, 4.19)
    """

    active_streams: int
    parts: tuple[PartCost, ...]

    @property
    def plain(self) -> float:
        """MACs of convolutions and matrix products alone."""
        return sum(part.plain for part in self.parts)

    @property
    def paper(self) -> float:
        """MACs as the paper counts them."""
        return sum(part.paper for part in self.parts)

    def __getitem__(self, part: str) -> PartCost:
        return next(found for found in self.parts if found.name == part)


def count_macs(model: Model | Any, active_streams: int | None = None) -> Cost:
    """Count what a model costs per input.

    Nothing is computed: a copy of the model without memory is run on shapes alone.

    Args:
        model: a model, or the config of one. The size of the inputs stands in the config.
        active_streams: the mode; by default all streams busy.
    """
    config = model.config if isinstance(model, Model) else model
    with torch.device("meta"):
        hollow = model_class_for(config)(config).eval()
        active = check_active_streams(active_streams, hollow.num_streams)
        group = hollow.example_inputs(active)

    plain: dict[str, int] = {name: 0 for name, _ in hollow.named_children()}
    extra: dict[str, int] = dict(plain)

    def record(part: str, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        products, elements = layer_macs(layer, inputs[0], output)
        plain[part] += products
        extra[part] += elements

    for part, child in hollow.named_children():
        for layer in child.modules():
            layer.register_forward_hook(partial(record, part))
    with torch.no_grad():
        hollow(group, active_streams=active)
    return Cost(
        active_streams=active,
        parts=tuple(
            PartCost(name, plain[name] / active, (plain[name] + extra[name]) / active)
            for name in plain
        ),
    )


def count_modes(config: Any, modes: Iterable[int] | None = None) -> list[Cost]:
    """Count the cost of several modes; by default of every one, from slow to fast."""
    every = range(1, getattr(config, "num_streams", 1) + 1)
    return [count_macs(config, mode) for mode in (modes or every)]


Macs = tuple[int, int]  # products, and what the paper counts beside them


@singledispatch
def layer_macs(layer: nn.Module, x: Tensor, y: Tensor) -> Macs:
    """Count one layer's own MACs from its input and output shape; containers have none."""
    return 0, 0


@layer_macs.register
def _(layer: nn.Conv2d, x: Tensor, y: Tensor) -> Macs:
    return y.numel() * layer.weight[0].numel(), 0


@layer_macs.register
def _(layer: nn.Linear, x: Tensor, y: Tensor) -> Macs:
    return y.numel() * layer.in_features, 0


@layer_macs.register
def _(layer: PositionBinding, x: Tensor, y: Tensor) -> Macs:
    active, maps = x.shape[1:3]  # the 1x1 convolution from a * d to d maps
    return y.numel() * active * maps, 0


@layer_macs.register
def _(layer: StreamUnbinding, x: Tensor, y: Tensor) -> Macs:
    return x.shape[0] * layer.weight.numel(), 0


def _two_per_element(layer: nn.Module, x: Tensor, y: Tensor) -> Macs:
    return 0, 2 * y.numel()


def _one_per_element(layer: nn.Module, x: Tensor, y: Tensor) -> Macs:
    return 0, x.numel()


_ELEMENTWISE: dict[type[nn.Module], Callable[[nn.Module, Tensor, Tensor], Macs]] = {
    nn.BatchNorm2d: _two_per_element,
    StreamBatchNorm2d: _two_per_element,
    nn.ReLU: _one_per_element,
    nn.PReLU: _one_per_element,
    ShiftedReLU: _one_per_element,
    nn.AdaptiveAvgPool2d: _one_per_element,
}
for _layer_type, _rule in _ELEMENTWISE.items():
    layer_macs.register(_layer_type, _rule)
