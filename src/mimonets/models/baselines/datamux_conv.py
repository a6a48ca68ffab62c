"""DataMUX on images: the baseline of MIMONets, figure 4.

Murahari et al., "DataMUX: Data Multiplexing for Neural Networks", NeurIPS 2022: the LeNet-like
network whose inputs are multiplexed by a nonlinear network each, to eight maps.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from mimonets._config import Config, size
from mimonets.models.base import ImageModel
from mimonets.vsa import check_active_streams, fold_streams, unfold_streams

# b batch   g groups   s streams   c maps of an input   d maps of the mixture   h, w position

MIN_LENET_SIZE = 20  # after three convolutions and two poolings at least one position is left


@dataclass(frozen=True, kw_only=True)
class DataMUXConvConfig(Config):
    """DataMUX on images, "CNN + nonlinear (8x)". Murahari et al., NeurIPS 2022.

    >>> DataMUXConvConfig(image_size=28).final_size
    3
    """

    num_streams: int = size(4)  # inputs per superposition; slots in their words
    mux_hidden: int = size(16)  # hidden maps of each stream's multiplexing network
    mux_maps: int = size(8)  # maps that all inputs share after it
    in_channels: int = size(1)
    num_classes: int = size(10)
    # Side of the images; no other size works.
    image_size: int = size(20, least=MIN_LENET_SIZE)

    @property
    def final_size(self) -> int:
        """Side of the maps after the last convolution of the LeNet."""
        return ((self.image_size - 2) // 2 - 3) // 2 - 2


class NonlinearMultiplexing(nn.Module):
    r"""Send every input through the network of its stream, and add up what comes out.

    .. math:: s = \sum_k \tanh(W_2^{(k)} * \tanh(W_1^{(k)} * x^{(k)}))

    Both convolutions are 3x3, keep the size and have no bias, so that an empty background adds
    nothing to the others. A sum, and weights that start from N(0, 1), as in the original's image
    version; it takes means only of sequences. The networks of all streams run as one with N groups.
    """

    def __init__(self, config: DataMUXConvConfig) -> None:
        super().__init__()
        streams = config.num_streams
        hidden = streams * config.mux_hidden
        self.maps = config.mux_maps
        self.layers = nn.Sequential(
            _conv3x3(streams * config.in_channels, hidden, streams),
            nn.Tanh(),
            _conv3x3(hidden, streams * self.maps, streams),
            nn.Tanh(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Multiplex (g, s, c, h, w) -> (g, d, h, w)."""
        return self.layers(x.flatten(1, 2)).unflatten(1, (-1, self.maps)).sum(dim=1)


class SlotDemultiplexing(nn.Module):
    r"""Read every stream out with a layer of its own, all of them in one GEMM.

    .. math:: y^{(k)} = \tanh(A^{(k)} h + b^{(k)})
    """

    def __init__(self, features: int, num_streams: int) -> None:
        super().__init__()
        self.num_streams = num_streams
        self.linear = nn.Linear(features, num_streams * features)
        self.activation = nn.Tanh()

    def forward(self, features: Tensor) -> Tensor:
        """Demultiplex (g, d) -> (g, s, d)."""
        return self.activation(self.linear(features)).unflatten(1, (self.num_streams, -1))


class DataMUXConv(ImageModel):
    r"""Classify up to N images per pass through a LeNet, multiplexed by a small CNN each.

    Like the other models it takes any batch size and any ``active_streams`` from 1 to N, which the
    original does not: images that are fewer than the streams are copied into all of them, and the
    copies are averaged after demultiplexing, before the output layer that all streams share.

    It has tanh everywhere, at the output too, and is meant for ``train.loss=squared_error``.

    >>> model = DataMUXConv(DataMUXConvConfig(num_streams=4)).eval()
    >>> images = torch.randn(6, 1, 20, 20)
    >>> model(images).shape, model(images, active_streams=1).shape
    (torch.Size([6, 10]), torch.Size([6, 10]))
    """

    kind = "datamuxconv"
    config_class = DataMUXConvConfig
    config: DataMUXConvConfig

    def __init__(self, config: DataMUXConvConfig) -> None:
        super().__init__(config)
        self.multiplexing = NonlinearMultiplexing(config)
        self.trunk = make_lenet(config)
        self.demultiplexing = SlotDemultiplexing(FEATURES, config.num_streams)
        self.classifier = nn.Sequential(nn.Linear(FEATURES, config.num_classes), nn.Tanh())

    def forward(self, images: Tensor, active_streams: int | None = None) -> Tensor:
        """Classify images (b, c, h, w); returns answers (b, classes) between -1 and 1, in order."""
        self.check_images(images)
        active = check_active_streams(active_streams, self.num_streams)
        streams = fold_streams(images, self.num_streams, active)  # g s c h w
        answers = self.demultiplexing(self.trunk(self.multiplexing(streams)))  # g s d
        return self.classifier(unfold_streams(answers, images.shape[0], active))

    def alternatives(self) -> list[DataMUXConvConfig]:
        """List the same network with one stream."""
        config = self.config
        return [replace(config, num_streams=1)] if config.num_streams > 1 else []

    def check_size(self, images: Tensor) -> None:
        """Refuse images of another size than the config's: the linear layer is made for it."""
        size = self.config.image_size
        if images.shape[2:] != torch.Size((size, size)):
            raise ValueError(
                f"{type(self).__name__} is made for images of {size}x{size}, but got "
                f"{images.shape[2]}x{images.shape[3]}: crop them, or build it with another "
                f"image_size."
            )


FEATURES = 84  # of LeNet's last hidden layer


def make_lenet(config: DataMUXConvConfig) -> nn.Sequential:
    """Make the part that runs once for all inputs of a group: (g, d, h, w) -> (g, 84).

    No convolution is padded: images of 20x20 shrink to 18, 9, 6, 3 and end as 120 single numbers.
    """
    return nn.Sequential(
        nn.Conv2d(config.mux_maps, 10, 3),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 16, 4),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 120, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(120 * config.final_size**2, FEATURES),
        nn.Tanh(),
    )


def _conv3x3(maps_in: int, maps_out: int, groups: int) -> nn.Conv2d:
    layer = nn.Conv2d(maps_in, maps_out, 3, padding=1, groups=groups, bias=False)
    nn.init.normal_(layer.weight)
    return layer
