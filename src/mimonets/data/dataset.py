"""One record per data set: how to load it, which settings it takes, what its classes are called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from mimonets.data.config import DataConfig
    from mimonets.data.sets import Splits


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


DIGITS = tuple("0123456789")
