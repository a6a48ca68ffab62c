"""MIMOConv: several images in one pass through one WideResNet. MIMONets, section 3."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from mimonets._config import size, whole
from mimonets.layers import (
    ActivationName,
    HRRBinding,
    Lanes,
    MBATBinding,
    PositionBinding,
    SlowName,
    StreamAverage,
    StreamUnbinding,
    Tiles,
    ViewName,
    each_alone,
    full_problems,
    make_views,
    running,
    total_isometry_penalty,
)
from mimonets.layers.unbinding import StartName
from mimonets.models.base import ImageModel
from mimonets.models.baselines.wide_resnet import Stem, Trunk, WideResNetConfig
from mimonets.vsa import (
    bipolar_keys,
    check_active_streams,
    gaussian_keys,
    matrix_keys,
    slot_keys,
    unitary_keys,
    whole_and_short_groups,
)

# b batch   g groups   a active inputs   d feature maps   h, w position

BindingName = Literal["hrr", "mbat", "tiles", "tied"]
KeyName = Literal["gaussian", "unitary", "bipolar", "slots"]
ReadoutName = Literal["shared", "stream"]


@dataclass(frozen=True, kw_only=True)
class MIMOConvConfig(WideResNetConfig):
    """The multiple-input WideResNet. MIMONets, section 3."""

    num_streams: int = size(4)  # inputs per superposition, N in the paper
    initial_width: int = size(4)  # 64 feature maps to bind in
    activation: ActivationName = "prelu"
    final_norm: bool = False  # only without it do our MACs match the paper's table
    binding: BindingName = "hrr"  # circular convolution, matrices, tiles or tied lanes
    bind_after_stage: int = whole(0, least=0)  # stages that every input passes by itself first
    stream_keys: KeyName = "gaussian"  # what the keys are drawn from; slots are matrices
    trainable_keys: bool = True
    unbinding_relu: bool = True  # ReLU after the unbinding matrices
    unbinding_start: StartName = "mbat"  # deviation of their entries; fan-out: the authors' smaller
    readout: ReadoutName = "shared"  # unbind, then one classifier for all; or a classifier each
    slow: SlowName = "views"  # tiles with fewer inputs: views of them, or one finer image
    views: ViewName = "copies"  # tiles, tied: what the streams of the same input see of it

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        if found:
            return found
        found += self._problems_with_keys() if self.has_keys else self._problems_without_keys()
        if self.bind_after_stage > 2:
            found.append(
                f"bind_after_stage={self.bind_after_stage} leaves nothing to share: the trunk has "
                f"three stages, so choose 0, 1 or 2."
            )
        return found

    @property
    def has_keys(self) -> bool:
        """Whether streams are told apart by keys, and not by their place."""
        return self.binding in ("hrr", "mbat")

    @property
    def lanes(self) -> int:
        """How many lanes share the feature maps."""
        return self.num_streams if self.binding == "tied" else 1

    @property
    def bound_maps(self) -> int:
        """Feature maps where the inputs are bound; D of the binding."""
        stage = self.bind_after_stage
        return self.stem_maps if stage == 0 else 16 * self.width * 2 ** (stage - 1)

    def _problems_with_keys(self) -> list[str]:
        found = []
        if self.stream_keys == "slots" and self.binding != "mbat":
            found.append("stream_keys='slots' are matrices: set binding='mbat' with them.")
        if self.stream_keys in ("unitary", "bipolar") and self.binding == "mbat":
            found.append(
                f"stream_keys={self.stream_keys!r} are vectors: set binding='hrr' with them."
            )
        if self.stream_keys == "slots" and not found and self.bound_maps < self.num_streams:
            found.append(
                f"stream_keys='slots' needs a feature map per stream, and {self.bound_maps} are "
                f"too few for {self.num_streams}: raise "
                f"{'width' if self.bind_after_stage else 'initial_width'}."
            )
        if self.slow != "views" or self.views != "copies":
            found.append(
                f"binding={self.binding!r} puts copies of an input into its streams: slow and "
                f"views are for binding='tiles' and 'tied', leave them out."
            )
        return found

    def _problems_without_keys(self) -> list[str]:
        found = []
        if self.stream_keys != "gaussian" or self.readout != "shared":
            found.append(
                f"binding={self.binding!r} has no keys, and one classifier reads every stream: "
                f"leave stream_keys and readout out."
            )
        if not (self.trainable_keys and self.unbinding_relu):
            found.append(
                f"binding={self.binding!r} has neither keys nor unbinding matrices: leave "
                f"trainable_keys and unbinding_relu out."
            )
        if self.binding == "tied":
            if self.slow == "full":
                found.append("slow='full' is for binding='tiles': lanes have no room to grow into.")
            found += [
                f"{maps} feature maps do not divide into {self.num_streams} lanes: choose another "
                f"{name}, or another num_streams."
                for name, maps in (("initial_width", self.stem_maps), ("width", 16 * self.width))
                if maps % self.num_streams
            ]
        elif self.slow == "full":
            found += full_problems(self.num_streams, self.stem_stride)
        return found


class MIMOConv(ImageModel):
    r"""Classify up to N images per pass through the trunk, with one set of weights.

    .. math:: s = \sum_k a^{(k)} \circledast \mathrm{stem}(x^{(k)}), \qquad
        y^{(k)} = \mathrm{classifier}(\tilde A^{(k)} \, \mathrm{trunk}(s))

    ``active_streams`` says how many different images share a pass: all N is fast, 1 puts the same
    image into every stream and averages (an ensemble inside the network: slow, more accurate), and
    everything between works too.

    With ``binding="tiles"`` or ``"tied"``, beyond the paper, streams are not added up: they lie
    side by side, in space (:mod:`mimonets.layers.tiles`) or in lanes of the feature maps
    (:mod:`mimonets.layers.tied`), and one classifier reads each from its own place.

    Args:
        config: the whole description of the network.
        generator: draws the stream keys and unbinding matrices; PyTorch's global one by default.

    >>> model = MIMOConv(MIMOConvConfig(depth=10, width=1, num_streams=4, num_classes=10)).eval()
    >>> images = torch.randn(6, 3, 32, 32)
    >>> model(images).shape, model(images, active_streams=1).shape
    (torch.Size([6, 10]), torch.Size([6, 10]))
    """

    kind = "mimoconv"
    config_class = MIMOConvConfig
    config: MIMOConvConfig
    warm_ups = frozenset({"solo"})

    def __init__(self, config: MIMOConvConfig, *, generator: Generator | None = None) -> None:
        super().__init__(config)
        lanes = config.lanes
        self.stem = Stem(config, config.stem_maps // lanes)
        self.binding = _make_binding(config, generator)
        self.trunk = Trunk(
            config, config.num_streams, lanes=lanes, private_stages=config.bind_after_stage
        )
        shared = config.readout == "shared"
        self.unbinding: StreamUnbinding | StreamAverage
        if config.has_keys:
            self.unbinding = StreamUnbinding(
                config.features,
                config.num_streams,
                outputs=None if shared else config.num_classes,
                relu=shared and config.unbinding_relu,
                start=config.unbinding_start,
                generator=generator,
            )
        else:
            self.unbinding = StreamAverage()
        self.classifier = (
            nn.Linear(config.features // lanes, config.num_classes) if shared else nn.Identity()
        )

    def forward(self, images: Tensor, active_streams: int | None = None) -> Tensor:
        """Classify images (b, c, h, w); returns logits (b, classes), one row per image, in order.

        Neighbours in the batch form groups of ``active_streams`` that share a pass. Images left
        over form a short group: they spread over all streams, so that in evaluation mode they are
        answered exactly as with ``active_streams`` equal to their number.

        While ``solo`` warms up, see :meth:`warming_up`, every image is alone in its streams and the
        others are empty: that costs a whole pass per image.
        """
        self.check_images(images)
        active = check_active_streams(active_streams, self.num_streams)
        # With keys the stem does the same in every mode; otherwise the mode decides what it sees.
        keys = isinstance(self.binding, PositionBinding)
        seen = self.stem(images) if keys else images
        parts = whole_and_short_groups(seen, active)  # each: g a d h w
        answer = self._answer_alone if self.warm_up == "solo" else self._answer_together
        if self.training:
            # One pass for all, since batch statistics of a single short group would be too noisy.
            with running(active):
                streams = answer(parts, active)
        else:
            streams = []
            for part in parts:
                with running(part.shape[1]):
                    streams += answer([part], part.shape[1])
        return self.classifier(torch.cat(streams))

    def _answer_together(self, parts: list[Tensor], mode: int) -> list[Tensor]:
        """Superpose the images of each group, run the trunk, and unbind: each (g a, features)."""
        bundles = [self._bind(part, mode) for part in self._features(parts, mode)]
        cut = None
        if isinstance(self.binding, Tiles | Lanes):
            cut = partial(self.binding.cut, active_streams=mode)
        pooled = self.trunk(torch.cat(bundles), cut)
        groups = [part.shape[0] for part in parts]
        return [
            self.unbinding(features, part.shape[1]).flatten(0, 1)
            for part, features in zip(parts, pooled.split(groups), strict=True)
        ]

    def _answer_alone(self, parts: list[Tensor], mode: int) -> list[Tensor]:
        """Run a pass per image, and unbind only what it holds: each (g a, features)."""
        answers = []
        for part, features in zip(parts, self._features(parts, mode, views=False), strict=True):
            if isinstance(self.binding, PositionBinding):
                pooled = self.trunk(self.binding.solo(features).flatten(0, 1))
            else:
                bound = self.binding(each_alone(features), mode)
                pooled = self.trunk(bound, partial(self.binding.cut, active_streams=mode))
            streams = self.unbinding(pooled, part.shape[1]).unflatten(0, part.shape[:2])  # g a a d
            answers.append(streams.diagonal(dim1=1, dim2=2).mT.flatten(0, 1))
        return answers

    def _features(self, parts: list[Tensor], mode: int, views: bool = True) -> list[Tensor]:
        """Run what every image passes by itself, or several views of it: each (g, a, d, h, w)."""
        if isinstance(self.binding, PositionBinding):
            if self.config.bind_after_stage == 0:
                return parts
            x = torch.cat([part.flatten(0, 1) for part in parts])
        else:
            places = self.binding.places(mode)
            if views:
                parts = [make_views(part, places, self.config.views) for part in parts]
            x = torch.cat([part.flatten(0, 1) for part in parts])
            x = self.stem(x, self.binding.zoom(mode))
        x = self.trunk.before(x)
        if len(parts) == 1:
            return [x.unflatten(0, parts[0].shape[:2])]
        pieces = x.split([part.shape[:2].numel() for part in parts])
        return [x.unflatten(0, part.shape[:2]) for x, part in zip(pieces, parts, strict=True)]

    def _bind(self, features: Tensor, mode: int) -> Tensor:
        if isinstance(self.binding, PositionBinding):
            return self.binding(features)
        return self.binding(features, mode)

    @property
    def title(self) -> str:
        """Name it by depth, width and streams, as in MIMOConv-28-10 (N=4)."""
        config = self.config
        return f"{type(self).__name__}-{config.depth}-{config.width} (N={config.num_streams})"

    def alternatives(self) -> list[WideResNetConfig]:
        """List the same network with one stream, and the WideResNet of the same size."""
        config = self.config
        plain = WideResNetConfig(
            depth=config.depth,
            width=config.width,
            in_channels=config.in_channels,
            num_classes=config.num_classes,
            image_size=config.image_size,
        )
        return [replace(config, num_streams=1), plain] if config.num_streams > 1 else [plain]

    def isometry_penalty(self) -> Tensor:
        """Sum of the isometry penalties of all trunk convolutions, unweighted."""
        return total_isometry_penalty(self.trunk)

    def stream_key_penalty(self) -> Tensor:
        """How far the stream keys are from orthonormal, unweighted."""
        return self.binding.penalty()


def _make_binding(
    config: MIMOConvConfig, generator: Generator | None
) -> PositionBinding | Tiles | Lanes:
    if config.binding == "tied":
        return Lanes(config.num_streams)
    if config.binding == "tiles":
        strides = 2 ** (2 - max(0, config.bind_after_stage - 1))  # of the stages that follow
        return Tiles(config.num_streams, align=strides, slow=config.slow)
    size = (config.num_streams, config.bound_maps)
    if config.binding == "mbat":
        draw_matrices = slot_keys if config.stream_keys == "slots" else matrix_keys
        matrices = draw_matrices(*size, generator=generator)
        return MBATBinding(matrices, trainable=config.trainable_keys)
    draw = {"gaussian": gaussian_keys, "unitary": unitary_keys, "bipolar": bipolar_keys}
    keys = draw[config.stream_keys](*size, generator=generator)
    if config.stream_keys == "bipolar":
        keys = keys / config.bound_maps**0.5  # norm 1, like the other two
    return HRRBinding(keys, trainable=config.trainable_keys)
