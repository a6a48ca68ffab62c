"""Frozen dataclasses that fully describe an image model. They travel inside its checkpoint."""

from dataclasses import dataclass
from typing import Literal, get_args

from mimonets.layers import ActivationName

BindingName = Literal["hrr", "mbat"]
KeyName = Literal["gaussian", "unitary", "bipolar", "slots"]
ReadoutName = Literal["shared", "stream"]

MIN_IMAGE_SIZE = 4  # after two stridings at least one position is left
MIN_LENET_SIZE = 20  # after three convolutions and two poolings at least one position is left


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What all configs share: they refuse nonsense and name every mistake at once."""

    def __post_init__(self) -> None:
        """Check all settings."""
        problems = self.problems()
        if problems:
            raise ValueError(f"{type(self).__name__}: " + " ".join(problems))

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        return [
            f"{name}={getattr(self, name)!r} must be a whole number of at least {least}."
            for name, least in self._smallest().items()
            if not is_whole(getattr(self, name)) or getattr(self, name) < least
        ]

    def _smallest(self) -> dict[str, int]:
        """Say which settings are whole numbers, and the smallest that fits."""
        return {}

    def _wrong_choice(self, name: str, choices: tuple[str, ...]) -> list[str]:
        value = getattr(self, name)
        if value in choices:
            return []
        return [f"{name}={value!r} is not known: choose from {', '.join(choices)}."]


@dataclass(frozen=True, kw_only=True)
class WideResNetConfig(ModelConfig):
    """A wide residual network of three stages. Zagoruyko & Komodakis, BMVC 2016.

    >>> WideResNetConfig(depth=16, width=4).blocks_per_stage
    2
    """

    depth: int = 28  # 6n + 4: three stages of n blocks with two convolutions each
    width: int = 10  # multiplies the 16, 32 and 64 feature maps of the stages
    initial_width: int = 1  # multiplies the 16 feature maps of the first layer
    in_channels: int = 3  # input maps: 1 for grey, 3 for colour
    num_classes: int = 100
    image_size: int = 32  # side of the images it is made for, used by cost and bench; others work
    activation: ActivationName = "relu"  # inside the residual blocks
    skip_init: bool = False  # scale each residual branch by a number that starts at 0
    dirac_init: bool = False  # start the trunk's convolutions as identities
    shortcut_norm: bool = False  # batch norm after 1x1 shortcuts, as in the authors' code
    final_norm: bool = True  # batch norm and activation before the pooling
    pool: int = 1  # positions per side that the pooling leaves; 1 averages the whole image

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        if is_whole(self.depth) and self.depth >= 10 and self.depth % 6 != 4:
            found.append(
                f"depth={self.depth} does not split into three equal stages: "
                f"a WideResNet needs depth = 6n + 4, such as 10, 16 or 28."
            )
        found += self._wrong_choice("activation", get_args(ActivationName))
        return found

    @property
    def blocks_per_stage(self) -> int:
        """N in depth = 6n + 4."""
        return (self.depth - 4) // 6

    @property
    def stem_maps(self) -> int:
        """Feature maps after the first layer; D of the binding."""
        return 16 * self.initial_width

    @property
    def features(self) -> int:
        """Numbers after the pooling; D_o of the unbinding."""
        return 64 * self.width * self.pool**2

    def _smallest(self) -> dict[str, int]:
        return {
            "depth": 10,
            "width": 1,
            "initial_width": 1,
            "in_channels": 1,
            "num_classes": 1,
            "image_size": MIN_IMAGE_SIZE,
            "pool": 1,
        }


@dataclass(frozen=True, kw_only=True)
class WideIsoNetConfig(WideResNetConfig):
    """A WideResNet to be trained with the isometry penalty: the paper's stronger baseline."""

    activation: ActivationName = "prelu"


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


@dataclass(frozen=True, kw_only=True)
class DataMUXConvConfig(ModelConfig):
    """DataMUX on images, "CNN + nonlinear (8x)". Murahari et al., NeurIPS 2022.

    >>> DataMUXConvConfig(image_size=28).final_size
    3
    """

    num_streams: int = 4  # inputs per superposition; slots in their words
    mux_hidden: int = 16  # hidden maps of each stream's multiplexing network
    mux_maps: int = 8  # maps that all inputs share after it
    in_channels: int = 1
    num_classes: int = 10
    image_size: int = 20  # side of the images; no other size works

    @property
    def final_size(self) -> int:
        """Side of the maps after the last convolution of the LeNet."""
        return ((self.image_size - 2) // 2 - 3) // 2 - 2

    def _smallest(self) -> dict[str, int]:
        names = ("num_streams", "mux_hidden", "mux_maps", "in_channels", "num_classes")
        return {**dict.fromkeys(names, 1), "image_size": MIN_LENET_SIZE}


def is_whole(value: object) -> bool:
    """Tell whether a setting is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
