"""Enter and leave a superposition in the middle of a network: wrappers around two of its modules.

The network's own ``forward`` stays as it is. From the first wrapper to the second, it sees one
superposition per group where it expects one input.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.bindings.binding import Binding
from mimonets.layers.mode import running_mode
from mimonets.layers.unbinding import StreamUnbinding
from mimonets.vsa import average_copies

# b inputs   g groups   a active inputs   d features


class BindAfter(nn.Module):
    """Run a module input by input, then bind what it gives and add up each group: b -> g.

    Args:
        module: the last one that sees every input by itself.
        binding: of feature maps (b, d, h, w) or (b, d, t), or token features (b, t, d); tiles of
            maps only.
        axis: where the features are; 1 or -1.
    """

    def __init__(self, module: nn.Module, binding: Binding, axis: int) -> None:
        super().__init__()
        self.module = module
        self.binding = binding
        self.axis = axis

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module as it was called before."""
        return change_features(self.module(*inputs, **options), self.bind)

    def bind(self, x: Tensor) -> Tensor:
        """Superpose groups of neighbours: (b, d, h, w) -> (g, d, h, w); tokens (b, t, d) alike."""
        x = x.unflatten(0, (-1, running_mode(self.binding.num_streams)))  # g a ...
        if x.ndim == 5:
            bound: Tensor = self.binding(x)
            return bound
        if self.axis == 1:  # g a d t
            maps: Tensor = self.binding(x.unsqueeze(-1))
            return maps.squeeze(-1)
        positions = x.movedim(-1, 2).flatten(3).unsqueeze(-1)  # g a d (t) 1
        bound = self.binding(positions).squeeze(-1)  # g d (t)
        return bound.mT.reshape(bound.shape[0], *x.shape[2:])


class UnbindBefore(nn.Module):
    """Read every input out of its superposition, then run a module input by input: g -> b.

    Args:
        module: the first one that sees every input by itself again.
        unbinding: acts on the features at every position.
        axis: where the features are; 1 or -1.
    """

    def __init__(
        self, module: nn.Module, unbinding: StreamUnbinding | Binding, axis: int = 1
    ) -> None:
        super().__init__()
        self.unbinding = unbinding
        self.module = module
        self.axis = axis

    def forward(self, x: Any, *inputs: Any, **options: Any) -> Any:
        """Call the module as it was called before."""
        return self.module(change_features(x, self.unbind), *inputs, **options)

    def unbind(self, x: Tensor) -> Tensor:
        """Take the inputs apart: (g, d, h, w) -> (b, d, h, w), or (g, ..., d) -> (b, ..., d)."""
        active = running_mode(self.unbinding.num_streams)
        answers = self.unbinding(x.movedim(self.axis, -1), active).flatten(0, 1)
        return answers.movedim(-1, self.axis)


class SplitBefore(UnbindBefore):
    """The same for streams that were kept apart: ``unbinding`` is the binding that did so."""

    unbinding: Binding

    def unbind(self, x: Tensor) -> Tensor:
        """Take the inputs apart, copies averaged: (g, d, h, w) -> (b, d, h', w')."""
        active = running_mode(self.unbinding.num_streams)
        line = x.ndim == 3
        places = self.unbinding.split(x.unsqueeze(-1) if line else x, active)
        found = average_copies(places, active).flatten(0, 1)
        return found.squeeze(-1) if line else found


class FoldMask(nn.Module):
    """Run a module of the trunk with masks of all inputs: b -> g, real where any input is.

    Args:
        module: takes the mask of every input beside the superposition.
        names: the arguments of its forward that are masks, by position.
        hiding: those of them that are True where a token is hidden; others where it is real.
    """

    def __init__(
        self,
        module: nn.Module,
        names: dict[int, str],
        num_streams: int,
        hiding: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.module = module
        self.names = names
        self.num_streams = num_streams
        self.hiding = hiding

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Call the module as it was called before."""
        folded = [
            self.fold(value, self.names[position]) if position in self.names else value
            for position, value in enumerate(inputs)
        ]
        masks = set(self.names.values())
        options = {k: self.fold(v, k) if k in masks else v for k, v in options.items()}
        return self.module(*folded, **options)

    def fold(self, mask: Any, name: str) -> Any:
        """Join the masks of a group: real where any input is; the largest of what is added."""
        if not isinstance(mask, Tensor) or mask.ndim == 0 or mask.shape[0] == 1:
            return mask  # one for all inputs
        active = running_mode(self.num_streams)
        if mask.shape[0] % active:
            raise ValueError(
                f"{name} of shape {tuple(mask.shape)} does not fit groups of {active} inputs: give "
                f"one mask per input, or one for all with a leading axis of 1."
            )
        groups = mask.unflatten(0, (-1, active))
        if mask.dtype != torch.bool:
            return groups.amax(dim=1)
        return groups.all(dim=1) if name in self.hiding else groups.any(dim=1)


def features_in(value: Any) -> Tensor | None:
    """Find the features in what a module gives: a tensor, or the first one of a collection."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):  # also the ModelOutput of transformers
        value = list(value.values())
    if isinstance(value, tuple | list):
        return next((one for one in value if isinstance(one, Tensor)), None)
    return None


def change_features(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply a change to the features in what a module gives, and leave the rest alone."""
    if isinstance(value, Tensor):
        return change(value)
    features = features_in(value)
    assert features is not None  # superpose() has looked
    if isinstance(value, dict):
        name = next(key for key, one in value.items() if one is features)
        return type(value)({**value, name: change(features)})
    changed = [change(one) if one is features else one for one in value]
    return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)


class ClassifierPerStream(nn.Module):
    """A classifier for every stream in place of unbinding and one classifier for all."""

    def __init__(self, linear: nn.Linear, num_streams: int) -> None:
        super().__init__()
        self.unbinding = StreamUnbinding(
            linear.in_features, num_streams, outputs=linear.out_features, relu=False
        ).to(linear.weight)
        with torch.no_grad():  # every stream starts with the classifier that was there
            self.unbinding.weight.copy_(linear.weight)
            if linear.bias is not None:
                self.unbinding.bias.copy_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Classify (g, d) -> (b, classes)."""
        return self.unbinding(x, running_mode(self.unbinding.num_streams)).flatten(0, 1)
