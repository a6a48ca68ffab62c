"""What a network takes: the description of one input, and how raw data becomes it.

It travels inside checkpoints and exported models, so that whoever has the weights can prepare an
input as in training. Needs numpy only: a server without PyTorch reads it too.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from mimonets._config import Config

Array = np.ndarray[Any, Any]
InputKind = Literal["image", "tokens"]


@dataclass(frozen=True, kw_only=True)
class InputSpec(Config):
    """One input of a network, and what its answers mean.

    >>> spec = InputSpec(kind="image", shape=(1, 2, 2), mean=(100.0,), deviation=(50.0,), crop=2)
    >>> spec.prepare(np.full((1, 4, 4), 150, dtype=np.uint8))
    array([[[1., 1.],
            [1., 1.]]], dtype=float32)
    """

    kind: InputKind
    shape: tuple[int, ...]  # of one input: (channels, height, width), (tokens,) or (2, tokens)
    mean: tuple[float, ...] | None = None  # images: per channel, on the scale 0..255
    deviation: tuple[float, ...] | None = None  # images: per channel, on the scale 0..255
    crop: int | None = None  # images: the centre square that is kept of the original
    original: tuple[int, int] | None = None  # images: height and width before the crop
    labels: tuple[str, ...] | None = None  # names of the classes, in order
    vocab_size: int | None = None  # tokens: ids are 0 .. vocab_size - 1
    vocabulary: tuple[str, ...] | None = None  # tokens: the symbol of every id, where there are any

    def __post_init__(self) -> None:
        """Check all settings; what was read from JSON comes as lists."""
        for name, value in vars(self).items():
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        super().__post_init__()

    def problems(self) -> list[str]:
        """List what is wrong with this description, one sentence each."""
        found = self._wrong_choice("kind", ("image", "tokens"))
        sides = (3,) if self.kind == "image" else (1, 2)
        if len(self.shape) not in sides or not all(
            isinstance(side, int) and side >= 1 for side in self.shape
        ):
            found.append(
                f"shape={self.shape!r} must be (channels, height, width) for images, (tokens,) or "
                f"(2, tokens) for token ids, all integers >= 1."
            )
        elif self.kind == "image":
            for name in ("mean", "deviation"):
                value = getattr(self, name)
                if value is not None and len(value) != self.shape[0]:
                    found.append(
                        f"{name}={value!r} must have one number for each of {self.shape[0]} "
                        f"channels."
                    )
        return found

    def prepare(self, image: Array) -> Array:
        """Crop and standardise one uint8 image (c, h, w) or a batch (b, c, h, w) of them."""
        if self.crop is not None:
            down, right = ((side - self.crop) // 2 for side in image.shape[-2:])
            image = image[..., down : down + self.crop, right : right + self.crop]
        image = image.astype(np.float32)
        if self.mean is None or self.deviation is None:
            return image
        # One product and one sum per pixel, in the order of mimonets.data: the same bits.
        mean = np.asarray(self.mean, dtype=np.float32)[:, None, None]
        deviation = np.asarray(self.deviation, dtype=np.float32)[:, None, None]
        return np.asarray(image * (np.float32(1) / deviation) + -mean / deviation)

    def label(self, answer: int) -> str:
        """Name a class; its number if the classes have no names."""
        return str(answer) if self.labels is None else self.labels[answer]

    def as_dict(self) -> dict[str, Any]:
        """Give everything that is known as plain data for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value is not None
        }

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_dict` gave; raises ValueError for anything else."""
        try:
            return cls(**description)
        except TypeError as error:
            raise ValueError(f"This is no description of inputs: {error}.") from None
