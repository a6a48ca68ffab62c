"""MIMOConv: several images in one pass through one WideResNet. MIMONets, section 3."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor, nn

from mimonets._config import integer, size
from mimonets._device import keep_layout
from mimonets.bindings import (
    BindingSettings,
    KeyName,
    PositionBinding,
    ReadoutName,
    SlowName,
    ViewName,
    binding_problems,
    current_name,
    make_binding,
    name_problems,
)
from mimonets.layers import (
    ActivationName,
    StreamAverage,
    StreamUnbinding,
    running,
    total_isometry_penalty,
)
from mimonets.layers.unbinding import StartName
from mimonets.models.base import ImageModel
from mimonets.models.baselines.wide_resnet import Stem, Trunk, WideResNetConfig
from mimonets.vsa import check_active_streams, whole_and_short_groups

TrunkStart = Literal["dense", "lanes"]
StemForm = Literal["stacked", "grouped"]  # of exported networks, see MIMOConv.exported_as

# b batch   g groups   a active inputs   p places   d feature maps   h, w position


@dataclass(frozen=True, kw_only=True)
class MIMOConvConfig(WideResNetConfig):
    """The multiple-input WideResNet. MIMONets, section 3."""

    num_streams: int = size(4)  # inputs per superposition, N in the paper
    initial_width: int = size(4)  # 64 feature maps to bind in
    activation: ActivationName = "prelu"
    final_norm: bool = False  # only without it do our MACs match the paper's table
    binding: str = "hrr"  # circular convolution; others: mimonets.bindings.BINDINGS
    bind_after_stage: int = integer(0, least=0)  # stages that every input passes by itself first
    stream_keys: KeyName = "gaussian"  # what the keys are drawn from; slots are matrices
    trainable_keys: bool = True
    unbinding_relu: bool = True  # ReLU after the unbinding matrices
    unbinding_start: StartName = "mbat"  # deviation of their entries; fan-out: the authors' smaller
    readout: ReadoutName = "shared"  # unbind, then one classifier for all; or a classifier each
    trunk_start: TrunkStart = "dense"  # lanes: a part for each stream, with nothing between them
    slow: SlowName = "views"  # tiles with fewer inputs: views of them, or one finer image
    views: ViewName = "copies"  # tiles: what the streams of the same input see of it

    def __post_init__(self) -> None:
        """Check all settings; older names become those of today."""
        object.__setattr__(self, "binding", current_name(self.binding))
        super().__post_init__()

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems() + name_problems(self.binding)
        if found:
            return found
        if self.bind_after_stage > 2:
            found.append(
                f"bind_after_stage={self.bind_after_stage} leaves nothing to share: the trunk has "
                f"three stages, so choose 0, 1 or 2."
            )
        maps = math.gcd(self.bound_maps, 16 * self.width)
        if self.trunk_start == "lanes" and maps % self.num_streams:
            found.append(
                f"trunk_start='lanes' needs as many feature maps for every stream, and {maps} do "
                f"not divide by num_streams={self.num_streams}: change width or initial_width."
            )
        return found + binding_problems(self)

    @property
    def bound_maps(self) -> int:
        """Feature maps where the inputs are bound; D of the binding."""
        stage = self.bind_after_stage
        return self.stem_maps if stage == 0 else 16 * self.width * 2 ** (stage - 1)


class MIMOConv(ImageModel):
    r"""Classify up to N images per pass through the trunk, with one set of weights.

    .. math:: s = \sum_k a^{(k)} \circledast \mathrm{stem}(x^{(k)}), \qquad
        y^{(k)} = \mathrm{classifier}(\tilde A^{(k)} \, \mathrm{trunk}(s))

    ``active_streams`` says how many different images share a pass: all N is fast, 1 puts the same
    image into every stream and averages (an ensemble inside the network: slow, more accurate), and
    everything between works too.

    With ``binding="tiles"``, beyond the paper, streams are not added up: they lie side by side on a
    canvas (:mod:`mimonets.bindings.tiles`), and one classifier reads each from its own place.

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
    stem_form: StemForm | None = None  # inference with keys: see exported_as

    def __init__(self, config: MIMOConvConfig, *, generator: Generator | None = None) -> None:
        super().__init__(config)
        self.stem = Stem(config)
        strides = 2 ** (2 - max(0, config.bind_after_stage - 1))  # of the stages that follow
        settings = BindingSettings.of(config, strides=strides)
        self.binding = make_binding(config.binding, settings, generator)
        self.trunk = Trunk(
            config,
            config.num_streams,
            private_stages=config.bind_after_stage,
            lanes=config.num_streams if config.trunk_start == "lanes" else 1,
        )
        shared = config.readout == "shared"
        self.unbinding: StreamUnbinding | StreamAverage
        if self.binding.keeps_apart:
            self.unbinding = StreamAverage()
        else:
            self.unbinding = StreamUnbinding(
                config.features,
                config.num_streams,
                outputs=None if shared else config.num_classes,
                relu=shared and config.unbinding_relu,
                start=config.unbinding_start,
                generator=generator,
            )
        self.classifier = (
            nn.Linear(config.features, config.num_classes) if shared else nn.Identity()
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
        parts = whole_and_short_groups(images, active)  # each: g a c h w
        # In training one pass for all: batch statistics of a short group alone would be too noisy.
        passes = [(parts, active)] if self.training else [([x], x.shape[1]) for x in parts]
        return self.classifier(_joined([self._run(*one) for one in passes]))

    def _run(self, parts: list[Tensor], mode: int) -> Tensor:
        """Run the trunk once for groups of images, each (g, a, c, h, w); returns (b, features)."""
        alone = self.warm_up == "solo"
        bind = self.binding.join_alone if alone else self.binding
        with running(mode):
            if self.stem_form and not (alone or self.training):
                bound = [self._bind_as_exported(part) for part in parts]
            else:
                seen = parts if alone else [self.binding.views(part, mode) for part in parts]
                images = _joined([part.flatten(0, 1) for part in seen])
                maps = self.trunk.before(self.stem(images, self.binding.zoom(mode)))
                maps = keep_layout(maps)  # (g p) d h w
                bound = [bind(part, mode) for part in _apart(maps, seen)]
            pooled = self.trunk(_joined(bound), partial(self.binding.split, active_streams=mode))
            pieces = [pooled] if len(parts) == 1 else pooled.split([len(part) for part in bound])
            answers = [
                self._unbind(features, part.shape[1], alone)
                for features, part in zip(pieces, parts, strict=True)
            ]
        return _joined(answers)

    @contextmanager
    def exported_as(self, form: StemForm) -> Iterator[None]:
        """Run stem and binding in a form that engines run faster, where keys bind the stem's maps.

        The same answers. ``"stacked"`` puts the images of a group one below the other, so that no
        engine moves maps between stem and binding: ONNX Runtime takes 5 to 30 % less time, OpenVINO
        30 %. ``"grouped"`` is one grouped convolution: OpenVINO is a little faster still, ONNX
        Runtime is not. PyTorch is faster with neither, so they are for tracing only.
        """
        adds_up = not self.binding.keeps_apart and self.config.bind_after_stage == 0
        self.stem_form = form if adds_up else None
        try:
            yield
        finally:
            self.stem_form = None

    def _bind_as_exported(self, images: Tensor) -> Tensor:
        """Bind the maps of groups: (g, a, c, h, w) -> (g, d, h', w')."""
        active = images.shape[1]
        if self.stem_form == "grouped" or active == 1:
            return cast(Tensor, self.binding(self.stem.grouped(images), active))
        maps, period = self.stem.stacked(images)
        return cast(PositionBinding, self.binding).join_stacked(maps, active, period)

    def _unbind(self, features: Tensor, active: int, alone: bool) -> Tensor:
        """Read the answers out of passes that ``active`` images share, or have alone: (g a, d)."""
        streams = self.unbinding(features, active)  # g a d
        if alone:  # (g a) a d: only the answer of its own stream counts
            streams = streams.unflatten(0, (-1, active)).diagonal(dim1=1, dim2=2).mT
        return streams.flatten(0, 1)

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

    @classmethod
    def upgrade_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Give older names those of today."""
        return {**config, "binding": "matrix"} if config.get("binding") == "mbat" else config

    def isometry_penalty(self) -> Tensor:
        """Sum of the isometry penalties of all trunk convolutions, unweighted."""
        return total_isometry_penalty(self.trunk)

    def stream_key_penalty(self) -> Tensor:
        """How far the stream keys are from orthonormal, unweighted."""
        return self.binding.penalty()


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _apart(x: Tensor, parts: list[Tensor]) -> list[Tensor]:
    """Divide (b, ...) like these parts, each (g, p, ...)."""
    if len(parts) == 1:  # exported graphs have any number of groups, so nothing is counted here
        return [x.unflatten(0, parts[0].shape[:2])]
    pieces = x.split([part.shape[:2].numel() for part in parts])
    return [x.unflatten(0, part.shape[:2]) for x, part in zip(pieces, parts, strict=True)]
