"""CIFAR-10 and CIFAR-100, binary and python versions, and CIFAR-10 as grey sequences.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. In the binary version a
record is one label byte (two in CIFAR-100: coarse, fine) and 3072 bytes, red, green, blue by rows.
Both versions are read from their folder, or straight out of their tar archive.
"""

import io
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets.data.config import DataConfig, DataSet
from mimonets.data.files import Remote, cached, data_dir, find_or_fetch, fingerprint
from mimonets.data.sets import ImageSet, SequenceSet, Splits
from mimonets.data.unpack import Arrays, damaged, named_files, reading

HOME = "https://www.cs.toronto.edu/~kriz/"
SIDE = 32
PIXELS = 3 * SIDE * SIDE
BATCHES = {  # the files of each part
    "cifar10": {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"train": ["train"], "test": ["test"]},
}
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # images and labels


@dataclass(frozen=True)
class Version:
    """One published form of a data set: a folder of batches, packed into an archive."""

    folder: str
    archive: str  # without its ending
    md5: str  # of the archive with the ending .tar.gz
    ending: str  # of the names of its batches
    read: Callable[[bytes, str], Batch]

    @property
    def names(self) -> list[str]:
        """What it is called: its folder, and its archive compressed in any way tar knows."""
        endings = (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")
        return [self.folder, *(self.archive + ending for ending in endings)]


def load_cifar(config: DataConfig) -> Splits[ImageSet]:
    """Load CIFAR-10, or -100 if it is named: 50,000 images to train on and 10,000 to test."""
    name = "cifar100" if config.name == "cifar100" else "cifar10"
    versions = {file: version for version in VERSIONS[name] for file in version.names}
    path = data_dir(config)
    if path.name not in versions:
        first = VERSIONS[name][0]
        remote = Remote(f"{HOME}{first.archive}.tar.gz", first.md5)
        path = find_or_fetch(config, list(versions), remote, name)
    version = versions[path.name]

    def part(title: str) -> ImageSet:
        names = [file + version.ending for file in BATCHES[name][title]]
        if path.is_dir():
            arrays = _read(version, path, names)
        else:  # unpacking takes many seconds: once is enough
            key = (name, 2, title, fingerprint(path))
            arrays = cached(f"{name}-{title}", key, lambda: _read(version, path, names))
        images, labels = (torch.from_numpy(arrays[key]) for key in ("images", "labels"))
        return ImageSet(images, labels, len(CLASSES[name]), f"{name} {title}")

    return Splits(lambda: part("train"), None, lambda: part("test"))


def load_grey_sequences(config: DataConfig) -> Splits[SequenceSet]:
    """Load LRA's Image task: CIFAR-10 as 1,024 grey pixels, 45,000 / 5,000 / 10,000.

    A pixel of value 0 is a pixel: every sequence has its full length, and nothing is padding.
    With ``config.length=256`` squares of 2x2 pixels are averaged, with 64 those of 4x4.
    """
    side = _side(config.length)
    colour = load_cifar(config)
    return Splits(
        lambda: _as_sequences(colour.train, side),
        None,
        lambda: _as_sequences(colour.test, side),
    )


def to_grey(images: Tensor) -> Tensor:
    r"""Turn uint8 (n, 3, h, w) into grey (n, h, w) by ITU-R 601: 0.299 R + 0.587 G + 0.114 B.

    In 16-bit fixed point and rounded to the nearest, exactly as Pillow's ``convert("L")``.

    >>> to_grey(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)).item()
    76
    """
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32).view(1, 3, 1, 1)
    grey = torch.empty(len(images), *images.shape[2:], dtype=torch.uint8)
    for start in range(0, len(images), 4096):
        part = images[start : start + 4096].int()
        grey[start : start + 4096] = ((part * weights).sum(dim=1) + 0x8000) >> 16
    return grey


