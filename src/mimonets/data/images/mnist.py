"""MNIST and Fashion-MNIST in their original idx files.

LeCun, Cortes & Burges, "The MNIST database of handwritten digits": a magic number (two zero bytes,
the type, the number of axes), the size of each axis as a big-endian 32-bit number, then the bytes.
Xiao, Rasul & Vollgraf, "Fashion-MNIST", 2017, has the same files with other pictures.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mimonets.data.config import DIGITS, DataConfig, DataSet
from mimonets.data.files import Remote, find_or_fetch
from mimonets.data.sets import ImageSet, Splits
from mimonets.data.unpack import damaged, most_bytes, open_binary, reading

UNSIGNED_BYTE = 0x08

MNIST_HOME = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MNIST_MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
FASHION_HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}


def load_mnist(config: DataConfig) -> Splits[ImageSet]:
    """Load MNIST: 60,000 training and 10,000 test digits of 28x28."""
    return _load(config, "mnist", "MNIST/raw", MNIST_HOME, MNIST_MD5)


def load_fashion_mnist(config: DataConfig) -> Splits[ImageSet]:
    """Load Fashion-MNIST: the shape of MNIST with ten kinds of clothing."""
    return _load(config, "fashion-mnist", "FashionMNIST/raw", FASHION_HOME, FASHION_MD5)


def _load(
    config: DataConfig, name: str, torchvision: str, home: str, checksums: dict[str, str]
) -> Splits[ImageSet]:
    def file(stem: str) -> Path:
        remote = Remote(f"{home}{stem}.gz", checksums[stem])
        return find_or_fetch(config, [f"{stem}.gz", stem], remote, name, torchvision)

    def part(stem: str, title: str) -> ImageSet:
        images_path = file(f"{stem}-images-idx3-ubyte")
        labels_path = file(f"{stem}-labels-idx1-ubyte")
        images, labels = read_idx(images_path), read_idx(labels_path)
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise ValueError(
                f"{images_path} has shape {tuple(images.shape)} and {labels_path} "
                f"{tuple(labels.shape)}: they are not the images and labels of one set."
            )
        return ImageSet(images.unsqueeze(1), labels.long(), 10, f"{name} {title}")

    return Splits(lambda: part("train", "train"), None, lambda: part("t10k", "test"))


def read_idx(path: Path) -> Tensor:
    """Read one idx file of bytes, packed or not, and check that it is whole."""
    with reading(path), open_binary(path) as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] != UNSIGNED_BYTE:
            raise damaged(path, "it does not start like an idx file of bytes")
        axes = start[3]
        sizes = file.read(4 * axes)
        if not 1 <= axes <= 4 or len(sizes) != 4 * axes:
            raise damaged(path, f"its header does not hold the sizes of {axes} axes")
        shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
        announced = math.prod(shape)
        if announced > most_bytes(path):
            raise damaged(path, f"the shape {shape} it announces is too large for this file")
        content = file.read(announced + 1)  # one more, to see whether it ends there
        if len(content) != announced:
            many = "more" if len(content) > announced else f"{len(content)}"
            raise damaged(path, f"{many} bytes do not hold the shape {shape} it announces")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


MNIST = DataSet(
    name="mnist",
    load=load_mnist,
    kind="images",
    takes=frozenset({"validation"}),
    held_out=5_000,  # as in the paper
    class_names=DIGITS,
    home=MNIST_HOME,
)
FASHION_MNIST = replace(
    MNIST,
    name="fashion-mnist",
    load=load_fashion_mnist,
    held_out=0,
    class_names=(
        *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    home="https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
)
