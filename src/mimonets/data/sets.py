"""What a loader hands over: images or sequences in memory, and their splits.

Everything stays in its smallest integer type; batches turn it into what a model eats.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from mimonets.data.interface import IGNORED

# n items   c channels   h, w height and width   t tokens


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images: ``images`` uint8 (n, c, h, w) and ``labels`` int64 (n,).

    >>> grey = ImageSet(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]), 2, "x")
    >>> len(grey), grey.shape
    (3, (1, 8, 8))
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    name: str
    class_names: tuple[str, ...] | None = None  # in the order of the labels
    original: tuple[int, int] | None = None  # height and width before a crop

    def __post_init__(self) -> None:
        """Check that the parts fit each other."""
        if self.images.ndim != 4 or self.images.dtype != torch.uint8:
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (n, c, h, w), and these are "
                f"{self.images.dtype} of shape {tuple(self.images.shape)}."
            )
        if 0 in self.images.shape[1:]:
            raise ValueError(
                f"{self.name}: images of shape {tuple(self.images.shape)} hold no pixel."
            )
        _check_labels(self, self.labels, (len(self.images),))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        c, h, w = self.images.shape[1:]
        return c, h, w

    def subset(self, index: Tensor) -> "ImageSet":
        """Keep the items at these positions, in that order."""
        return replace(self, images=self.images[index], labels=self.labels[index])


@dataclass(frozen=True, eq=False)
class SequenceSet:
    """Labelled token sequences, padded at their end.

    ``tokens`` are (n, t), or (n, 2, t) for pairs of documents, in uint8, int16 or int32;
    ``lengths`` are (n,) or (n, 2) and alone say what is padding, since token 0 may be a symbol.
    ``labels`` are int64: (n,) one class per item, or (n, t) the next token at each position with
    :data:`IGNORED` where none is scored.
    """

    tokens: Tensor
    lengths: Tensor
    labels: Tensor
    vocab_size: int
    num_classes: int
    name: str
    class_names: tuple[str, ...] | None = None  # in the order of the labels

    def __post_init__(self) -> None:
        """Check that the parts fit each other."""
        shape = tuple(self.tokens.shape)
        if self.tokens.dtype not in (torch.uint8, torch.int16, torch.int32) or len(shape) < 2:
            raise ValueError(
                f"{self.name}: tokens must be uint8, int16 or int32 of shape (n, t) or (n, 2, t), "
                f"and these are {self.tokens.dtype} of shape {shape}."
            )
        if tuple(self.lengths.shape) != shape[:-1]:
            raise ValueError(
                f"{self.name}: tokens of shape {shape} need lengths of shape {shape[:-1]}, "
                f"and these are {tuple(self.lengths.shape)}."
            )
        next_token = self.labels.ndim == 2
        labels = self.labels[self.labels != IGNORED] if next_token else self.labels
        _check_labels(self, labels, None if next_token else shape[:1])
        if next_token and self.labels.shape != self.tokens.shape:
            raise ValueError(
                f"{self.name}: labels of shape {tuple(self.labels.shape)} do not name a next token "
                f"for tokens of shape {shape}."
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_pairs(self) -> bool:
        """Whether an item is a pair of documents."""
        return self.tokens.ndim == 3

    @property
    def is_next_token(self) -> bool:
        """Whether labels are next tokens rather than one class per item."""
        return self.labels.ndim == 2

    def subset(self, index: Tensor) -> "SequenceSet":
        """Keep the items at these positions, in that order."""
        return replace(
            self,
            tokens=self.tokens[index],
            lengths=self.lengths[index],
            labels=self.labels[index],
        )


AnySet = TypeVar("AnySet", ImageSet, SequenceSet)
SPLITS = ("train", "validation", "test")


class Splits(Generic[AnySet]):
    """The three parts of a data set. ``validation`` is None where nothing is held out.

    A part may be given as a function that reads it. It is called when the part is first asked
    for, so that training opens no file of the test data, and evaluation none of the training data.

    >>> splits = Splits(lambda: print("reading") or "images", None, "others")
    >>> splits.test, splits.train, splits.train
    reading
    ('others', 'images', 'images')
    """

    def __init__(
        self,
        train: AnySet | Callable[[], AnySet],
        validation: AnySet | Callable[[], AnySet | None] | None,
        test: AnySet | Callable[[], AnySet],
    ) -> None:
        self._parts: tuple[Any, ...] = (train, validation, test)

    @cached_property
    def train(self) -> AnySet:
        """What is trained on."""
        return self._read(0)

    @cached_property
    def validation(self) -> AnySet | None:
        """What choices are made by, or None."""
        return self._read(1)

    @cached_property
    def test(self) -> AnySet:
        """What only the final measurement may read."""
        return self._read(2)

    def _read(self, number: int) -> Any:
        part = self._parts[number]
        return part() if callable(part) else part

    def read(self) -> "Splits[AnySet]":
        """Read all parts now: here a missing or damaged file is found."""
        return Splits(self.train, self.validation, self.test)


def hold_out(data: AnySet, count: int, *, seed: int) -> tuple[AnySet, AnySet | None]:
    """Split ``count`` items off a training set: the same ones for the same seed, order kept.

    >>> data = ImageSet(torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5), 5, "five")
    >>> train, validation = hold_out(data, 2, seed=0)
    >>> sorted(train.labels.tolist() + validation.labels.tolist())
    [0, 1, 2, 3, 4]
    """
    if count == 0:
        return data, None
    if count >= len(data):
        raise ValueError(
            f"{data.name}: cannot hold {count} of {len(data)} training items out for validation: "
            f"choose validation below {len(data)}."
        )
    order = random_order(data, seed)
    return data.subset(order[count:].sort().values), data.subset(order[:count].sort().values)


def take(data: AnySet, count: int | None, *, seed: int) -> AnySet:
    """Keep at most ``count`` items, drawn by the seed, so that every class has its share."""
    if count is None or count >= len(data):
        return data
    order = random_order(data, seed)
    return data.subset(order[:count].sort().values)


def mix(data: AnySet, *, seed: int) -> AnySet:
    """Put the items into a random order, the same one for the same seed."""
    return data.subset(random_order(data, seed))


def random_order(data: ImageSet | SequenceSet, seed: int) -> Tensor:
    """Draw an order of all items, the same one for the same seed."""
    return torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))


def _check_labels(
    data: ImageSet | SequenceSet, labels: Tensor, shape: tuple[int, ...] | None
) -> None:
    name, classes, class_names = data.name, data.num_classes, data.class_names
    if labels.dtype != torch.int64 or (shape is not None and tuple(labels.shape) != shape):
        raise ValueError(
            f"{name}: labels must be int64{f' of shape {shape}' if shape else ''}, and these are "
            f"{labels.dtype} of shape {tuple(labels.shape)}."
        )
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= classes):
        raise ValueError(
            f"{name}: labels run from {int(labels.min())} to {int(labels.max())}, which does not "
            f"fit {classes} classes: they count from 0 to {classes - 1}."
        )
    if class_names is not None and len(class_names) != classes:
        raise ValueError(f"{name}: {len(class_names)} names do not fit {classes} classes.")
