"""MIMOConv: several images in one pass through one WideResNet. MIMONets, section 3."""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Generator, Tensor, nn

from mimonets.layers import (
    ActivationName,
    HRRBinding,
    MBATBinding,
    PositionBinding,
    StreamUnbinding,
    running,
    total_isometry_penalty,
)
from mimonets.models.base import ImageModel
from mimonets.models.baselines.wide_resnet import Trunk, WideResNetConfig, make_stem
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

BindingName = Literal["hrr", "mbat"]
KeyName = Literal["gaussian", "unitary", "bipolar", "slots"]
ReadoutName = Literal["shared", "stream"]


@dataclass(frozen=True, kw_only=True)
class MIMOConvConfig(WideResNetConfig):
    """The multiple-input WideResNet. MIMONets, section 3."""

    num_streams: int = 4  # inputs per superposition, N in the paper
    initial_width: int = 4  # 64 feature maps to bind in
    activation: ActivationName = "prelu"
    final_norm: bool = False  # the unbinding follows; this decides the paper's cost table
    binding: BindingName = "hrr"  # circular convolution, or a matrix per stream
    stream_keys: KeyName = "gaussian"  # what the keys are drawn from; slots are matrices
    trainable_keys: bool = True
    unbinding_relu: bool = True  # ReLU after the unbinding matrices
    readout: ReadoutName = "shared"  # unbind, then one classifier for all; or a classifier each

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = [
            *super().problems(),
            *self._wrong_choice("binding", get_args(BindingName)),
            *self._wrong_choice("stream_keys", get_args(KeyName)),
            *self._wrong_choice("readout", get_args(ReadoutName)),
        ]
        if self.stream_keys == "slots" and self.binding != "mbat":
            found.append("stream_keys='slots' are matrices: set binding='mbat' with them.")
        if self.stream_keys in ("unitary", "bipolar") and self.binding == "mbat":
            found.append(
                f"stream_keys={self.stream_keys!r} are vectors: set binding='hrr' with them."
            )
        if self.stream_keys == "slots" and not found and self.stem_maps < self.num_streams:
            found.append(
                f"stream_keys='slots' needs a feature map per stream, and {self.stem_maps} are too "
                f"few for {self.num_streams}: raise initial_width."
            )
        return found

    def _smallest(self) -> dict[str, int]:
        return {**super()._smallest(), "num_streams": 1}


class MIMOConv(ImageModel):
    r"""Classify up to N images per pass through the trunk, with one set of weights.

    .. math:: s = \sum_k a^{(k)} \circledast \mathrm{stem}(x^{(k)}), \qquad
        y^{(k)} = \mathrm{classifier}(\tilde A^{(k)} \, \mathrm{trunk}(s))

    ``active_streams`` says how many different images share a pass: all N is fast, 1 puts the same
    image into every stream and averages (an ensemble inside the network: slow, more accurate), and
    everything between works too.

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
        self.stem = make_stem(config)
        self.binding = _make_binding(config, generator)
        self.trunk = Trunk(config, config.num_streams)
        shared = config.readout == "shared"
        self.unbinding = StreamUnbinding(
            config.features,
            config.num_streams,
            outputs=None if shared else config.num_classes,
            relu=shared and config.unbinding_relu,
            generator=generator,
        )
        self.classifier = (
            nn.Linear(config.features, config.num_classes) if shared else nn.Identity()
        )

    def forward(
        self, images: Tensor, active_streams: int | None = None, solo: bool = False
    ) -> Tensor:
        """Classify images (b, c, h, w); returns logits (b, classes), one row per image, in order.

        Neighbours in the batch form groups of ``active_streams`` that share a pass. Images left
        over form a short group: they spread over all streams, so that in evaluation mode they are
        answered exactly as with ``active_streams`` equal to their number.

        ``solo`` leaves every image alone in its streams, and the others empty: it costs a whole
        pass per image, and is meant for training.
        """
        self.check_images(images)
        active = check_active_streams(active_streams, self.num_streams)
        parts = whole_and_short_groups(self.stem(images), active)  # each: g a d h w
        if solo:
            return self._solo_answers(parts, active)
        bundles = [self.binding(part) for part in parts]  # g d h w
        pooled = self._run_trunk(bundles, [part.shape[1] for part in parts], active)
        answers = [
            self.unbinding(features, part.shape[1]).flatten(0, 1)
            for part, features in zip(parts, pooled, strict=True)
        ]
        return self.classifier(torch.cat(answers))

    def _run_trunk(self, bundles: list[Tensor], sizes: list[int], active: int) -> list[Tensor]:
        """Run the trunk, each part in the mode of its groups' size: (g, d, h, w) -> (g, d)."""
        if self.training:
            # One pass for all, since batch statistics of a single short group would be too noisy.
            with running(active):
                pooled = self.trunk(torch.cat(bundles))
            return list(pooled.split([bundle.shape[0] for bundle in bundles]))
        found = []
        for bundle, size in zip(bundles, sizes, strict=True):
            with running(size):
                found.append(self.trunk(bundle))
        return found

    def _solo_answers(self, parts: list[Tensor], active: int) -> Tensor:
        """Run a pass per image, and unbind only what it holds: each part (g, a, d, h, w)."""
        bundles = [self.binding.solo(part).flatten(0, 1) for part in parts]
        pooled = self._run_trunk(bundles, [part.shape[1] for part in parts], active)
        answers = []
        for part, features in zip(parts, pooled, strict=True):
            streams = self.unbinding(features, part.shape[1]).unflatten(0, part.shape[:2])
            answers.append(streams.diagonal(dim1=1, dim2=2).mT.flatten(0, 1))  # g a a d
        return self.classifier(torch.cat(answers))

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


def _make_binding(config: MIMOConvConfig, generator: Generator | None) -> PositionBinding:
    size = (config.num_streams, config.stem_maps)
    if config.binding == "mbat":
        draw_matrices = slot_keys if config.stream_keys == "slots" else matrix_keys
        matrices = draw_matrices(*size, generator=generator)
        return MBATBinding(matrices, trainable=config.trainable_keys)
    draw = {"gaussian": gaussian_keys, "unitary": unitary_keys, "bipolar": bipolar_keys}
    keys = draw[config.stream_keys](*size, generator=generator)
    if config.stream_keys == "bipolar":
        keys = keys / config.stem_maps**0.5  # norm 1, like the other two
    return HRRBinding(keys, trainable=config.trainable_keys)
