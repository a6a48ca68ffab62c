"""The base of every config: a frozen dataclass that refuses nonsense, and names every mistake.

Limits stand beside the fields they belong to:

.. code-block:: python

    @dataclass(frozen=True, kw_only=True)
    class NetworkConfig(Config):
        width: int = integer(10)  # an integer >= 1
        steps: int | None = integer(None)  # or None
        dropout: float = number(0.1, least=0, below=1)
        activation: Literal["relu", "gelu"] = "relu"  # one of these words
"""

import math
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeGuard, TypeVar, get_args, get_origin, get_type_hints

from mimonets._messages import short

C = TypeVar("C", bound="Config")

MAX_SIZE = 10_000_000  # feature maps, tokens, classes: a larger number is a mistake


@dataclass(frozen=True)
class Limits:
    """What a number has to fulfil, and the words for it."""

    integer: bool = False
    optional: bool = False  # None fits too
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    words: tuple[str, ...] = ()  # that fit too

    def fit(self, value: object) -> bool:
        """Tell whether a value keeps to the limits."""
        if value is None:
            return self.optional
        if isinstance(value, str):
            return value in self.words
        if not (is_integer(value) if self.integer else is_number(value)):
            return False
        assert isinstance(value, int | float)
        return (
            (isinstance(value, int) or math.isfinite(value) or value == self.most)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def demand(self, value: object) -> str:
        """Say what a value that does not fit must be; the largest integer only if exceeded."""
        exceeded = is_number(value) and self.most is not None and value > self.most
        bounds = [
            f"{sign} {bound}"
            for sign, bound in (
                (">=", self.least),
                (">", self.above),
                ("<=", self.most if exceeded or not self.integer else None),
                ("<", self.below),
            )
            if bound is not None and bound != math.inf
        ]
        words = " ".join(["an integer" if self.integer else "a number", " and ".join(bounds)])
        return words.strip() + "".join(
            f", or {word}" for word in (*self.words, *(["null"] if self.optional else []))
        )


def integer(
    default: Any, *, least: int = 1, most: int | None = None, words: tuple[str, ...] = ()
) -> Any:
    """Make a field for an integer >= ``least``, or a word; None fits if it is the default."""
    limits = Limits(integer=True, optional=default is None, least=least, most=most, words=words)
    return field(default=default, metadata={"limits": limits})


def size(default: Any, *, least: int = 1, most: int = MAX_SIZE) -> Any:
    """Make a field for an integer that decides how large something is in memory."""
    return integer(default, least=least, most=most)


def number(default: Any, *, optional: bool = False, **limits: float) -> Any:
    """Make a field for a number within ``least``, ``above``, ``most`` and ``below``.

    None fits if it is the default or ``optional``. NaN never fits, infinity only as ``most``.
    """
    found = Limits(optional=optional or default is None, **limits)  # type: ignore[arg-type]
    return field(default=default, metadata={"limits": found})


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all configs share: they refuse nonsense and name every mistake at once."""

    def __post_init__(self) -> None:
        """Check all settings; lists, as JSON and YAML write them, become tuples."""
        for name, value in vars(self).items():
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        problems = self.problems()
        if problems:
            raise ValueError(f"{type(self).__name__}: " + " ".join(problems))

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = []
        choices = _choices(type(self))  # type: ignore[arg-type]
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            limits = setting.metadata.get("limits")
            if name in choices and limits is None:
                found += self._wrong_choice(name, choices[name])
            if isinstance(limits, Limits) and not limits.fit(value):
                found.append(f"{name}={short(value)} must be {limits.demand(value)}.")
            if isinstance(setting.default, bool) and not isinstance(value, bool):
                found.append(f"{name}={short(value)} must be true or false.")
        return found

    def narrowed_to(self, kind: type[C]) -> C:
        """Keep the settings that another kind of config has too, and drop the others."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(kind)})

    def _wrong_choice(self, name: str, choices: tuple[Any, ...]) -> list[str]:
        value = getattr(self, name)
        if value in choices:
            return []
        words = ", ".join("null" if word is None else str(word) for word in choices)
        return [f"{name}={short(value)} is not known: choose from {words}."]


@cache
def _choices(kind: type[Config]) -> dict[str, tuple[Any, ...]]:
    """List the words that fit each setting whose type is a Literal; None where it is optional."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        optional = (None,) if type(None) in get_args(hint) else ()
        for part in (hint, *get_args(hint)):
            if get_origin(part) is Literal:
                found[name] = (*get_args(part), *optional)
    return found


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether a setting is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a setting is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
