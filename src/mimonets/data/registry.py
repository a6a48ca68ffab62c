"""Every data set by its name, and the one function that loads any of them."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mimonets._inputs import InputSpec
from mimonets.data.batches import ImageBatches, SequenceBatches, evaluation_batches
from mimonets.data.config import DataConfig, DataSet
from mimonets.data.images import cifar, digits, mnist, own, svhn
from mimonets.data.images.augment import centre_crop, channel_statistics
from mimonets.data.sequences import listops, pathfinder, recall, text
from mimonets.data.sets import AnySet, ImageSet, Splits, hold_out, mix, take

DATASETS: dict[str, DataSet] = {
    record.name: record
    for record in (
        *(digits.DIGITS_8X8, digits.DIGITS_WRITERS, mnist.MNIST, mnist.FASHION_MNIST),
        *(cifar.CIFAR10, cifar.CIFAR100, svhn.SVHN),
        *(own.FOLDER, own.NPZ),
        *(listops.LISTOPS, text.TEXT, text.RETRIEVAL, cifar.IMAGE, pathfinder.PATHFINDER),
        *(recall.RECALL, recall.INDUCTION),
    )
}


def load_data(config: DataConfig) -> Splits[Any]:
    """Load a data set as its config says: read or make it, hold out, limit, crop.

    A split is read when it is first asked for, see :class:`Splits`.

    >>> splits = load_data(DataConfig(name="recall", limit=10))
    >>> len(splits.train), splits.validation, splits.train.vocab_size
    (10, None, 20)
    """
    record = DATASETS[config.name]
    source = record.load(config)

    @cache
    def divided() -> tuple[Any, Any]:
        count = record.held_out if config.validation is None else config.validation
        if config.validation is None and count >= len(source.train):
            count = len(source.train) // 10  # a cut of the data
        return hold_out(source.train, count, seed=config.seed)

    def train() -> Any:
        whole = source.validation is not None
        return _prepare(config, source.train if whole else divided()[0], "train")

    def validation() -> Any:
        own = source.validation
        part = divided()[1] if own is None else own
        return _prepare(config, part, "validation") if part else None

    return Splits(train, validation, lambda: _prepare(config, source.test, "test"))


def _prepare(config: DataConfig, part: AnySet, title: str) -> AnySet:
    """Limit and crop one part, and name its classes."""
    if not len(part):
        raise ValueError(f"{config.name}: there is no {title} item in {config.dir or 'it'}.")
    part = take(part, config.limit, seed=config.seed)
    if DATASETS[config.name].by_class and title != "train":
        # Neighbours share a pass, and training groups are drawn at random: so must these be.
        part = mix(part, seed=config.seed)
    if config.crop is not None and isinstance(part, ImageSet):
        cropped = centre_crop(part.images, config.crop)
        part = replace(part, images=cropped, original=part.shape[1:])
    class_names = part.class_names or DATASETS[config.name].class_names
    return replace(part, name=f"{config.name} {title}", class_names=class_names)


def split_batches(
    config: DataConfig,
    split: str = "test",
    *,
    spec: InputSpec | None = None,
    device: str | torch.device = "cpu",
) -> ImageBatches | SequenceBatches:
    """Make batches to evaluate one split on, prepared as in training.

    Args:
        spec: of the model's inputs: its mean and deviation are used as they are. Without them
            those of the training images are counted, or 0 and 255 without ``standardise``.

    >>> sum(len(labels) for _, labels in split_batches(DataConfig(limit=20)))
    20
    """
    splits = load_data(config)
    data = getattr(splits, split)
    if data is None:
        raise ValueError(f"{config.name} has no {split} data: choose another split.")
    if split == "train" and DATASETS[config.name].by_class:  # the others are mixed already
        data = mix(data, seed=config.seed)
    statistics = None
    if isinstance(data, ImageSet):
        if spec is not None and spec.mean is not None and spec.deviation is not None:
            statistics = torch.tensor(spec.mean), torch.tensor(spec.deviation)
        else:
            statistics = training_statistics(config, splits.train)
    return evaluation_batches(data, statistics=statistics, device=device)


def training_statistics(config: DataConfig, train: ImageSet) -> tuple[Tensor, Tensor]:
    """Find what images are standardised with: mean and deviation of each channel, on 0..255."""
    if config.standardise:
        return channel_statistics(train.images)
    channels = train.images.shape[1]
    return torch.zeros(channels), torch.full((channels,), 255.0)
