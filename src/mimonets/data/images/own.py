"""Your own images: a folder with one sub-folder per class, or arrays in an .npz."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mimonets._show import progress
from mimonets.data.config import DataConfig, DataSet
from mimonets.data.images.reading import ENDINGS, Array, read_image
from mimonets.data.sets import ImageSet, Splits, hold_out
from mimonets.data.unpack import load_arrays, reading

TEST_SHARE = 5  # without a test part, every fifth image is held out as one


def load_folder(config: DataConfig) -> Splits[ImageSet]:
    """Read a folder of images: a sub-folder per class, or ``train/`` and ``test/`` of such.

    Classes are numbered in the order of their names. Without ``test/`` a fifth is held out for it,
    the same for the same seed. Grey stays grey if all images are; else all are read in colour.
    Sixteen bits per pixel are scaled to eight.
    """
    folder = Path(str(config.dir)).expanduser()
    if not folder.is_dir():
        raise ValueError(f"folder: {folder} is no folder: give one with a sub-folder per class.")
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        classes = _class_names(folder / "train")
        extra = sorted(set(_class_names(folder / "test")) - set(classes))
        if extra:
            raise ValueError(
                f"folder: {folder / 'test'} has the classes {', '.join(extra)}, which "
                f"{folder / 'train'} does not have: the class counts do not fit."
            )
        roots = [folder / "train", folder / "test"]
    else:
        classes, roots = _class_names(folder), [folder]
    files = [_files(root, classes) for root in roots]
    images = _read_images([file for part in files for file, _ in part])
    labels = torch.tensor([label for part in files for _, label in part])
    everything = ImageSet(images, labels, len(classes), folder.name, tuple(classes))
    if len(roots) == 1:
        return _split(everything, config.seed)
    index = torch.arange(len(images))
    cut = len(files[0])
    return Splits(everything.subset(index[:cut]), None, everything.subset(index[cut:]))


def load_npz(config: DataConfig) -> Splits[ImageSet]:
    """Read ``x_train, y_train, x_test, y_test``, or ``images, labels`` that are split here.

    Images are uint8: (n, h, w), (n, c, h, w) or (n, h, w, c) with 1 or 3 channels.
    """
    path = Path(str(config.dir)).expanduser()
    if not path.is_file():
        raise ValueError(f"npz: there is no file {path}: give the path of a .npz.")
    arrays = load_arrays(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        train = _arrays_to_set(arrays["x_train"], arrays["y_train"], f"{path}, x_train")
        test = _arrays_to_set(arrays["x_test"], arrays["y_test"], f"{path}, x_test")
        if train.shape != test.shape:
            raise ValueError(
                f"{path}: images of shape {train.shape} to train on and {test.shape} to test."
            )
        classes = max(train.num_classes, test.num_classes)
        train, test = (replace(part, num_classes=classes) for part in (train, test))
        return Splits(train, None, test)
    if {"images", "labels"} <= arrays.keys():
        everything = _arrays_to_set(arrays["images"], arrays["labels"], f"{path}, images")
        return _split(everything, config.seed)
    raise ValueError(
        f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: expected images and labels, or "
        f"x_train, y_train, x_test and y_test."
    )


def _split(everything: ImageSet, seed: int) -> Splits[ImageSet]:
    if len(everything) < 2:
        raise ValueError(f"{everything.name}: one image cannot be split into training and test.")
    train, test = hold_out(everything, max(len(everything) // TEST_SHARE, 1), seed=seed)
    assert test is not None
    return Splits(train, None, test)


def _class_names(folder: Path) -> list[str]:
    with reading(folder):
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    names = [name for name in names if not name.startswith(".")]
    if len(names) < 2:
        raise ValueError(
            f"folder: {folder} has {len(names)} sub-folders: make one per class, at least two."
        )
    return names


def _files(root: Path, classes: list[str]) -> list[tuple[Path, int]]:
    found = []
    for label, name in enumerate(classes):
        inside = root / name
        files = sorted(inside.iterdir()) if inside.is_dir() else []
        files = [file for file in files if file.suffix.lower() in ENDINGS]
        if not files:
            raise ValueError(f"folder: {inside} holds no image ({', '.join(ENDINGS)}).")
        found += [(file, label) for file in files]
    return found


def _read_images(files: list[Path]) -> torch.Tensor:
    pictures: list[Array] = []
    with progress("reading images", len(files)) as advance:
        for file in files:
            picture = read_image(file)
            if pictures and picture.shape[:2] != pictures[0].shape[:2]:
                first, other = (f"{w}x{h}" for h, w in (pictures[0].shape[:2], picture.shape[:2]))
                raise ValueError(
                    f"folder: {files[0]} is {first} and {file} is {other}: bring all images to "
                    f"one size."
                )
            pictures.append(picture)
            advance(1)
    if all(picture.ndim == 2 for picture in pictures):
        return torch.from_numpy(np.stack(pictures)[:, None])
    colour = [np.broadcast_to(p[..., None], (*p.shape, 3)) if p.ndim == 2 else p for p in pictures]
    return torch.from_numpy(np.ascontiguousarray(np.stack(colour).transpose(0, 3, 1, 2)))


def _arrays_to_set(images: np.ndarray, labels: np.ndarray, where: str) -> ImageSet:
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[1] not in (1, 3) and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        scale = " Scale to 0..255 and save as uint8." if images.dtype.kind == "f" else ""
        raise ValueError(
            f"{where}: expected uint8 images (n, h, w), (n, c, h, w) or (n, h, w, c) with 1 or 3 "
            f"channels, and these are {images.dtype} of shape {images.shape}.{scale}"
        )
    if 0 in images.shape:
        raise ValueError(f"{where}: images of shape {images.shape} hold no pixel.")
    labels = labels.reshape(-1) if labels.ndim == 2 and labels.shape[1] == 1 else labels
    fits = labels.dtype.kind in "iu" and labels.shape == (len(images),)
    if not fits or labels.min() < 0 or labels.max() >= 2**31:
        raise ValueError(
            f"{where}: {len(images)} images need as many labels, integers from 0, and these "
            f"are {labels.dtype} of shape {labels.shape}."
        )
    return ImageSet(
        torch.from_numpy(np.ascontiguousarray(images)),
        torch.from_numpy(labels.astype(np.int64)),
        int(labels.max()) + 1,
        Path(where.partition(",")[0]).stem,
    )


FOLDER = DataSet(
    name="folder",
    load=load_folder,
    kind="images",
    takes=frozenset({"validation"}),
    by_class=True,
    needs_dir="a folder with one sub-folder per class",
    licence="yours",
)
NPZ = replace(FOLDER, name="npz", load=load_npz, needs_dir="a .npz")