def _side(length: int | None) -> int:
    """Find how many pixels a side is left with ``length`` of them in all."""
    side = math.isqrt(length or SIDE**2)
    if side < 1 or side**2 != (length or SIDE**2) or SIDE % side:
        fitting = ", ".join(str((SIDE // part) ** 2) for part in (1, 2, 4, 8))
        raise ValueError(
            f"data.length={length} does not fit image: choose from {fitting}, the pixels that are "
            f"left when squares of them are averaged."
        )
    return side


def _as_sequences(data: ImageSet, side: int) -> SequenceSet:
    grey = to_grey(data.images)
    if side < grey.shape[-1]:  # averages, rounded to the nearest, of halves to even
        grey = F.adaptive_avg_pool2d(grey.float().unsqueeze(1), side).squeeze(1).round().byte()
    tokens = grey.flatten(1)
    lengths = torch.full((len(tokens),), tokens.shape[1], dtype=torch.int32)
    return SequenceSet(tokens, lengths, data.labels, 256, data.num_classes, "image")


def _read(version: Version, path: Path, names: list[str]) -> Arrays:
    files = named_files(path, names)
    batches = [version.read(files[name], f"{path}, {name}") for name in names]
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return {"images": images.reshape(-1, 3, SIDE, SIDE), "labels": labels.astype(np.int64)}


def _read_binary(label_bytes: int, content: bytes, where: str) -> Batch:
    record = label_bytes + PIXELS
    if not content or len(content) % record:
        raise damaged(where, f"{len(content)} bytes are not records of {record}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, record)
    return rows[:, label_bytes:], rows[:, label_bytes - 1]


def _read_python(label_key: bytes, content: bytes, where: str) -> Batch:
    batch = load_pickle(content, where)
    name = label_key.decode()
    if not isinstance(batch, dict) or not {b"data", label_key} <= batch.keys():
        raise damaged(where, f"it has no data and {name}")
    images, labels = batch[b"data"], batch[label_key]
    if isinstance(labels, list) and all(type(label) is int for label in labels):
        with reading(where):  # larger than 64 bits
            labels = np.array(labels, dtype=np.int64)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise damaged(where, f"its {name} are not one list of integers")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
        raise damaged(where, "its data is no array of bytes")
    if images.shape != (len(labels), PIXELS):
        raise damaged(where, f"data of shape {images.shape}, labels of {labels.shape}")
    return images, labels


# What an array of numbers is made of, under the names numpy 1 and 2 give it. Nothing here acts.
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),  # bytes, as Python 2's protocol writes them
    ("builtins", "bytes"),
    ("builtins", "bytearray"),
}


def load_pickle(content: bytes, where: str) -> Any:
    """Unpickle lists, dictionaries, bytes and numpy arrays; refuse what could run code.

    The files were written by Python 2, so their strings arrive as bytes.

    >>> load_pickle(pickle.dumps({b"labels": [1, 2]}), "a file")
    {b'labels': [1, 2]}
    """
    with reading(where):  # a damaged pickle can raise anything
        return _Restricted(io.BytesIO(content), encoding="bytes").load()


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core", "numpy._core")  # numpy 1's name for it
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no image file needs: it may be harmful and "
                f"was not run"
            )
        return super().find_class(module, name)


VERSIONS = {  # the first one is fetched
    "cifar10": (
        Version(
            *("cifar-10-batches-py", "cifar-10-python", "c58f30108f718f92721af3b95e74349a"),
            ending="",
            read=partial(_read_python, b"labels"),
        ),
        Version(
            *("cifar-10-batches-bin", "cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530"),
            ending=".bin",
            read=partial(_read_binary, 1),
        ),
    ),
    "cifar100": (
        Version(
            *("cifar-100-python", "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85"),
            ending="",
            read=partial(_read_python, b"fine_labels"),
        ),
        Version(
            *("cifar-100-binary", "cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8"),
            ending=".bin",
            read=partial(_read_binary, 2),
        ),
    ),
}
_FINE = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASSES = {
    "cifar10": (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    "cifar100": tuple(_FINE.split()),
}
CIFAR10 = DataSet(
    name="cifar10",
    load=load_cifar,
    kind="images",
    takes=frozenset({"validation"}),
    class_names=CLASSES["cifar10"],
    home=HOME + "cifar.html",
)
CIFAR100 = replace(CIFAR10, name="cifar100", class_names=CLASSES["cifar100"])
IMAGE = replace(
    CIFAR10,
    name="image",
    load=load_grey_sequences,
    kind="sequences",
    takes=frozenset({"length", "validation"}),
    held_out=5_000,
)
