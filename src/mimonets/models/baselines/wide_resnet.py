"""Wide residual networks, plain and near-isometric: the body of MIMOConv and its baselines.

Zagoruyko & Komodakis, "Wide Residual Networks", BMVC 2016; MIMONets, section 3 and appendix E.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from mimonets._config import Config, is_integer, size
from mimonets._device import keep_layout
from mimonets.layers import (
    ActivationName,
    BatchNorm2d,
    GridPool2d,
    SkipScale,
    StreamBatchNorm,
    init_convolution,
    make_activation,
    total_isometry_penalty,
)
from mimonets.models.base import MAX_DEPTH, MIN_IMAGE_SIZE, ImageModel
from mimonets.vsa import check_active_streams

# b batch (or g groups)   s streams   c feature maps   h, w position

Split = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class WideResNetConfig(Config):
    """A wide residual network of three stages. Zagoruyko & Komodakis, BMVC 2016.

    >>> WideResNetConfig(depth=16, width=4).blocks_per_stage
    2
    """

    # 6n + 4: three stages of n blocks with two convolutions each.
    depth: int = size(28, least=10, most=MAX_DEPTH)
    width: int = size(10)  # multiplies the 16, 32 and 64 feature maps of the stages
    initial_width: int = size(1)  # multiplies the 16 feature maps of the first layer
    in_channels: int = size(3)  # input maps: 1 for grey, 3 for colour
    num_classes: int = size(100)
    # Side of the images it is made for, used by cost and bench; others work.
    image_size: int = size(32, least=MIN_IMAGE_SIZE)
    activation: ActivationName = "relu"  # inside the residual blocks
    skip_init: bool = False  # scale each residual branch by a number that starts at 0
    dirac_init: bool = False  # start the trunk's convolutions as identities
    shortcut_norm: bool = False  # batch norm after 1x1 shortcuts, as in the authors' code
    final_norm: bool = True  # batch norm and activation before the pooling
    pool: int = size(1)  # positions per side that the pooling leaves; 1 averages the whole image
    stem_stride: int = size(1)  # of the first layer: with 2, a network for half the resolution

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        if is_integer(self.depth) and self.depth >= 10 and self.depth % 6 != 4:
            found.append(
                f"depth={self.depth} does not split into three equal stages: "
                f"a WideResNet needs depth = 6n + 4, such as 10, 16 or 28."
            )
        if not found and self.image_size < MIN_IMAGE_SIZE * self.stem_stride:
            found.append(
                f"stem_stride={self.stem_stride} leaves too little of images of {self.image_size}x"
                f"{self.image_size}: lower it, or raise image_size."
            )
        return found

    @property
    def blocks_per_stage(self) -> int:
        """The n of depth = 6n + 4."""
        return (self.depth - 4) // 6

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Go through all blocks in order: how many feature maps they give, and their stride."""
        for stage in range(3):
            for index in range(self.blocks_per_stage):
                yield 16 * 2**stage * self.width, 2 if stage > 0 and index == 0 else 1

    @property
    def stem_maps(self) -> int:
        """Feature maps after the first layer; D of the binding."""
        return 16 * self.initial_width

    @property
    def features(self) -> int:
        """Numbers after the pooling; D_o of the unbinding."""
        return 64 * self.width * self.pool**2


@dataclass(frozen=True, kw_only=True)
class WideIsoNetConfig(WideResNetConfig):
    """A WideResNet to be trained with the isometry penalty: the paper's stronger baseline."""


