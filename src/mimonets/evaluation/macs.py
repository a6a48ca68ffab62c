"""Count multiply-accumulates per input, by part of the network. MIMONets, appendix E.2.

Two conventions, counted side by side:

* *plain*: one multiply-accumulate of a convolution or matrix product is one MAC; everything else is
  left out. PyTorch's own operator counter gives the same number, and a test holds us to it.
* *paper*: the paper's tables, which add 2 per element for batch norm and 1 for an activation or a
  pooled element.

Parts that run once per input (stem, classifier) cost the same at every operating point. The
trunk runs once per group, so its cost is shared by the active inputs.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mimonets._operating_point import OperatingPoint
from mimonets.evaluation.layer_macs import has_formula, is_known, layer_macs
from mimonets.models import Model, cost_part_of, find_point, usual_points
from mimonets.models.registry import model_class_for


@dataclass(frozen=True)
class PartCost:
    """What one part of a network costs per input, in MACs."""

    name: str
    plain: float
    paper: float


@dataclass(frozen=True)
class Cost:
    """What a network costs per input at one operating point.

    >>> from mimonets import MIMOConvConfig
    >>> cost = count_macs(MIMOConvConfig(num_streams=4))
    >>> round(cost.paper / 1e6), round(cost["binding"].plain / 1e6, 2)
    (1339, 4.19)
    """

    point: OperatingPoint
    parts: tuple[PartCost, ...]

    @property
    def active_streams(self) -> int:
        """How many inputs share a pass."""
        return self.point.inputs_per_pass

    @property
    def plain(self) -> float:
        """MACs of convolutions and matrix products alone."""
        return sum(part.plain for part in self.parts)

    @property
    def paper(self) -> float:
        """MACs as the paper counts them."""
        return sum(part.paper for part in self.parts)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON, in MACs per input."""
        return {
            "point": self.point.name,
            "active_streams": self.active_streams,
            "paper": {**{part.name: part.paper for part in self.parts}, "total": self.paper},
            "plain": {**{part.name: part.plain for part in self.parts}, "total": self.plain},
        }

    def __getitem__(self, part: str) -> PartCost:
        return next(found for found in self.parts if found.name == part)


def count_macs(model: Model | nn.Module | Any, active_streams: int | None = None) -> Cost:
    """Count what a model costs per input.

    Nothing is computed: a copy of the model without memory is run on shapes alone.

    Args:
        model: a model, the config of one of ours, or any module that has ``num_streams`` (1 if it
            does not say), ``example_inputs(batch_size)`` and
            ``forward(inputs, active_streams=...)``.
        active_streams: the operating point, by its number; by default all streams busy.
    """
    return count_points(model, [active_streams])[0]


def count_points(
    model: Model | nn.Module | Any, numbers: Iterable[int | None] | None = None
) -> list[Cost]:
    """Count the cost at several operating points; by default the usual ones, from slow to fast."""
    hollow: Any = hollow_copy(model)
    points = [find_point(hollow, number) for number in numbers or ()] or usual_points(hollow)
    return [_count(hollow, point) for point in points]


def hollow_copy(model: Model | nn.Module | Any) -> nn.Module:
    """Make a copy without memory, on the meta device, in evaluation mode."""
    if isinstance(model, nn.Module) and not isinstance(model, Model):
        if not hasattr(model, "example_inputs"):
            raise ValueError(
                f"{type(model).__name__} does not say what its inputs look like: give it a method "
                f"example_inputs(batch_size)."
            )
        held = chain(model.parameters(), model.buffers())
        memo = {id(tensor): _without_memory(tensor) for tensor in held}
        return copy.deepcopy(model, memo).eval()
    config = model.config if isinstance(model, Model) else model
    with torch.device("meta"):
        return model_class_for(config)(config).eval()


def _without_memory(tensor: Tensor) -> Tensor:
    hollow = torch.empty_like(tensor, device="meta")
    return (
        nn.Parameter(hollow, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else hollow
    )


def _count(hollow: nn.Module, point: OperatingPoint) -> Cost:
    active = point.inputs_per_pass
    with torch.device("meta"):
        group = hollow.example_inputs(active).to("meta")  # type: ignore[operator]
    counted = _LayerTally(hollow)
    # A third-party network of one input per pass need not take ``active_streams``.
    plain = getattr(hollow, "num_streams", 1) == 1 and not isinstance(hollow, Model)
    options = {} if plain else point.options
    with torch.no_grad(), counted.watching():
        hollow(group, **options)
    return Cost(
        point=point,
        parts=tuple(
            PartCost(name, products / active, (products + elements) / active)
            for name, (products, elements) in counted.tally.items()
            if products or elements
        ),
    )


class _LayerTally:
    """Books what every layer costs under its part while a model runs.

    A layer of a type that :func:`layer_macs` knows is counted by its formula. What else is
    computed, by third-party layers that it does not know and between their layers, is counted by
    PyTorch's operator counter.
    """

    def __init__(self, model: nn.Module) -> None:
        first = getattr(model, "cost_parts", ())
        self.tally: dict[str, list[float]] = {part: [0, 0] for part in first}
        self.model = model
        unknown = any(not is_known(layer) for layer in model.modules())
        self.counter = FlopCounterMode(display=False) if unknown else None
        self.known = 0.0  # operations inside layers that have a formula
        self.begun: list[tuple[float, float]] = []  # of the layers that run: total and known

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count all that runs, for a while."""
        with ExitStack() as stack:
            for name, layer in self.model.named_modules():
                part = cost_part_of(self.model, name) or "other"
                self.tally.setdefault(part, [0, 0])
                stack.enter_context(layer.register_forward_pre_hook(self._enter))
                stack.enter_context(layer.register_forward_hook(partial(self._leave, part)))
            if self.counter is not None:
                mha = torch.backends.mha
                stack.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
                mha.set_fastpath_enabled(False)  # it runs no layer that could be seen
                stack.enter_context(self.counter)
            yield

    def _total(self) -> float:
        return 0.0 if self.counter is None else self.counter.get_total_flops() / 2

    def _enter(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.begun.append((self._total(), self.known))

    def _leave(self, part: str, layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        total, known = self.begun.pop()
        spent, explained = self._total() - total, self.known - known
        macs = layer_macs(layer, inputs, output)
        products = macs.products if has_formula(layer) else spent - explained
        self.known = known + spent
        self.tally[part][0] += products
        self.tally[part][1] += macs.elements
        if macs.binding:
            self.tally.setdefault("binding", [0, 0])[1] += macs.binding
