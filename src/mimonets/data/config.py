"""Which data, from where, how much of it, how it is split, and what a data set says of itself."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from mimonets._config import Config, integer
from mimonets._messages import did_you_mean

if TYPE_CHECKING:
    from mimonets.data.sets import Splits

EVERY_SET = ("name", "dir", "download", "limit", "seed")  # settings that all data sets take
DIGITS = tuple("0123456789")  # class names


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """Everything that is known about a data set by its name.

    To add one, write a module that makes a record beside its loader, and list the record in
    :mod:`mimonets.data.registry`.
    """

    name: str
    load: "Callable[[DataConfig], Splits[Any]]"
    kind: Literal["images", "sequences"]
    takes: frozenset[str] = frozenset()  # settings of DataConfig that not every data set has
    held_out: int = 0  # training items that become validation items by default
    class_names: tuple[str, ...] | None = None  # in the order of the labels
    by_class: bool = False  # whether its source may list one class after the other
    needs_dir: str = ""  # what ``dir`` must be, where it must be given
    home: str = ""  # where it comes from
    licence: str = "not stated"

    @property
    def settings(self) -> frozenset[str]:
        """Settings it takes, of those that not every data set has."""
        images = {"crop", "standardise"} if self.kind == "images" else set()
        return self.takes | images


@dataclass(frozen=True, kw_only=True)
class DataConfig(Config):
    """One data set and what is done to it before training.

    >>> DataConfig(name="mnist", crop=20, validation=5000).name
    'mnist'
    """

    # Which data, and how much of it
    name: str = "digits"  # digits ship with scikit-learn: no download
    dir: str | None = None  # where the original files are, or are put; for folder and npz the data
    download: bool = True  # fetch missing files from the data's official home
    validation: int | None = integer(
        None, least=0
    )  # held out of training; None: as the source does
    fold: int | None = integer(
        None, least=0
    )  # digits-writers: which 300 to test on; None: the last
    limit: int | None = integer(None)  # at most so many items per split, drawn by the seed
    seed: int = integer(0, least=0)  # decides what is held out, limited and generated
    # Images
    crop: int | None = integer(None)  # cut this centre square out, 20 for MNIST in the paper
    standardise: bool = True  # to mean 0 and deviation 1; False: to 0..1, black stays 0
    # Sequences
    length: int | None = integer(None)  # most tokens, or characters of recall and induction
    min_length: int | None = integer(None, least=0)  # listops: trees longer than this; None: 500
    # Generated: train, validation, test; None: as published.
    sizes: tuple[int, int, int] | None = integer(None, least=0)
    contour_length: int = integer(14, least=3)  # pathfinder: paddles per snake; 6 easy, 14 hard
    targets: Literal["all", "final"] = "all"  # recall, induction: positions trained on
    asked: Literal["pairs", "keys"] = "pairs"  # recall: a random pair, or one of the keys seen

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        from mimonets.data.registry import DATASETS

        found = super().problems()
        sizes = self.sizes
        if sizes is not None and not found and 0 in (sizes[0], sizes[2]):
            found.append(f"sizes={sizes!r}: only validation, the second of three, may be 0.")
        record = DATASETS.get(self.name) if isinstance(self.name, str) else None
        if record is None:
            hint = did_you_mean(str(self.name), DATASETS)
            found.append(
                f"name={self.name!r} is not known{hint}: choose from {', '.join(DATASETS)}."
            )
            return found
        if record.needs_dir and not self.dir:
            found.append(f"name={self.name!r} needs dir: the path of {record.needs_dir}.")
        return found + self._unused(record)

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
