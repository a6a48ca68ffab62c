"""What every binding does: let the inputs of a group share one pass, and tell them apart again."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Generator, Tensor, nn

# g groups   a active inputs   p places   s streams   d feature maps   h, w position

KeyName = Literal["gaussian", "unitary", "bipolar", "slots"]
ReadoutName = Literal["shared", "stream"]
SlowName = Literal["views", "full"]
ViewName = Literal["copies", "shifts", "flips"]


@dataclass(frozen=True, kw_only=True)
class BindingSettings:
    """What a binding may know of its network. A config has only some of these settings."""

    num_streams: int
    bound_maps: int | None = None  # D, features where inputs are bound; None if not yet known
    stem_stride: int = 1
    strides: int = 1  # by which the layers that follow the binding stride in all
    keeps_size: bool = False  # whether these layers expect maps of the size that one input has
    line: bool = False  # whether maps have one axis of positions, (b, d, t)
    stream_keys: KeyName | None = None  # None: the first of the binding's ``key_names``
    trainable_keys: bool = True
    identity_start: bool = False
    slow: SlowName = "views"
    views: ViewName = "copies"

    @classmethod
    def of(cls, config: Any, **known: Any) -> Self:
        """Take what the config of a network has, and what else is known of the network."""
        names = [field.name for field in fields(cls) if hasattr(config, field.name)]
        return cls(**{**{name: getattr(config, name) for name in names}, **known})


class Boundary(NamedTuple):
    """Features at one end of the superposition, and the module that gives or takes them."""

    module: str
    features: Tensor  # (b, d, h, w), (b, d, t), (b, t, d) or (b, d)


class Binding(nn.Module):
    """How the inputs of a group share one pass, and how their answers are told apart again.

    A network runs ``views``, its stem, the binding itself, its trunk and ``split``, in this order.
    Streams that are added up are then unbound by matrices; streams that are kept apart are cut out
    of the feature maps by ``split``, and copies of an input are averaged.

    A new binding is a subclass in a file of its own, and a line in
    :mod:`mimonets.bindings.registry`. It needs ``make`` and ``forward``.
    """

    summary: ClassVar[str]  # completes the sentence "inputs are joined by ..." of a model card
    keeps_apart: ClassVar[bool] = False  # whether split() separates the streams, without matrices
    key_names: ClassVar[Collection[KeyName]] = ()  # kinds of stream keys it can be made with
    uses: ClassVar[frozenset[str]] = frozenset()  # settings that other bindings may not have

    num_streams: int

    @classmethod
    def make(cls, settings: BindingSettings, generator: Generator | None = None) -> "Binding":
        """Make the binding of a network; ``generator`` draws its keys."""
        raise NotImplementedError

    @classmethod
    def setting_problems(cls, settings: BindingSettings) -> list[str]:
        """List settings that do not fit each other, one sentence each."""
        return []

    def problems(self, entering: Boundary, leaving: Boundary) -> list[str]:
        """List why these features cannot enter or leave the superposition, one sentence each."""
        return []

    def views(self, images: Tensor, active_streams: int) -> Tensor:
        """Say what each place sees of its input: (g, a, c, h, w) -> (g, p, c, h, w)."""
        return images

    def zoom(self, active_streams: int) -> int:
        """Say how many times finer the stem looks at an input in this mode."""
        return 1

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Join the inputs of each group: (g, p, d, h, w) -> (g, d, h', w').

        Args:
            x: may hold fewer inputs than the mode says, in a group that is not full.
            active_streams: the mode; the number of inputs by default.
        """
        raise NotImplementedError

    def join_alone(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Put every input into a pass of its own: (g, a, d, h, w) -> (g a, d, h', w')."""
        joined: Tensor = self(each_alone(x), active_streams)
        return joined

    def split(self, maps: Tensor, active_streams: int | None = None) -> Tensor:
        """Cut streams that are kept apart out of maps: (g, d, h, w) -> (g, p, d, h', w')."""
        return maps

    def penalty(self) -> Tensor:
        """Measure how far the stream keys are from orthonormal. Zero here: there are no keys."""
        return torch.zeros(())


def each_alone(x: Tensor) -> Tensor:
    """Make a group of every input, with zeros in the others' places: (g, a, ...) -> (g a, a, ...).

    >>> each_alone(torch.tensor([[1.0, 2.0]]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    active = x.shape[1]
    own = x.new_zeros(active, active).fill_diagonal_(1).view(1, active, active, *[1] * (x.ndim - 2))
    return (own * x.unsqueeze(1)).flatten(0, 1)
