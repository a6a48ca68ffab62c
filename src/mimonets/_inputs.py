"""What a network takes: the description of one input, and how raw data becomes it.

It travels inside checkpoints and exported models, so that whoever has the weights can prepare an
input as in training. Needs numpy only: a server without PyTorch reads it too.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass
from functools import cached_property
from typing import Any, Literal, Self, cast

import numpy as np

from mimonets._config import Config, number, size
from mimonets._messages import short

Array = np.ndarray[Any, Any]
InputKind = Literal["image", "tokens", "array"]
AnswerKind = Literal["values"]
KINDS = {"image": "images", "tokens": "token ids", "array": "arrays"}  # in sentences


@dataclass(frozen=True, kw_only=True)
class InputSpec(Config):
    """One input of a network, and what its answers mean.

    >>> spec = InputSpec(kind="image", shape=(1, 2, 2), mean=(100.0,), deviation=(50.0,), crop=2)
    >>> spec.prepare(np.full((1, 4, 4), 150, dtype=np.uint8))
    array([[[1., 1.],
            [1., 1.]]], dtype=float32)
    """

    kind: InputKind
    # Of one input: (channels, height, width), (tokens,) or (2, tokens), any for an array of floats.
    shape: tuple[int, ...] = size(MISSING)
    # Images: per channel, on the scale 0..255.
    mean: tuple[float, ...] | None = number(None)
    deviation: tuple[float, ...] | None = number(None, above=0)
    crop: int | None = size(None)  # images: the centre square that is kept of the original
    original: tuple[int, int] | None = size(None)  # images: height and width before the crop
    labels: tuple[str, ...] | None = None  # names of the classes, in order
    vocab_size: int | None = size(None)  # tokens: ids are 0 .. vocab_size - 1
    answers: AnswerKind | None = None  # "values": numbers; None: logits of classes
    outputs: tuple[str, ...] | None = None  # names of several, "0" and "1" of a tuple

    @classmethod
    def like(cls, shape: tuple[int, ...], *, numbers: bool, **known: Any) -> Self:
        """Describe inputs of which only the shape is known, and whether they are floats.

        >>> InputSpec.like((3, 100), numbers=True).kind
        'array'
        """
        floats = "image" if len(shape) == 3 else "array"
        return cls(kind=cast(InputKind, floats) if numbers else "tokens", shape=shape, **known)

    def problems(self) -> list[str]:
        """List what is wrong with this description, one sentence each."""
        found = super().problems()
        if found:
            return found
        sides = {"image": (3,), "tokens": (1, 2), "array": (1, 2, 3, 4)}[self.kind]
        if len(self.shape) not in sides:
            return [
                f"shape={short(self.shape)} must be (channels, height, width) for images, "
                f"(tokens,) or (2, tokens) for token ids, one to four sides for arrays."
            ]
        return self._problems_of_images() if self.kind == "image" else []

    def _problems_of_images(self) -> list[str]:
        """List what does not fit together."""
        found = [
            f"{name}={short(value)} must have one number for each of {self.shape[0]} channels."
            for name, value in (("mean", self.mean), ("deviation", self.deviation))
            if value is not None and len(value) != self.shape[0]
        ]
        if (self.mean is None) != (self.deviation is None):
            there, missing = (
                ("mean", "deviation") if self.mean is not None else ("deviation", "mean")
            )
            found.append(f"{there} is given without {missing}: give both, or neither.")
        if self.crop is not None and self.shape[1:] != (self.crop, self.crop):
            found.append(
                f"crop={self.crop} must be the height and width of the input, whose shape is "
                f"{self.shape}."
            )
        original = self.original
        if original is not None and min(original) < (self.crop or 1):
            found.append(
                f"original={original} must be no smaller than the crop, in height and width."
            )
        return found

    @property
    def raw_size(self) -> tuple[int, ...] | None:
        """Height and width that raw images are brought to; None: each keeps its own.

        It does if there is a crop from images of a size that is not known.
        """
        if self.original is None and self.crop is not None:
            return None
        return self.original or self.shape[1:]

    def prepare(self, image: Array) -> Array:
        """Crop and standardise one uint8 image (c, h, w) or a batch (b, c, h, w) of them."""
        if self.crop is not None:
            if min(image.shape[-2:]) < self.crop:
                raise ValueError(
                    f"An image of {image.shape[-2]}x{image.shape[-1]} pixels is too small for a "
                    f"crop of {self.crop}: give larger ones, of the size of the training images."
                )
            down, right = ((side - self.crop) // 2 for side in image.shape[-2:])
            image = image[..., down : down + self.crop, right : right + self.crop]
        image = image.astype(np.float32)
        if self._scale_and_shift is None:
            return image
        scale, shift = self._scale_and_shift
        return np.asarray(image * scale + shift)

    @cached_property
    def _scale_and_shift(self) -> tuple[Array, Array] | None:
        """One product and one sum per pixel, in the order of mimonets.data: the same bits."""
        if self.mean is None or self.deviation is None:
            return None
        mean = np.asarray(self.mean, dtype=np.float32)[:, None, None]
        deviation = np.asarray(self.deviation, dtype=np.float32)[:, None, None]
        return np.float32(1) / deviation, -mean / deviation

    def label(self, answer: int) -> str:
        """Name a class; its number if it has no name."""
        names = self.labels or ()
        return names[answer] if 0 <= answer < len(names) else str(answer)

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
        except TypeError as error:  # not a mapping, or of other names than ours
            raise ValueError(f"This is no description of inputs: {error}.") from None
