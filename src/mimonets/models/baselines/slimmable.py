"""One set of weights at several widths and resolutions: what a network with modes competes with.

Yu et al., "Slimmable neural networks", ICLR 2019; Wang et al., "Resolution switchable networks",
ECCV 2020. As their authors do, all operating points share the weights of the convolutions
and of the classifier, and each has batch norms of its own.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from mimonets._config import integer, number
from mimonets._operating_point import OperatingPoint
from mimonets.layers import BatchNorm2d, GridPool2d, init_convolution
from mimonets.models.base import MIN_IMAGE_SIZE, ImageModel
from mimonets.models.baselines.wide_resnet import WideResNetConfig
from mimonets.vsa import check_active_streams

# b batch   c feature maps   h, w position

UNUSED = ("activation", "skip_init", "dirac_init", "shortcut_norm", "final_norm", "stem_stride")


@dataclass(frozen=True, kw_only=True)
class SlimmableWideResNetConfig(WideResNetConfig):
    """A WideResNet that runs at several widths, at several resolutions, or at both.

    Point 1 is the first of both lists; put the most accurate there. A slimmable network has several
    widths at ``shrinks=(1, 1, 1)``, a resolution-switchable one several shrinks at full width.
    With ``widths=(0.5,)`` it is a plain network of half the width: only maps that some point uses
    have weights.
    """

    # Of each point: fraction of the feature maps, and pixels per side averaged to one.
    widths: tuple[float, ...] = number((1.0, 0.5, 0.25), above=0, most=1)
    shrinks: tuple[int, ...] = integer((1, 1, 1))

    @property
    def operating_points(self) -> tuple[OperatingPoint, ...]:
        """A way to run for each width and resolution, in the order of the lists."""
        return tuple(
            OperatingPoint(number=number, name=f"gear {number}", options={"point": number})
            for number in range(1, len(self.widths) + 1)
        )

    @property
    def parts(self) -> tuple[float, ...]:
        """Of each point: fraction of the feature maps that the widest point has."""
        return tuple(width / max(self.widths) for width in self.widths)

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        widths, shrinks = self.widths, self.shrinks
        if found:
            return found
        if not widths or len(widths) != len(shrinks):
            found.append(
                f"widths={widths} and shrinks={shrinks} must be equally long: an operating "
                f"point has one of each."
            )
        elif self.image_size // max(shrinks) < MIN_IMAGE_SIZE:
            found.append(
                f"shrinks={shrinks} must leave {MIN_IMAGE_SIZE} of {self.image_size} pixels."
            )
        found += [
            f"{name}={getattr(self, name)!r} is not for slimmable networks: leave it out."
            for name in UNUSED
            if getattr(self, name) != getattr(WideResNetConfig, name)
        ]
        return found


class SlimmableConv2d(nn.Module):
    """A convolution of which a point uses the first filters, and of those the first maps."""

    def __init__(self, maps_in: int, maps_out: int, kernel: int, stride: int = 1) -> None:
        super().__init__()
        whole = nn.Conv2d(maps_in, maps_out, kernel, bias=False)
        init_convolution(whole)
        self.weight = whole.weight
        self.stride = stride
        self.padding = 1 if kernel > 1 else 0

    def forward(self, x: Tensor, fraction: float) -> Tensor:
        """Convolve (b, c, h, w) into ``fraction`` of the feature maps."""
        weight = self.weight[: part_of(self.weight.shape[0], fraction), : x.shape[1]]
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding)


class SlimmableLinear(nn.Module):
    """A classifier of which a point uses the weights of the first features."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        whole = nn.Linear(features, outputs)
        self.weight, self.bias = whole.weight, whole.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map features (b, c) to answers (b, classes)."""
        return F.linear(x, self.weight[:, : x.shape[1]], self.bias)


def part_of(maps: int, fraction: float) -> int:
    """Count the maps of a point, at least one.

    >>> part_of(16, 0.25), part_of(16, 0.01)
    (4, 1)
    """
    return max(1, round(maps * fraction))


class SlimmableNorm(nn.ModuleList):
    """A batch norm for each operating point."""

    def __init__(self, maps: int, config: SlimmableWideResNetConfig) -> None:
        super().__init__(BatchNorm2d(part_of(maps, part)) for part in config.parts)


class SlimmableBlock(nn.Module):
    """The residual block of a WideResNet, see :class:`ResidualBlock`, at several widths."""

    def __init__(
        self, config: SlimmableWideResNetConfig, maps_in: int, maps_out: int, stride: int
    ) -> None:
        super().__init__()
        self.norm1 = SlimmableNorm(maps_in, config)
        self.conv1 = SlimmableConv2d(maps_in, maps_out, 3, stride)
        self.norm2 = SlimmableNorm(maps_out, config)
        self.conv2 = SlimmableConv2d(maps_out, maps_out, 3)
        self.activations = nn.ModuleList(nn.ReLU() for _ in range(2))
        self.shortcut: SlimmableConv2d | None = None
        if stride != 1 or maps_in != maps_out:
            self.shortcut = SlimmableConv2d(maps_in, maps_out, 1, stride)

    def forward(self, x: Tensor, point: int, fraction: float) -> Tensor:
        """Map (b, c, h, w) to (b, c', h', w')."""
        first, second = self.activations
        residual = self.conv1(first(self.norm1[point](x)), fraction)
        residual = self.conv2(second(self.norm2[point](residual)), fraction)
        return residual + (x if self.shortcut is None else self.shortcut(x, fraction))


class SlimmableWideResNet(ImageModel):
    """A WideResNet of several widths: one input per pass, accuracy against cost at every call.

    >>> config = SlimmableWideResNetConfig(depth=10, width=1, num_classes=10)
    >>> model = SlimmableWideResNet(config).eval()
    >>> model(torch.zeros(2, 3, 32, 32), point=3).shape
    torch.Size([2, 10])
    """

    kind = "gearedresnet"  # as checkpoints and recipes name it
    config_class = SlimmableWideResNetConfig
    config: SlimmableWideResNetConfig

    def __init__(self, config: SlimmableWideResNetConfig) -> None:
        super().__init__(config)
        widest = max(config.widths)
        maps_in = part_of(config.stem_maps, widest)
        self.stem = SlimmableConv2d(config.in_channels, maps_in, 3)
        self.stem_norm = SlimmableNorm(maps_in, config)
        self.stem_activation = nn.ReLU()
        blocks = []
        for maps, stride in config.blocks():
            maps_out = part_of(maps, widest)
            blocks.append(SlimmableBlock(config, maps_in, maps_out, stride))
            maps_in = maps_out
        self.trunk = nn.ModuleList(blocks)
        self.final_norm = SlimmableNorm(maps_in, config)
        self.final_activation = nn.ReLU()
        self.pool = GridPool2d(config.pool)
        self.classifier = SlimmableLinear(maps_in * config.pool**2, config.num_classes)

    def forward(
        self, images: Tensor, active_streams: int | None = None, point: int | None = None
    ) -> Tensor:
        """Classify images (b, c, h, w) at an operating point, from 1 (the default) up.

        ``active_streams`` is there so that all models are called alike; only 1 fits.
        """
        self.check_images(images)
        check_active_streams(active_streams, self.num_streams)
        most = len(self.config.widths)
        if point is None:
            point = 1
        if isinstance(point, bool) or not isinstance(point, int) or not 1 <= point <= most:
            raise ValueError(
                f"point={point!r} is not one of this network's: pass one from 1 (the most "
                f"accurate) to {most}."
            )
        index = point - 1
        fraction, shrink = self.config.parts[index], self.config.shrinks[index]
        if min(images.shape[2:]) // shrink < MIN_IMAGE_SIZE:
            raise ValueError(
                f"Images of {images.shape[2]}x{images.shape[3]} are too small for point "
                f"{index + 1}, which shrinks them by {shrink}: pass {MIN_IMAGE_SIZE * shrink} "
                f"pixels or more per side, or choose another point."
            )
        x = F.avg_pool2d(images, shrink) if shrink > 1 else images
        x = self.stem_activation(self.stem_norm[index](self.stem(x, fraction)))
        for block in self.trunk:
            x = block(x, index, fraction)
        x = self.final_activation(self.final_norm[index](x))
        return self.classifier(self.pool(x).flatten(1))

    def cost_part(self, layer: str) -> str:
        """Name the part that the cost of a layer is counted under: stem, trunk or classifier."""
        part = layer.partition(".")[0]
        return {"final_norm": "trunk", "final_activation": "trunk", "pool": "trunk"}.get(
            part, part.partition("_")[0]
        )
