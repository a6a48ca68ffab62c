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
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from mimonets._messages import short

C = TypeVar("C", bound="Config")

MAX_SIZE = 10_000_000  # feature maps, tokens, classes: a larger number is a mistake


@dataclass(frozen=True)
class Limits:
    """What a number, or each of several, has to fulfil, and the words for it."""

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None

    def fit(self, value: float) -> bool:
        """Say whether a number is within the limits. NaN is not; infinity is if ``most`` is."""
        return (
            (isinstance(value, int) or math.isfinite(value) or value == self.most)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def bounds(self, value: object, *, integer: bool) -> str:
        """Say what the limits are, for a value that does not fit; large ones if exceeded."""
        exceeded = is_number(value) and self.most is not None and value > self.most
        return " and ".join(
            f"{sign} {bound}"
            for sign, bound in (
                (">=", self.least),
                (">", self.above),
                ("<=", self.most if exceeded or not integer else None),
                ("<", self.below),
            )
            if bound is not None and bound != math.inf
        )


def integer(default: Any, *, least: int = 1, most: int | None = None) -> Any:
    """Make a field for an integer >= ``least``, or for several; its type says what else fits."""
    return number(default, least=least, **({} if most is None else {"most": most}))


def size(default: Any, *, least: int = 1, most: int = MAX_SIZE) -> Any:
    """Make a field for an integer that decides how large something is in memory."""
    return integer(default, least=least, most=most)


def number(default: Any, **limits: float) -> Any:
    """Make a field for a number, or several, within ``least``, ``above``, ``most``, ``below``."""
    return field(default=default, metadata={"limits": Limits(**limits)})


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
        hints = hints_of(type(self))  # type: ignore[arg-type]
        for setting in fields(self):
            name, value = setting.name, getattr(self, setting.name)
            limits, hint = setting.metadata.get("limits"), hints[name]
            if not is_of_type(value, hint, limits):
                found.append(f"{name}={short(value)} {_demand(value, hint, limits)}.")
        return found

    def narrowed_to(self, kind: type[C]) -> C:
        """Keep the settings that another kind of config has too, and drop the others."""
        return kind(**{each.name: getattr(self, each.name) for each in fields(kind)})

    def _wrong_choice(self, name: str, choices: tuple[Any, ...]) -> list[str]:
        value = getattr(self, name)
        if value in choices:
            return []
        return [f"{name}={short(value)} {_demand(value, Literal[choices])}."]


@cache
def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Give the types of the fields of a dataclass."""
    return get_type_hints(kind)


def is_of_type(value: object, hint: Any, limits: Limits | None = None) -> bool:
    """Check the type of a value, what it contains, and its numbers against the limits.

    >>> is_of_type({"1": [0.5]}, dict[str, list[float]]), is_of_type([True], list[int])
    (True, False)
    >>> is_of_type((1, 0), tuple[int, int], Limits(least=1)), is_of_type(None, int | None)
    (False, True)
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (UnionType, Union):
        return any(is_of_type(value, part, limits) for part in parts)
    if kind is Literal:
        return isinstance(value, str | NoneType) and value in parts
    if kind is tuple and parts[1:] != (...,):
        is_one = isinstance(value, tuple) and len(value) == len(parts)
        return is_one and all(map(is_of_type, value, parts, [limits] * len(parts)))  # type: ignore[call-overload]
    if kind in (list, tuple):
        is_one = isinstance(value, list | tuple)
        return is_one and all(is_of_type(one, parts[0], limits) for one in value)  # type: ignore[attr-defined]
    if kind is dict:
        return isinstance(value, dict) and all(is_of_type(v, parts[1]) for v in value.values())
    if hint in (int, float):
        fits = is_integer(value) if hint is int else is_number(value)
        return fits and (limits is None or limits.fit(value))  # type: ignore[arg-type]
    return hint is Any or isinstance(value, kind or hint)


def _demand(value: object, hint: Any, limits: Limits | None = None) -> str:
    """Say what a value that does not fit must be.

    >>> _demand(3, Literal["a", "b"]), _demand(0, int | None, Limits(least=1))
    ('is not known: choose from a, b', 'must be an integer >= 1, or null')
    """
    parts = [hint] if get_origin(hint) not in (UnionType, Union) else list(get_args(hint))
    words = [word for part in parts if get_origin(part) is Literal for word in get_args(part)]
    null = ["null"] if NoneType in parts else []
    others = [part for part in parts if part is not NoneType and get_origin(part) is not Literal]
    if not others:
        return f"is not known: choose from {', '.join([*words, *null])}"
    found = [*(_words(value, part, limits) for part in others), *words, *null]
    return f"must be {', or '.join(found)}"


def _words(value: object, hint: Any, limits: Limits | None) -> str:
    """Name a type, with the limits of its numbers.

    >>> _words((1, 0), tuple[int, int], Limits(least=1)), _words(1, bool, None)
    ('a list of 2, each an integer >= 1', 'true or false')
    """
    kind, parts = get_origin(hint), get_args(hint)
    if kind is tuple:
        count = "" if parts[1:] == (...,) else f" of {len(parts)}"
        inner = _demand(value, parts[0], limits).removeprefix("must be ")
        return f"a list{count}, each {inner}"
    if hint in (int, float):
        name = "an integer" if hint is int else "a number"
        return f"{name} {limits.bounds(value, integer=hint is int)}".strip() if limits else name
    names = {bool: "true or false", str: "text", Mapping: "keys with values"}
    return names.get(kind or hint, f"of type {getattr(hint, '__name__', hint)}")


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether a setting is an integer; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Tell whether a setting is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
