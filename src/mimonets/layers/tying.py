"""Tie the layers of a third-party network, so that it commutes with the rotation of N lanes.

Every layer keeps a lane's share of its features, D / N, and lanes lie in the batch axis; see
:mod:`mimonets.layers.tied`. Matrices at both ends bring an input's D features down to a lane's.
"""

import copy
from collections.abc import Iterable

from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from mimonets.layers.tied import Lanes, TiedConv2d, TiedLinear
from mimonets.vsa import average_copies

# g groups   a active inputs   s lanes   d features

# Attributes of layers that count features or groups of them: a lane has its share of each.
COUNTS = (
    *("num_features", "num_channels", "num_groups", "num_parameters"),
    *("in_channels", "out_channels", "groups"),
)
Shared = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.PReLU)  # one for all lanes, a lane wide


def tie(module: nn.Module, lanes: int, name: str) -> nn.Module:
    """Make a layer that does in N lanes what ``module`` does in as many features.

    Convolutions and linear layers become tied ones. Norms, PReLU and convolutions in groups, such
    as depthwise ones, act on every lane alike and become a lane wide. All start with the weights
    that ``module`` has for its first lane. What has no weights stays as it is.

    Args:
        name: of the module, for messages.

    Raises:
        ValueError: if its features do not divide into lanes, or it is no kind of layer that can be
            tied.

    >>> tie(nn.Conv2d(8, 16, 3, padding=1), 4, "conv")
    TiedConv2d(2, 4, 3x3, lanes=4, stride=(1, 1))
    >>> tie(nn.BatchNorm2d(16), 4, "norm").num_features
    4
    """
    if isinstance(module, nn.Linear):
        i, o = _shares(name, lanes, inputs=module.in_features, outputs=module.out_features)
        linear = TiedLinear(i, o, lanes=lanes, bias=module.bias is not None).to(module.weight)
        linear.copy_first_lane(module)
        return linear
    if isinstance(module, nn.Conv2d) and module.padding_mode == "zeros":
        sizes = {"maps in": module.in_channels, "maps out": module.out_channels}
        if module.groups > 1:
            _shares(name, lanes, **sizes, groups=module.groups)
            return _first_lane(module, lanes)
        i, o = _shares(name, lanes, **sizes)
        convolution = TiedConv2d(
            *(i, o, module.kernel_size),
            lanes=lanes,
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            bias=module.bias is not None,
        ).to(module.weight)
        convolution.copy_first_lane(module)
        return convolution
    if isinstance(module, Shared):
        if isinstance(module, nn.PReLU) and module.num_parameters == 1:
            return module
        sizes = {count: getattr(module, count) for count in COUNTS if hasattr(module, count)}
        if isinstance(module, nn.LayerNorm):
            sizes = {"features": module.normalized_shape[0]}
        _shares(name, lanes, **sizes)
        return _first_lane(module, lanes)
    if module._parameters:
        raise ValueError(
            f"binding='tied' ties convolutions (padded with zeros), linear layers, norms and "
            f"PReLU, and {name!r} is a {type(module).__name__} with other weights: name modules "
            f"that leave it out of the trunk, or choose another binding."
        )
    return module


class EnterLanes(Lanes):
    """Bring features down to a lane's by a trained matrix, the same for all, and fill the lanes.

    Args:
        features: D, of every input.
        num_streams: N; a lane has D / N.
        generator: draws the matrix, whose rows start orthonormal.
    """

    def __init__(self, features: int, num_streams: int, generator: Generator | None = None) -> None:
        super().__init__(num_streams)
        self.narrow = nn.Conv2d(features, features // num_streams, 1, bias=False)
        nn.init.orthogonal_(self.narrow.weight, generator=generator)

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Fill the lanes: (g, a, d, h, w) -> (g s, d / s, h, w)."""
        narrow = self.narrow(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return super().forward(narrow)


class LeaveLanes(nn.Module):
    """Take lanes apart, average those of the same input, and bring them up to D features again."""

    def __init__(self, features: int, num_streams: int, generator: Generator | None = None) -> None:
        super().__init__()
        self.num_streams = num_streams
        self.widen = nn.Linear(features // num_streams, features)
        nn.init.orthogonal_(self.widen.weight, generator=generator)
        nn.init.zeros_(self.widen.bias)

    def cut(self, lanes: Tensor, active_streams: int) -> Tensor:
        """Take maps apart, (g s, d / s, h, w) -> (g, a, d, h, w), or features (g s, d / s)."""
        streams = average_copies(lanes.unflatten(0, (-1, self.num_streams)), active_streams)
        wide: Tensor = self.widen(streams.movedim(2, -1))
        return wide.movedim(-1, 2)


def _shares(name: str, lanes: int, **sizes: int) -> list[int]:
    """Divide sizes by the number of lanes; refuse those that do not divide."""
    for what, size in sizes.items():
        if size % lanes:
            counted = what.removeprefix("num_")
            raise ValueError(
                f"{name!r} has {size} {counted}, which do not divide into {lanes} lanes: choose "
                f"another num_streams, or modules that leave it out of the trunk."
            )
    return [size // lanes for size in sizes.values()]


def _first_lane(module: nn.Module, lanes: int) -> nn.Module:
    """Copy a layer that acts on every feature, or group of them, by itself, for one lane."""
    narrow = copy.deepcopy(module)
    for count in COUNTS:
        if hasattr(narrow, count):
            setattr(narrow, count, getattr(narrow, count) // lanes)
    if isinstance(narrow, nn.LayerNorm):
        first, *rest = narrow.normalized_shape
        narrow.normalized_shape = (first // lanes, *rest)
    for name, value in _sized(narrow._parameters.items()):
        setattr(narrow, name, nn.Parameter(value[: len(value) // lanes].detach().clone()))
    for name, value in _sized(narrow._buffers.items()):
        setattr(narrow, name, value[: len(value) // lanes].clone())
    return narrow


def _sized(held: Iterable[tuple[str, Tensor | None]]) -> list[tuple[str, Tensor]]:
    """List the tensors that have a value per feature, not those of one number."""
    return [(name, value) for name, value in held if value is not None and value.ndim]
