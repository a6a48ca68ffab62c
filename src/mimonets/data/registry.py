"""Every data set by its name, and the one function that loads any of them."""

from dataclasses import replace
from typing import Any

from mimonets.data.config import DataConfig
from mimonets.data.dataset import DataSet
from mimonets.data.images import cifar, digits, mnist, own, svhn
from mimonets.data.images.augment import centre_crop
from mimonets.data.sequences import listops, pathfinder, recall, text
from mimonets.data.sets import Splits, hold_out, take

DATASETS: dict[str, DataSet] = {
    record.name: record
    for record in (
        *(digits.DIGITS_8X8, mnist.MNIST, mnist.FASHION_MNIST),
        *(cifar.CIFAR10, cifar.CIFAR100, svhn.SVHN),
        *(own.FOLDER, own.NPZ),
        *(listops.LISTOPS, text.TEXT, text.RETRIEVAL, cifar.IMAGE, pathfinder.PATHFINDER),
        *(recall.RECALL, recall.INDUCTION),
    )
}


def load_data(config: DataConfig) -> Splits[Any]:
    """Load a data set as its config says: read or make it, hold out, limit, crop.

    >>> splits = load_data(DataConfig(name="recall", limit=10))
    >>> len(splits.train), splits.validation, splits.train.vocab_size
    (10, None, 20)
    """
    record = DATASETS[config.name]
    splits = record.load(config)
    train, validation, test = splits.train, splits.validation, splits.test
    if validation is None:
        count = record.held_out if config.validation is None else config.validation
        if config.validation is None and count >= len(train):
            count = 0  # a cut of the data
        train, validation = hold_out(train, count, seed=config.seed)
    parts = [train, validation, test]
    names = ("train", "validation", "test")
    for i, (part, name) in enumerate(zip(parts, names, strict=True)):
        if part is None:
            continue
        if not len(part):
            raise ValueError(f"{config.name}: there is no {name} item in {config.dir or 'it'}.")
        part = take(part, config.limit, seed=config.seed)
        if config.crop is not None:
            part = replace(part, images=centre_crop(part.images, config.crop))
        class_names = part.class_names or record.class_names
        parts[i] = replace(part, name=f"{config.name} {name}", class_names=class_names)
    return Splits(*parts)
