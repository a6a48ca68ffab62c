"""Which data, from where, how much of it, and how it is split."""

from dataclasses import dataclass, fields
from typing import Literal

from mimonets._config import Config, did_you_mean, is_whole
from mimonets.data.dataset import DataSet

EVERY_SET = ("name", "dir", "download", "limit", "seed")  # settings that all data sets take


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """One data set and what is done to it before training.

    >>> DataConfig(name="mnist", crop=20, validation=5000).name
    'mnist'
    """

    name: str = "digits"  # digits ship with scikit-learn: no download
    dir: str | None = None  # where the original files are, or are put; for folder and npz the data
    download: bool = True  # fetch missing files from the data's official home
    validation: int | None = None  # held out of the training items; None: as the source splits it
    limit: int | None = None  # at most so many items per split, drawn by the seed, for a taste
    seed: int = 0  # decides the validation items, the limit and everything generated
    crop: int | None = None  # images: cut this centre square out, 20 for MNIST in the paper
    standardise: bool = True  # images: to mean 0 and deviation 1; False: to 0..1, black stays 0
    length: int | None = None  # sequences: most tokens; recall, induction: characters; None: paper
    min_length: int | None = None  # listops: keep trees longer than this; None: 500, as in LRA
    sizes: tuple[int, int, int] | None = None  # generated: train, validation, test; None: published
    contour_length: int = 14  # pathfinder: paddles per target snake; 6 easy, 9 middle, 14 hard
    targets: Literal["all", "final"] = "all"  # recall, induction: positions trained on

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        from mimonets.data.registry import DATASETS

        found = super().problems()
        smallest = {"validation": 0, "limit": 1, "crop": 1, "length": 1, "min_length": 0}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is not None and not (is_whole(value) and value >= least):
                found.append(f"{name}={value!r} must be an integer >= {least}, or null.")
        sizes = self.sizes
        if sizes is not None and not (
            len(sizes) == 3
            and all(is_whole(size) for size in sizes)
            and min(sizes[0], sizes[2]) >= 1
            and sizes[1] >= 0
        ):
            found.append(
                f"sizes={sizes!r} must be three integers: train, validation and test items, where "
                f"only validation may be 0."
            )
        found += self._wrong_choice("targets", ("all", "final"))
        record = DATASETS.get(self.name)
        if record is None:
            hint = did_you_mean(str(self.name), DATASETS)
            found.append(
                f"name={self.name!r} is not known{hint}: choose from {', '.join(DATASETS)}."
            )
            return found
        if record.needs_dir and not self.dir:
            found.append(f"name={self.name!r} needs dir: the path of {record.needs_dir}.")
        return found + self._unused(record)

    def _smallest(self) -> dict[str, int]:
        return {"seed": 0, "contour_length": 3}

    def _unused(self, record: DataSet) -> list[str]:
        """List settings that this data would silently ignore."""
        found = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in EVERY_SET or field.name in record.settings or value == field.default:
                continue
            instead = (
                " (use sizes)" if field.name == "validation" and "sizes" in record.takes else ""
            )
            found.append(
                f"{field.name}={value!r} means nothing for {self.name}: leave it out{instead}."
            )
        return found

    def split_sizes(self, published: tuple[int, int, int]) -> tuple[int, int, int]:
        """How many items to generate for each split: the first ``limit`` of each.

        >>> DataConfig(name="listops", limit=100).split_sizes((96000, 2000, 2000))
        (100, 100, 100)
        """
        train, validation, test = self.sizes or published
        most = self.limit or max(train, validation, test)
        return min(train, most), min(validation, most), min(test, most)
