"""CIFAR-10 and CIFAR-100, binary and python versions, and CIFAR-10 as grey sequences.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. In the binary version a
record is one label byte (two in CIFAR-100: coarse, fine) and 3072 bytes, red, green, blue by rows.
Both versions are read from their folder, or straight out of their tar archive.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets.data.config import DataConfig
from mimonets.data.dataset import DataSet
from mimonets.data.files import Remote, cached, data_dir, find, find_or_fetch, fingerprint
from mimonets.data.images.unpickle import load_pickle
from mimonets.data.sets import ImageSet, SequenceSet, Splits, hold_out
from mimonets.data.unpack import Arrays, archive_files, damaged, reading

HOME = "https://www.cs.toronto.edu/~kriz/"
SIDE = 32
PIXELS = 3 * SIDE * SIDE
IMAGE_VALIDATION = 5_000  # of LRA's Image task: 45,000 / 5,000 / 10,000


@dataclass(frozen=True)
class Version:
    """The files of one published form of a data set."""

    folder: str
    archive: str
    md5: str
    train: tuple[str, ...]
    test: str
    read: Callable[[bytes, str], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]

    @property
    def archives(self) -> list[str]:
        """Names the packed version goes by, compressed in any way tar knows."""
        stem = self.archive.removesuffix(".tar.gz")
        return [f"{stem}{ending}" for ending in (".tar.gz", ".tar.xz", ".tar.bz2", ".tar")]


def load_cifar10(config: DataConfig) -> Splits[ImageSet]:
    """Load CIFAR-10: 50,000 training and 10,000 test images of 3x32x32 in 10 classes."""
    return _load(config, CIFAR10_FILES, "cifar10", 10)


def load_cifar100(config: DataConfig) -> Splits[ImageSet]:
    """Load CIFAR-100: the shape of CIFAR-10 in 100 classes."""
    return _load(config, CIFAR100_FILES, "cifar100", 100)


def load_grey_sequences(config: DataConfig) -> Splits[SequenceSet]:
    """Load LRA's Image task: CIFAR-10 as 1,024 grey pixels, 45,000 / 5,000 / 10,000.

    A pixel of value 0 is a pixel: every sequence has its full length, and nothing is padding.
    With ``config.length=256`` squares of 2x2 pixels are averaged, with 64 those of 4x4.
    """
    side = _side(config.length)
    colour = load_cifar10(config)

    @cache
    def divided() -> tuple[ImageSet, ImageSet | None]:
        count = IMAGE_VALIDATION if config.validation is None else config.validation
        if config.validation is None and len(colour.train) <= count:
            count = len(colour.train) // 10  # a cut of the data: the same share
        return hold_out(colour.train, count, seed=config.seed)

    def validation() -> SequenceSet | None:
        part = divided()[1]
        return None if part is None else _as_sequences(part, side)

    return Splits(
        lambda: _as_sequences(divided()[0], side),
        validation,
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
    name = data.name.replace("cifar10", "image")
    return SequenceSet(tokens, lengths, data.labels, 256, data.num_classes, name)


def _load(
    config: DataConfig, versions: tuple[Version, ...], name: str, num_classes: int
) -> Splits[ImageSet]:
    version, path = _locate(config, versions, name)

    def part(title: str) -> ImageSet:
        def read() -> Arrays:
            return _read(version, path, title)

        if not path.is_dir():  # unpacking takes many seconds: once is enough
            arrays = cached(f"{name}-{title}", (name, 2, title, fingerprint(path)), read)
        else:
            arrays = read()
        images, labels = (torch.from_numpy(arrays[key]) for key in ("images", "labels"))
        return ImageSet(images, labels, num_classes, f"{name} {title}")

    return Splits(lambda: part("train"), None, lambda: part("test"))


def _read(version: Version, path: Path, title: str) -> Arrays:
    names = version.train if title == "train" else (version.test,)
    files = _read_folder(path, names) if path.is_dir() else _read_archive(path, names)
    pieces = [version.read(files[file], f"{path}, {file}") for file in names]
    images, labels = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return {"images": images.reshape(-1, 3, 32, 32), "labels": labels.astype(np.int64)}


def _locate(config: DataConfig, versions: tuple[Version, ...], name: str) -> tuple[Version, Path]:
    folder = data_dir(config)
    for version in versions:
        if folder.name == version.folder:
            return version, folder
        names = [version.folder, *version.archives]
        path = find(folder, [*names, *(f"{name}/{file}" for file in names)])
        if path is not None:
            return version, path
    version = versions[0]
    remote = Remote(HOME + version.archive, version.md5)
    return version, find_or_fetch(config, [version.archive], remote, name)


def _read_folder(folder: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise ValueError(f"{folder} holds no {', '.join(missing)}: unpack the archive again.")
    with reading(folder):
        return {name: (folder / name).read_bytes() for name in wanted}


def _read_archive(path: Path, wanted: Sequence[str]) -> dict[str, bytes]:
    found = archive_files(path, lambda name: name.rpartition("/")[2] in wanted)
    files = {name.rpartition("/")[2]: content for name, content in found}
    missing = [name for name in wanted if name not in files]
    if missing:
        raise damaged(path, f"it holds no {', '.join(missing)}")
    return files


def _read_binary(
    label_bytes: int,
) -> Callable[[bytes, str], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    def read(content: bytes, where: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        record = label_bytes + PIXELS
        if not content or len(content) % record:
            raise damaged(where, f"{len(content)} bytes are not records of {record}")
        rows = np.frombuffer(content, np.uint8).reshape(-1, record)
        return rows[:, label_bytes:], rows[:, label_bytes - 1]

    return read


def _read_python(
    label_key: bytes,
) -> Callable[[bytes, str], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    def read(content: bytes, where: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
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

    return read


CIFAR10_FILES = (
    Version(
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
        tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        _read_python(b"labels"),
    ),
    Version(
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        _read_binary(1),
    ),
)
CIFAR100_FILES = (
    Version(
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
        ("train",),
        "test",
        _read_python(b"fine_labels"),
    ),
    Version(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        ("train.bin",),
        "test.bin",
        _read_binary(2),
    ),
)


_PAGE = HOME + "cifar.html"
_OBJECTS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
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
CIFAR10 = DataSet(
    name="cifar10",
    load=load_cifar10,
    kind="images",
    takes=frozenset({"validation"}),
    class_names=_OBJECTS,
    home=_PAGE,
)
IMAGE = DataSet(
    name="image",
    load=load_grey_sequences,
    kind="sequences",
    takes=frozenset({"length", "validation"}),
    class_names=_OBJECTS,
    home=_PAGE,
)
CIFAR100 = DataSet(
    name="cifar100",
    load=load_cifar100,
    kind="images",
    takes=frozenset({"validation"}),
    class_names=tuple(_FINE.split()),
    home=_PAGE,
)
