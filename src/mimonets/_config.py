"""The base of every config: a frozen dataclass that refuses nonsense, and names every mistake."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TypeVar

C = TypeVar("C", bound="Config")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all configs share: they refuse nonsense and name every mistake at once."""

    def __post_init__(self) -> None:
        """Check all settings."""
        problems = self.problems()
        if problems:
            raise ValueError(f"{type(self).__name__}: " + " ".join(problems))

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        return [
            f"{name}={getattr(self, name)!r} must be a whole number of at least {least}."
            for name, least in self._smallest().items()
            if not is_whole(getattr(self, name)) or getattr(self, name) < least
        ]

    def narrowed_to(self, kind: type[C]) -> C:
        """Keep the settings that another kind of config has too, and drop the others."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    def _smallest(self) -> dict[str, int]:
        """Say which settings are whole numbers, and the smallest that fits."""
        return {}

    def _wrong_choice(self, name: str, choices: tuple[str, ...]) -> list[str]:
        value = getattr(self, name)
        if value in choices:
            return []
        return [f"{name}={value!r} is not known: choose from {', '.join(choices)}."]


def is_whole(value: object) -> bool:
    """Tell whether a setting is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest the name that was probably meant, in brackets; nothing if none is close.

    >>> did_you_mean("widht", ["depth", "width"])
    " (did you mean 'width'?)"
    """
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""
