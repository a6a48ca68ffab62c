"""Scikit-learn's digits: real data that needs no download."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from mimonets._extras import need
from mimonets.data.config import DIGITS, DataConfig, DataSet
from mimonets.data.images.augment import centre_crop
from mimonets.data.sets import ImageSet, Splits, hold_out

TEST = 297  # of 1,797
FOLD = 300  # digits-writers: digits per part that can be the test set; the last has 297
VALIDATION = 300  # of digits-writers, unless its config says otherwise


def load_digits(config: DataConfig) -> Splits[ImageSet]:
    """Load the 1,797 digits of 8x8 that ship with scikit-learn, the data that needs no download.

    Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998. Values of 0..16 are
    stretched to 0..255. 297 of them, drawn once and for all, are the test set: writers of test
    digits are among those of training digits. :func:`load_digits_writers` keeps writers apart.
    """
    train, test = hold_out(_read(), TEST, seed=0)
    assert test is not None
    return Splits(train, None, test)


def load_digits_writers(config: DataConfig) -> Splits[ImageSet]:
    """Load the same digits, with other writers in every split.

    The digits come writer by writer, about 138 of each. The last 297 are the test set, and the
    last ``validation`` of the others are the validation set, so that settings are chosen by what
    they do for writers that were not trained on. One writer may have digits on both sides of a
    cut. With ``fold`` another 300 are the test set, counted from the first digit, so that a network
    can be judged by all digits in turn; ``fold=5`` is the last 297 again.
    """
    everything = _read()
    order = torch.arange(len(everything))
    folds = order.split(FOLD)
    fold = len(folds) - 1 if config.fold is None else config.fold
    if fold >= len(folds):
        raise ValueError(f"fold={fold} is not there: choose from 0 to {len(folds) - 1}.")
    test = folds[fold]
    rest = order[(order < test[0]) | (order > test[-1])]
    count = VALIDATION if config.validation is None else config.validation
    if count >= len(rest):
        raise ValueError(
            f"validation={count} leaves nothing of {len(rest)} digits to train on: choose a "
            f"smaller number."
        )
    train, validation = rest.tensor_split([len(rest) - count])
    return Splits(
        everything.subset(train),
        everything.subset(validation) if count else None,
        everything.subset(test),
    )


def digits_like_mnist(crop: int | None = None) -> ImageSet:
    """Enlarge all 1,797 digits as MNIST has them: 20x20 in 28x28, by the centre of mass.

    They stand in where MNIST is not there: other scans and writers, and blurred.
    """
    everything = _read()
    pixels = F.interpolate(everything.images.float(), (20, 20), mode="bicubic").clamp(0, 255)
    pixels = F.pad(pixels, (4, 4, 4, 4)).round()
    places = torch.arange(28.0)
    mass = pixels.sum(dim=(1, 2, 3))
    moved = [
        torch.roll(image, tuple((13.5 - centre).round().int().tolist()), (1, 2))
        for image, centre in zip(
            pixels,
            torch.stack(
                [(pixels.sum(dim=(1, axis)) * places).sum(dim=1) / mass for axis in (3, 2)], dim=1
            ),
            strict=True,
        )
    ]
    images = torch.stack(moved).to(torch.uint8)
    if crop is not None:
        images = centre_crop(images, crop)
    return replace(everything, images=images, class_names=DIGITS, name="digits, enlarged")


@cache
def _read() -> ImageSet:
    digits = need("sklearn.datasets", "scikit-learn").load_digits()
    images = torch.from_numpy((digits.images * 255 / 16).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    return ImageSet(images, labels, 10, "digits")


DIGITS_8X8 = DataSet(
    name="digits",
    load=load_digits,
    kind="images",
    takes=frozenset({"validation"}),
    class_names=DIGITS,
    home="https://archive.ics.uci.edu/dataset/80",
    licence="CC BY 4.0",
)

DIGITS_WRITERS = replace(
    DIGITS_8X8,
    name="digits-writers",
    load=load_digits_writers,
    takes=frozenset({"validation", "fold"}),
)
