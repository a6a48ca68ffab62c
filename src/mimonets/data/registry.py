"""Every data set by its name, and the one function that loads any of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mimonets.data.config import DataConfig
from mimonets.data.images.augment import centre_crop
from mimonets.data.images.cifar import load_cifar10, load_cifar100, load_grey_sequences
from mimonets.data.images.digits import load_digits
from mimonets.data.images.mnist import load_fashion_mnist, load_mnist
from mimonets.data.images.own import load_folder, load_npz
from mimonets.data.images.svhn import load_svhn
from mimonets.data.sequences.listops import load_listops
from mimonets.data.sequences.pathfinder import load_pathfinder
from mimonets.data.sequences.recall import load_induction, load_recall
from mimonets.data.sequences.text import load_retrieval, load_text
from mimonets.data.sets import Splits, hold_out, take

DATASETS: dict[str, Callable[[DataConfig], Splits[Any]]] = {
    "digits": load_digits,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
    "folder": load_folder,
    "npz": load_npz,
    "listops": load_listops,
    "text": load_text,
    "retrieval": load_retrieval,
    "image": load_grey_sequences,
    "pathfinder": load_pathfinder,
    "recall": load_recall,
    "induction": load_induction,
}
HELD_OUT = {"mnist": 5_000}  # by default, as in the paper; others have their own split or none


def load_data(config: DataConfig) -> Splits[Any]:
    """Load a data set as its config says: read or make it, hold out, limit, crop.

    >>> splits = load_data(DataConfig(name="recall", limit=10))
    >>> len(splits.train), splits.validation, splits.train.vocab_size
    (10, None, 20)
    """
    splits = DATASETS[config.name](config)
    train, validation, test = splits.train, splits.validation, splits.test
    if validation is None:
        default = HELD_OUT.get(config.name, 0)
        count = default if config.validation is None else config.validation
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
        parts[i] = replace(part, name=f"{config.name} {name}")
    return Splits(*parts)
