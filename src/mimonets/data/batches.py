"""Batches that depend on the seed, the epoch and the step alone.

A run that resumes at any step of any epoch sees exactly the batches it would have seen. The data
stays one tensor of small integers; a batch is an index, batched changes and one conversion.
"""

from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, Generic, Self

import torch
from torch import Tensor

from mimonets.data.images.augment import (
    AugmentConfig,
    channel_statistics,
    random_changes,
    standardise,
)
from mimonets.data.interface import IGNORED
from mimonets.data.sets import AnySet, ImageSet, SequenceSet

# b items   t tokens

MOST_ON_DEVICE = 2**31  # bytes of images that a GPU keeps; larger sets stay in main memory


def generator_for(*numbers: int) -> torch.Generator:
    """Make a generator whose stream belongs to these numbers: seed, epoch, step, purpose.

    >>> generator_for(0, 1).initial_seed() == generator_for(0, 1).initial_seed()
    True
    """
    state = 0x9E3779B97F4A7C15
    for number in numbers:  # the mixing step of SplitMix64, Steele et al., OOPSLA 2014
        state = (state ^ number) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return torch.Generator().manual_seed(state)


class _Batches(Generic[AnySet]):
    """Order and cut: what image and sequence batches share."""

    def __init__(
        self,
        data: AnySet,
        batch_size: int,
        *,
        shuffle: bool = False,
        repeats: int = 1,
        seed: int = 0,
        drop_last: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        for name, value in (("batch_size", batch_size), ("repeats", repeats)):
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        self.data: AnySet = data
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.repeats = repeats
        self.seed = seed
        self.drop_last = drop_last
        self.device = torch.device(device)
        if drop_last and not len(self):
            raise ValueError(
                f"{data.name}: {len(data)} items x {repeats} do not fill one batch of "
                f"{batch_size}: choose a smaller batch_size."
            )

    @property
    def num_classes(self) -> int:
        """How many classes the labels name."""
        return self.data.num_classes

    def __len__(self) -> int:
        items = len(self.data) * self.repeats
        return items // self.batch_size if self.drop_last else -(-items // self.batch_size)

    def to(self, device: torch.device) -> Self:
        """Make the same batches on another device."""
        moved = copy(self)
        moved.device = device
        return moved

    def _steps(self, epoch: int, start: int) -> Iterator[tuple[int, Tensor]]:
        """Yield number and items of each step."""
        if not 0 <= start <= len(self):
            raise ValueError(f"start={start} lies outside the {len(self)} steps of an epoch.")
        order = self._order(epoch).split(self.batch_size)
        for step in range(start, len(self)):
            yield step, order[step]

    def _order(self, epoch: int) -> Tensor:
        """All items of an epoch: the set ``repeats`` times, each time in a fresh order."""
        count = len(self.data)
        if not self.shuffle:
            return torch.arange(count).repeat(self.repeats)
        orders = [
            torch.randperm(count, generator=generator_for(self.seed, epoch, repeat, 1))
            for repeat in range(self.repeats)
        ]
        return torch.cat(orders)


class ImageBatches(_Batches[ImageSet]):
    """Batches of standardised float images and their labels.

    Args:
        statistics: mean and deviation per channel on the scale 0..255; those of ``data`` if not
            given, so give the training set's for the others: ``train_batches.statistics``.
        augment: random changes; None for evaluation.

    >>> data = ImageSet(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5), 5, "five")
    >>> [len(labels) for images, labels in ImageBatches(data, 2)]
    [2, 2, 1]
    """

    def __init__(
        self,
        data: ImageSet,
        batch_size: int,
        *,
        augment: AugmentConfig | None = None,
        statistics: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(data, batch_size, **options)
        self.augment = augment
        self.statistics = statistics or channel_statistics(data.images)
        if len(self.statistics[0]) != data.images.shape[1]:
            raise ValueError(
                f"{data.name}: statistics of {len(self.statistics[0])} channels do not fit images "
                f"with {data.images.shape[1]}."
            )
        self._images = data.images.to(self.device)
        self._labels = data.labels.to(self.device)

    def to(self, device: torch.device) -> Self:
        """Make the same batches on a device, unless it would be filled with the images."""
        if self.data.images.nbytes > MOST_ON_DEVICE:
            return self
        moved = super().to(device)
        moved._images, moved._labels = self._images.to(device), self._labels.to(device)
        return moved

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch from ``start`` on: images (b, c, h, w) and labels (b,)."""
        for step, items in self._steps(epoch, start):
            index = items.to(self.device)
            images = self._images.index_select(0, index)
            if self.augment is not None:
                generator = generator_for(self.seed, epoch, step, 2)
                images = random_changes(images, self.augment, generator)
            yield standardise(images, *self.statistics), self._labels.index_select(0, index)


class SequenceBatches(_Batches[SequenceSet]):
    """Batches of tokens, the mask of real ones, and labels.

    Tokens are cut to the longest sequence of the batch, rounded up to a multiple of
    ``round_to``, and at most the width of the set; ``round_to=None`` keeps that width always.

    >>> data = SequenceSet(torch.ones(3, 200, dtype=torch.uint8), torch.tensor([3, 70, 5]),
    ...                    torch.arange(3), 2, 3, "three")
    >>> [tuple(tokens.shape) for tokens, mask, labels in SequenceBatches(data, 2)]
    [(2, 128), (1, 64)]
    """

    def __init__(
        self, data: SequenceSet, batch_size: int, *, round_to: int | None = 64, **options: Any
    ) -> None:
        super().__init__(data, batch_size, **options)
        if round_to is not None and round_to < 1:
            raise ValueError(f"round_to={round_to} must be at least 1, or None to cut nothing.")
        self.round_to = round_to

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield tokens int64 and mask bool, (b, t) or (b, 2, t), and labels, from ``start`` on."""
        for tokens, mask, labels in _moved(self._made(epoch, start), self.device):
            yield tokens.long(), mask, labels  # tokens travel as bytes

    def _made(self, epoch: int, start: int) -> Iterator[tuple[Tensor, ...]]:
        data = self.data
        for _, index in self._steps(epoch, start):
            width = self._width(data.lengths[index])
            lengths = data.lengths.index_select(0, index)
            tokens = data.tokens[..., :width].index_select(0, index)
            mask = torch.arange(width) < lengths.unsqueeze(-1)
            labels = data.labels.index_select(0, index)
            if data.is_next_token:
                labels = labels[:, :width].where(mask, IGNORED)
            yield tokens, mask, labels

    def _width(self, lengths: Tensor) -> int:
        width = self.data.tokens.shape[-1]
        if self.round_to is None:
            return width
        longest = max(int(lengths.max()), 1)
        return min(-(-longest // self.round_to) * self.round_to, width)


def _moved(
    batches: Iterable[tuple[Tensor, ...]], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """Move batches to a device; to CUDA from pinned memory, one batch ahead of the one in use."""
    if device.type != "cuda":
        for batch in batches:
            yield tuple(part.to(device) for part in batch)
        return
    ahead: tuple[Tensor, ...] | None = None
    for batch in batches:
        copied = tuple(part.pin_memory().to(device, non_blocking=True) for part in batch)
        if ahead is not None:
            yield ahead
        ahead = copied
    if ahead is not None:
        yield ahead


MOST_INPUTS = 256  # per batch when nothing is trained
MOST_TOKENS = 2**16  # likewise; a Performer of LRA's size needs about 70 kB for each


def evaluation_batches(
    data: ImageSet | SequenceSet,
    *,
    statistics: tuple[Tensor, Tensor] | None = None,
    device: str | torch.device = "cpu",
) -> ImageBatches | SequenceBatches:
    """Make batches to evaluate on: in order, and small enough for the memory.

    Args:
        statistics: of the training images, see :class:`ImageBatches`.

    >>> long = SequenceSet(torch.ones(9, 4096, dtype=torch.uint8), torch.full((9,), 4096),
    ...                    torch.arange(9), 2, 9, "long")
    >>> evaluation_batches(long).batch_size
    16
    """
    if isinstance(data, ImageSet):
        return ImageBatches(data, MOST_INPUTS, statistics=statistics, device=device)
    tokens = data.tokens[0].numel()
    size = max(1, min(MOST_INPUTS, MOST_TOKENS // tokens))
    return SequenceBatches(data, size, device=device)
