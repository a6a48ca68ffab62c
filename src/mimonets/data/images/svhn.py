"""SVHN, the street view house numbers.

Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", 2011: cropped
house numbers of 3x32x32 in MATLAB files, where the digit 0 has label 10.
"""

import math
from pathlib import Path

import numpy as np
import torch

from mimonets._extras import need
from mimonets.data.config import DIGITS, DataConfig, DataSet
from mimonets.data.files import Remote, find_or_fetch
from mimonets.data.sets import ImageSet, Splits
from mimonets.data.unpack import damaged, most_bytes, reading

HOME = "http://ufldl.stanford.edu/housenumbers/"
MD5 = {
    "train": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test": "eb5a983be6a315427106f1b164d9cef3",
}


def load_svhn(config: DataConfig) -> Splits[ImageSet]:
    """Load SVHN's cropped digits: 73,257 for training and 26,032 for testing."""

    def part(title: str) -> ImageSet:
        file = f"{title}_32x32.mat"
        remote = Remote(HOME + file, MD5[title])
        return read_mat(find_or_fetch(config, [file], remote, "svhn", "SVHN"), title)

    return Splits(lambda: part("train"), None, lambda: part("test"))


def read_mat(path: Path, title: str) -> ImageSet:
    """Read one ``*_32x32.mat``: ``X`` (32, 32, 3, n) and ``y`` (n, 1) with 10 for the digit 0."""
    matlab = need("scipy.io", "scipy")
    with reading(path):
        announced = {name: shape for name, shape, _ in matlab.whosmat(path)}
        shape = announced.get("X", ())
        if len(shape) != 4 or shape[:3] != (32, 32, 3) or math.prod(shape) > most_bytes(path):
            raise damaged(path, f"it announces an X of shape {shape}")
        content = matlab.loadmat(path, variable_names=["X", "y"])
        pixels, wanted = content["X"], np.asarray(content["y"]).reshape(-1)
        labels = wanted.astype(np.int64)
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
            raise damaged(path, f"X has shape {pixels.shape} and y {labels.shape}")
        if (labels != wanted).any() or labels.min(initial=1) < 1 or labels.max(initial=1) > 10:
            raise damaged(path, "y holds other numbers than the integers 1 to 10")
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    labels[labels == 10] = 0
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), 10, f"svhn {title}")


SVHN = DataSet(
    name="svhn",
    load=load_svhn,
    kind="images",
    takes=frozenset({"validation"}),
    class_names=DIGITS,
    home=HOME,
    licence="for non-commercial use only",
)
