"""Pathfinder: do both markers lie on one snake? As 1,024 grey pixels, read or generated.

Linsley et al., NeurIPS 2018; Tay et al., "Long Range Arena", ICLR 2021, ``pathfinder32``.
"""

import io
from pathlib import Path

import numpy as np
import torch

from mimonets._show import progress
from mimonets.data.config import DataConfig, DataSet
from mimonets.data.files import cached, data_dir, find, fingerprint
from mimonets.data.images.reading import read_image
from mimonets.data.sequences.snakes import draw_images
from mimonets.data.sets import SPLITS, SequenceSet, Splits, random_order
from mimonets.data.unpack import Arrays, archive_files, damaged

PUBLISHED = (160_000, 20_000, 20_000)
BLOCK = 100  # images that share a stream of random numbers; a smaller set is a beginning


def load_pathfinder(config: DataConfig) -> Splits[SequenceSet]:
    """Read LRA's folder ``curv_contour_length_14`` if it is in the data folder, else generate.

    Images that are read are shuffled by the seed and split 80 / 10 / 10, as in LRA.
    """
    if config.dir is not None:
        folder = data_dir(config)
        inside = (
            "pathfinder32",
            "lra_release/pathfinder32",
            "lra_release/lra_release/pathfinder32",
        )
        archives = sorted(folder.glob("pathfinder32*.tar*"))
        source = find(folder, [_folder(config.contour_length)], *inside) or next(
            iter(archives), None
        )
        if source is not None:
            return _read_splits(source, config)
    sizes = config.split_sizes(PUBLISHED)
    length = config.contour_length
    key = ("pathfinder", 1, config.seed, length, sizes)
    arrays = cached("pathfinder", key, lambda: _generate(sizes, length, config.seed))
    sets = [_as_set(arrays[f"{name}_images"], arrays[f"{name}_labels"]) for name in SPLITS]
    return Splits(*sets)


def read_images(source: Path, contour_length: int = 14) -> tuple[np.ndarray, np.ndarray]:
    """Read all images (n, 32, 32) and labels of a difficulty: a folder, or a tar archive.

    ``metadata/*.npy`` are text files whatever their name says: folder, file, number, label, ...
    """
    inside = f"/{_folder(contour_length)}/"
    found = archive_files(source, lambda name: inside in f"/{name}")
    files = {f"/{name}".partition(inside)[2]: content for name, content in found}
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


def _folder(contour_length: int) -> str:
    return "curv_baseline" if contour_length == 6 else f"curv_contour_length_{contour_length}"


def _read_splits(source: Path, config: DataConfig) -> Splits[SequenceSet]:
    def make() -> Arrays:
        images, labels = read_images(source, config.contour_length)
        return {"images": images, "labels": labels}

    folders = sorted([*source.glob("metadata/*.npy"), *source.glob("imgs/*")])
    key = ("pathfinder-read", 1, fingerprint(source, *folders), config.contour_length)
    arrays = cached("pathfinder-read", key, make)
    everything = _as_set(arrays["images"], arrays["labels"])
    order = random_order(everything, config.seed)
    tenth = len(order) // 10
    cuts = order.tensor_split((len(order) - 2 * tenth, len(order) - tenth))
    return Splits(*map(everything.subset, cuts))


def _generate(sizes: tuple[int, int, int], contour_length: int, seed: int) -> Arrays:
    arrays: Arrays = {}
    with progress("making Pathfinder images", sum(sizes)) as advance:
        for index, (name, size) in enumerate(zip(SPLITS, sizes, strict=True)):
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


def _as_set(images: np.ndarray, labels: np.ndarray) -> SequenceSet:
    tokens = torch.from_numpy(np.ascontiguousarray(images)).flatten(1)
    lengths = torch.full((len(tokens),), tokens.shape[1], dtype=torch.int32)
    return SequenceSet(tokens, lengths, torch.from_numpy(labels), 256, 2, "pathfinder")


PATHFINDER = DataSet(
    name="pathfinder",
    load=load_pathfinder,
    kind="sequences",
    takes=frozenset({"sizes", "contour_length"}),
    class_names=("apart", "connected"),
    home="https://github.com/google-research/long-range-arena",
    licence="generated, or Apache-2.0 as released",
)
