"""Pathfinder: do both markers lie on one snake? As 1,024 grey pixels, read or generated.

Linsley et al., NeurIPS 2018; Tay et al., "Long Range Arena", ICLR 2021, ``pathfinder32``.
"""

import io
from pathlib import Path

import numpy as np
import torch

from mimonets._show import progress
from mimonets.data.config import DataConfig
from mimonets.data.dataset import DataSet
from mimonets.data.files import cached, data_dir, find, fingerprint
from mimonets.data.images.reading import read_image
from mimonets.data.sequences.snakes import draw_images
from mimonets.data.sets import SequenceSet, Splits
from mimonets.data.unpack import Arrays, archive_files, damaged, reading

PUBLISHED = (160_000, 20_000, 20_000)
FOLDERS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
BLOCK = 100  # images that share a stream of random numbers; a smaller set is a beginning


def load_pathfinder(config: DataConfig) -> Splits[SequenceSet]:
    """Read LRA's folder ``curv_contour_length_14`` if it is in the data folder, else generate.

    Images that are read are shuffled by the seed and split 80 / 10 / 10, as in LRA.
    """
    if config.dir is not None:
        folder = data_dir(config)
        source = find(folder, _places(config.contour_length)) or next(
            iter(sorted(folder.glob("pathfinder32*.tar*"))), None
        )
        if source is not None:
            return _read_splits(source, config)
    sizes = config.split_sizes(PUBLISHED)
    total, length = sum(sizes), config.contour_length
    key = ("pathfinder", 1, config.seed, length, sizes)
    arrays = cached("pathfinder", key, lambda: _generate(sizes, length, config.seed))
    sets = [
        _as_set(arrays[f"{name}_images"], arrays[f"{name}_labels"], name)
        for name in ("train", "validation", "test")
    ]
    assert total == sum(map(len, sets))
    return Splits(sets[0], sets[1] if sizes[1] else None, sets[2])


def read_images(source: Path, contour_length: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Read all images (n, 32, 32) and labels of a difficulty: a folder, or a tar archive.

    ``metadata/*.npy`` are text files whatever their name says: folder, file, number, label, ...
    """
    files = _walk_archive(source, contour_length) if source.is_file() else _walk_folder(source)
    rows = []
    for name in sorted(name for name in files if name.startswith("metadata/")):
        for line in files[name].decode("utf-8", "replace").splitlines():
            words = line.split()
            if len(words) < 4 or words[3] not in ("0", "1"):
                raise damaged(f"{source}, {name}", f"the line {line[:40]!r} has no label in it")
            rows.append((f"{words[0]}/{words[1]}", int(words[3])))
    if not rows:
        raise damaged(source, "it has no metadata for this contour length")
    images = np.empty((len(rows), 32, 32), dtype=np.uint8)
    with progress("reading Pathfinder", len(rows)) as advance:
        for i, (name, _) in enumerate(rows):
            if name not in files:
                raise damaged(source, f"{name} is missing")
            where = f"{source}, {name}"
            images[i] = read_image(io.BytesIO(files[name]), where, mode="L", size=(32, 32))
            advance(1)
    return images, np.array([label for _, label in rows], dtype=np.int64)


def _places(contour_length: int) -> list[str]:
    name = FOLDERS.get(contour_length, f"curv_contour_length_{contour_length}")
    release = "lra_release/lra_release/pathfinder32"
    return [name, f"pathfinder32/{name}", f"lra_release/pathfinder32/{name}", f"{release}/{name}"]


def _walk_folder(folder: Path) -> dict[str, bytes]:
    paths = [*folder.glob("metadata/*.npy"), *folder.glob("imgs/*/*.png")]
    with reading(folder):
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _walk_archive(path: Path, contour_length: int) -> dict[str, bytes]:
    part = f"/{_places(contour_length)[0]}/"
    found = archive_files(path, lambda name: part in name)
    return {name.partition(part)[2]: content for name, content in found}


def _read_splits(source: Path, config: DataConfig) -> Splits[SequenceSet]:
    def make() -> Arrays:
        images, labels = read_images(source, config.contour_length)
        return {"images": images, "labels": labels}

    folders = sorted([*source.glob("metadata/*.npy"), *source.glob("imgs/*")])
    key = ("pathfinder-read", 1, fingerprint(source, *folders), config.contour_length)
    arrays = cached("pathfinder-read", key, make)
    everything = _as_set(arrays["images"], arrays["labels"], "")
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(config.seed))
    tenth = len(order) // 10
    cuts = torch.tensor_split(order, (len(order) - 2 * tenth, len(order) - tenth))
    sets = [
        _as_set(arrays["images"][cut.numpy()], arrays["labels"][cut.numpy()], name)
        for cut, name in zip(cuts, ("train", "validation", "test"), strict=True)
    ]
    return Splits(*sets)


def _generate(sizes: tuple[int, int, int], contour_length: int, seed: int) -> Arrays:
    arrays: Arrays = {}
    with progress("making Pathfinder images", sum(sizes)) as advance:
        for index, (name, size) in enumerate(
            zip(("train", "validation", "test"), sizes, strict=True)
        ):
            images = np.empty((size, 32, 32), dtype=np.uint8)
            labels = np.empty(size, dtype=np.int64)
            for start in range(0, size, BLOCK):
                part = slice(start, min(start + BLOCK, size))
                rng = np.random.default_rng([seed, index, start])
                count = part.stop - start
                drawn, answers = draw_images(BLOCK, contour_length, rng)
                images[part], labels[part] = drawn[:count], answers[:count]
                advance(count)
            arrays[f"{name}_images"], arrays[f"{name}_labels"] = images, labels
    return arrays


def _as_set(images: np.ndarray, labels: np.ndarray, name: str) -> SequenceSet:
    tokens = torch.from_numpy(np.ascontiguousarray(images)).flatten(1)
    lengths = torch.full((len(tokens),), tokens.shape[1], dtype=torch.int32)
    title = f"pathfinder {name}".strip()
    return SequenceSet(tokens, lengths, torch.from_numpy(labels), 256, 2, title)


PATHFINDER = DataSet(
    name="pathfinder",
    load=load_pathfinder,
    kind="sequences",
    takes=frozenset({"sizes", "contour_length"}),
    class_names=("apart", "connected"),
    home="https://github.com/google-research/long-range-arena",
    licence="generated, or Apache-2.0 as released",
)
