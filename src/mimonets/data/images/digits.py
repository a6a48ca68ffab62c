"""Scikit-learn's digits: real data that needs no download."""

import numpy as np
import torch

from mimonets._extras import need
from mimonets.data.config import DataConfig
from mimonets.data.dataset import DIGITS, DataSet
from mimonets.data.sets import ImageSet, Splits, hold_out

TEST = 297  # of 1,797


def load_digits(config: DataConfig) -> Splits[ImageSet]:
    """Load the 1,797 digits of 8x8 that ship with scikit-learn, the data that needs no download.

    Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998. Values of 0..16 are
    stretched to 0..255. 297 of them, drawn once and for all, are the test set: writers of test
    digits are among those of training digits. (The last 297 would be other writers', and harder.)
    """
    digits = need("sklearn.datasets", "scikit-learn").load_digits()
    images = torch.from_numpy((digits.images * 255 / 16).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    everything = ImageSet(images, labels, 10, "digits train")
    train, test = hold_out(everything, TEST, seed=0)
    assert test is not None
    return Splits(train, None, ImageSet(test.images, test.labels, 10, "digits test"))


DIGITS_8X8 = DataSet(
    name="digits",
    load=load_digits,
    kind="images",
    takes=frozenset({"validation"}),
    class_names=DIGITS,
    home="https://archive.ics.uci.edu/dataset/80",
    licence="CC BY 4.0",
)
