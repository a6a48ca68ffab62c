"""Which data, from where, how much of it, and how it is split."""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from mimonets._config import did_you_mean

DataName = Literal[
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "svhn",
    "folder",
    "npz",
    "listops",
    "text",
    "retrieval",
    "image",
    "pathfinder",
    "recall",
    "induction",
]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """One data set and what is done to it before training.

    >>> DataConfig(name="mnist", crop=20, validation=5000).name
    'mnist'
    """

    name: DataName = "digits"  # digits ship with scikit-learn: no download
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

    def __post_init__(self) -> None:
        """Check all settings, and name every mistake at once."""
        problems = self._problems()
        if problems:
            raise ValueError("DataConfig: " + " ".join(problems))

    def _problems(self) -> list[str]:
        problems = []
        names = get_args(DataName)
        if self.name not in names:
            hint = did_you_mean(str(self.name), names)
            problems.append(
                f"name={self.name!r} is not known{hint}: choose from {', '.join(names)}."
            )
        smallest = {"validation": 0, "limit": 1, "seed": 0, "crop": 1, "length": 1, "min_length": 0}
        smallest["contour_length"] = 3
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in smallest or (value is None and "None" in str(field.type)):
                continue
            if type(value) is not int or value < smallest[field.name]:
                problems.append(
                    f"{field.name}={value!r} must be a whole number of at least "
                    f"{smallest[field.name]}."
                )
        sizes = self.sizes
        if sizes is not None and not (
            len(sizes) == 3
            and all(type(size) is int for size in sizes)
            and min(sizes[0], sizes[2]) >= 1
            and sizes[1] >= 0
        ):
            problems.append(
                f"sizes={sizes!r} must be three whole numbers: train, validation and test items, "
                f"where only validation may be 0."
            )
        if self.targets not in ("all", "final"):
            problems.append(f"targets={self.targets!r} is not known: choose from all, final.")
        if self.name in ("folder", "npz") and not self.dir:
            what = "a folder with one sub-folder per class" if self.name == "folder" else "a .npz"
            problems.append(f"name={self.name!r} needs dir: the path of {what}.")
        problems += self._unused()
        return problems

    def _unused(self) -> list[str]:
        """List settings that this data would silently ignore."""
        sequences = {"listops", "text", "retrieval", "image", "pathfinder", "recall", "induction"}
        made = {"listops", "pathfinder", "recall", "induction"}
        meant_for = {
            "crop": set(get_args(DataName)) - sequences,
            "length": {"listops", "text", "retrieval", "recall", "induction"},
            "min_length": {"listops"},
            "sizes": made,
            "validation": set(get_args(DataName)) - made - {"retrieval"},
        }
        found = []
        if self.name in sequences and not self.standardise:
            found.append(f"standardise=False means nothing for {self.name}: leave it out.")
        return found + [
            f"{setting}={getattr(self, setting)!r} means nothing for {self.name}: leave it out"
            f"{' (use sizes)' if setting == 'validation' and self.name in made else ''}."
            for setting, names in meant_for.items()
            if getattr(self, setting) is not None
            and self.name in get_args(DataName)
            and self.name not in names
        ]

    def split_sizes(self, published: tuple[int, int, int]) -> tuple[int, int, int]:
        """How many items to generate for each split: the first ``limit`` of each.

        >>> DataConfig(name="listops", limit=100).split_sizes((96000, 2000, 2000))
        (100, 100, 100)
        """
        train, validation, test = self.sizes or published
        most = self.limit or max(train, validation, test)
        return min(train, most), min(validation, most), min(test, most)
