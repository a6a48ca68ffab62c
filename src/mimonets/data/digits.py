"""Scikit-learn's digits: real data that needs no download."""

import numpy as np
import torch

from mimonets.data.config import DataConfig
from mimonets.data.files import need
from mimonets.data.sets import ImageSet, Splits

TEST = 297  # of 1,797


def load_digits(config: DataConfig) -> Splits[ImageSet]:
    """Load the 1,797 digits of 8x8 that ship with scikit-learn, the data that needs no download.

    Alpaydin & Kaynak, "Optical Recognition of Handwritten Digits", UCI, 1998. Values of 0..16 are
    stretched to 0..255. The last 297 are the test set.
    """
    digits = need("sklearn.datasets", "scikit-learn").load_digits()
    images = torch.from_numpy((digits.images * 255 / 16).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    everything = ImageSet(images, labels, 10, "digits train")
    index = torch.arange(len(images))
    test = everything.subset(index[-TEST:])
    return Splits(
        everything.subset(index[:-TEST]),
        None,
        ImageSet(test.images, test.labels, 10, "digits test"),
    )