class NormAct(nn.Module):
    """Batch norm of the running mode, then the activation."""

    def __init__(self, config: WideResNetConfig, maps: int, num_streams: int) -> None:
        super().__init__()
        self.norm = StreamBatchNorm(maps, num_streams)
        self.activation = make_activation(config.activation, maps)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (b, c, h, w)."""
        return self.activation(self.norm(x))


class ResidualBlock(nn.Module):
    r"""Two 3x3 convolutions, each behind norm and activation, around a skip connection.

    .. math:: y = P x + f(x)

    P is the identity, or a 1x1 convolution where the shape changes. It sees the raw x, so that the
    skip connections pass a superposition on without bending it.
    """

    def __init__(
        self,
        config: WideResNetConfig,
        maps_in: int,
        maps_out: int,
        stride: int,
        num_streams: int,
    ) -> None:
        super().__init__()
        self.pre1 = NormAct(config, maps_in, num_streams)
        self.conv1 = make_convolution(maps_in, maps_out, 3, stride)
        self.pre2 = NormAct(config, maps_out, num_streams)
        self.conv2 = make_convolution(maps_out, maps_out, 3, 1)
        self.scale = SkipScale() if config.skip_init else nn.Identity()
        self.shortcut: nn.Conv2d | None = None
        self.shortcut_norm: StreamBatchNorm | None = None
        if stride != 1 or maps_in != maps_out:
            self.shortcut = make_convolution(maps_in, maps_out, 1, stride)
            if config.shortcut_norm:
                self.shortcut_norm = StreamBatchNorm(maps_out, num_streams)

    def forward(self, x: Tensor) -> Tensor:
        """Map (b, c, h, w) to (b, c', h', w')."""
        residual = self.conv1(self.pre1(x))
        residual = self.conv2(self.pre2(residual))
        if self.shortcut is not None:
            x = self.shortcut(x)
        if self.shortcut_norm is not None:
            x = self.shortcut_norm(x)
        return x + self.scale(residual)


def make_convolution(maps_in: int, maps_out: int, kernel: int, stride: int) -> nn.Conv2d:
    """Make a convolution of a block."""
    return nn.Conv2d(maps_in, maps_out, kernel, stride=stride, padding=kernel // 2, bias=False)


class Trunk(nn.Module):
    """The three stages and the pooling: what a MIMOConv runs once for all its inputs.

    Its batch norms follow the mode that :func:`mimonets.layers.running` sets.

    Args:
        num_streams: modes to keep statistics for.
        private_stages: the first stages, which :meth:`before` runs for every input by itself.
        lanes: how many equal parts, side by side, the other stages start as.
    """

    def __init__(
        self,
        config: WideResNetConfig,
        num_streams: int = 1,
        *,
        private_stages: int = 0,
        lanes: int = 1,
    ) -> None:
        super().__init__()
        blocks = []
        self.private_blocks = private_stages * config.blocks_per_stage
        maps_in = config.stem_maps
        for maps_out, stride in config.blocks():
            blocks.append(ResidualBlock(config, maps_in, maps_out, stride, num_streams))
            maps_in = maps_out
        self.blocks = nn.ModuleList(blocks)
        self.final = NormAct(config, maps_in, num_streams) if config.final_norm else None
        self.pool = GridPool2d(config.pool)
        for number, block in enumerate(self.blocks):
            for layer in block.modules():
                if isinstance(layer, nn.Conv2d):
                    parts = 1 if number < self.private_blocks else lanes
                    init_convolution(layer, dirac=config.dirac_init, lanes=parts)

    def before(self, x: Tensor) -> Tensor:
        """Run the private stages: (b, c, h, w) -> (b, c', h', w')."""
        for block in list(self.blocks)[: self.private_blocks]:
            x = block(x)
        return x

    def forward(self, x: Tensor, split: Split | None = None) -> Tensor:
        """Run the other stages: (b, c, h, w) -> features (b, c').

        ``split`` may cut streams that are kept apart out of the last feature maps, (b, c, h, w) ->
        (g, p, c', h', w'); then the features are theirs, (g, p, c'').
        """
        for block in list(self.blocks)[self.private_blocks :]:
            x = block(x)
        if self.final is not None:
            x = self.final(x)
        x = keep_layout(x)
        maps = x if split is None else split(x)
        if maps.ndim == 4:
            return self.pool(maps).flatten(1)
        return self.pool(maps.flatten(0, 1)).flatten(1).unflatten(0, maps.shape[:2])


class StemConvolution(nn.Conv2d):
    """The first convolution: every output sees its s x s pixels and one more on each side.

    So stride s makes (h, w) pixels floor(h / s) x floor(w / s) positions. A pass can ask for more:
    with ``zoom=k`` the same filters stride by s / k and make k times as many positions per side.
    """

    def __init__(self, maps_in: int, maps_out: int, stride: int) -> None:
        super().__init__(maps_in, maps_out, stride + 2, stride=stride, padding=1, bias=False)

    def forward(self, x: Tensor, zoom: int = 1) -> Tensor:
        """Convolve (b, c, h, w)."""
        if zoom == 1:
            return super().forward(x)
        stride = self.stride[0] // zoom
        kernel = self.weight.shape[-1]
        # One pixel above and to the left, as ever; at the other ends what the last position needs.
        ends = [
            (zoom * (size // self.stride[0]) - 1) * stride + kernel - size - 1
            for size in x.shape[-2:]
        ]
        return F.conv2d(F.pad(x, (1, ends[1], 1, ends[0])), self.weight, stride=stride)


class Stem(nn.Sequential):
    """The first layer, which sees every input by itself: convolution, batch norm, ReLU."""

    def __init__(self, config: WideResNetConfig) -> None:
        maps = config.stem_maps
        convolution = StemConvolution(config.in_channels, maps, config.stem_stride)
        init_convolution(convolution)
        super().__init__(convolution, BatchNorm2d(maps), nn.ReLU())

    def forward(self, images: Tensor, zoom: int = 1) -> Tensor:
        """Map images (b, c, h, w) to feature maps (b, d, h', w')."""
        convolution, norm, relu = self
        return relu(norm(convolution(images, zoom)))

    def stacked(self, images: Tensor) -> tuple[Tensor, int]:
        """Do the same for groups, (g, a, c, h, w) -> (g, d, rows, w'), and say how far apart.

        The images of a group lie one below the other, with black rows between them. The result is
        how many rows of maps lie between an image's first and the next one's.
        """
        stride = cast(nn.Conv2d, self[0]).stride[0]
        active, height = images.shape[1], images.shape[3]
        period = height // stride + 1  # at least one black row: the convolution's padding
        column = F.pad(images.transpose(1, 2), (0, 0, 0, period * stride - height)).flatten(2, 3)
        return self(column[:, :, : (active - 1) * period * stride + height]), period

    def grouped(self, images: Tensor) -> Tensor:
        """Do the same for groups, (g, a, c, h, w) -> (g, a, d, h', w'), in evaluation mode.

        As one convolution in ``a`` groups, of which a binding takes the maps as they lie: exported
        networks need not move them from images to groups.
        """
        convolution, norm = cast(nn.Conv2d, self[0]), cast(nn.BatchNorm2d, self[1])
        active = images.shape[1]
        maps = F.conv2d(
            images.flatten(1, 2),
            convolution.weight.repeat(active, 1, 1, 1),
            stride=convolution.stride[0],
            padding=1,
            groups=active,
        )
        mean, var = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
        statistics = (mean, var, norm.weight, norm.bias)
        mean, var, weight, bias = (value.repeat(active) for value in statistics)
        normed = F.batch_norm(maps, mean, var, weight, bias, eps=norm.eps)
        return normed.relu().unflatten(1, (active, -1))


class WideResNet(ImageModel):
    """A plain wide residual network: one input per pass, the baseline of every comparison.

    >>> import torch
    >>> model = WideResNet(WideResNetConfig(depth=10, width=1, num_classes=10))
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    kind = "wideresnet"
    config_class = WideResNetConfig
    config: WideResNetConfig

    def __init__(self, config: WideResNetConfig) -> None:
        super().__init__(config)
        self.stem = Stem(config)
        self.trunk = Trunk(config)
        self.classifier = nn.Linear(config.features, config.num_classes)

    def forward(self, images: Tensor, active_streams: int | None = None) -> Tensor:
        """Classify images (b, c, h, w); returns logits (b, classes).

        ``active_streams`` is there so that all models are called alike; only 1 fits.
        """
        self.check_images(images)
        check_active_streams(active_streams, self.num_streams)
        return self.classifier(self.trunk(self.stem(images)))

    @property
    def title(self) -> str:
        """Name it by depth and width, as in WideResNet-28-10."""
        return f"{type(self).__name__}-{self.config.depth}-{self.config.width}"

    def isometry_penalty(self) -> Tensor:
        """Sum of the isometry penalties of all trunk convolutions, unweighted."""
        return total_isometry_penalty(self.trunk)


class WideIsoNet(WideResNet):
    """A WideResNet that is trained with the isometry penalty; otherwise the same network."""

    kind = "wideisonet"
    config_class = WideIsoNetConfig
