"""Count multiply-accumulates per input, by part of the network. MIMONets, appendix E.2.

Two conventions, counted side by side:

* *plain*: one multiply-accumulate of a convolution or matrix product is one MAC; everything else is
  left out. PyTorch's own operator counter gives the same number, and a test holds us to it.
* *paper*: the paper's tables, which add 2 per element for batch norm and 1 for an activation or a
  pooled element.

Parts that run once per input (stem, classifier) cost the same in every mode. The trunk runs once
per group, so its cost is shared by the active inputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.evaluation.layer_macs import layer_macs
from mimonets.models import Model, SequenceModel
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

    tally: dict[str, list[int]] = {}
    if isinstance(hollow, SequenceModel):
        order = ("K/Q/V", "attention", "binding", "MLPs", "demultiplexing", "readout")
        tally = {part: [0, 0] for part in order}
    for name, layer in hollow.named_modules():
        part = _part_of(hollow, name)
        tally.setdefault(part, [0, 0])
        layer.register_forward_hook(partial(_record, tally, part))
    with torch.no_grad():
        hollow(group, active_streams=active)
    return Cost(
        active_streams=active,
        parts=tuple(
            PartCost(name, products / active, (products + elements) / active)
            for name, (products, elements) in tally.items()
            if products or elements
        ),
    )


def _record(
    tally: dict[str, list[int]],
    part: str,
    layer: nn.Module,
    inputs: tuple[Tensor, ...],
    output: Tensor,
) -> None:
    macs = layer_macs(layer, inputs, output)
    tally[part][0] += macs.products
    tally[part][1] += macs.elements
    if macs.binding:
        tally.setdefault("binding", [0, 0])[1] += macs.binding


def _part_of(model: nn.Module, name: str) -> str:
    """Name the part that a layer's cost is booked under."""
    if isinstance(model, SequenceModel):
        return next((BLOCK_PARTS[word] for word in name.split(".") if word in BLOCK_PARTS), "MLPs")
    return name.partition(".")[0]


# Where the layers of a sequence model stand in the paper's table.
BLOCK_PARTS = {
    "norm1": "K/Q/V",
    "to_q": "K/Q/V",
    "to_kv": "K/Q/V",
    "attention": "attention",
    "out": "attention",
    "demultiplexing": "demultiplexing",
    "readout": "readout",
}


def count_modes(config: Any, modes: Iterable[int | None] | None = None) -> list[Cost]:
    """Count the cost of several modes; by default of every one, from slow to fast."""
    wanted = modes or range(1, getattr(config, "num_streams", 1) + 1)
    return [count_macs(config, mode) for mode in wanted]
