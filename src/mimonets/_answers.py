"""Answers of a network: one tensor or array for all inputs, or several as a tuple or a dict."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def parts_of(answers: Any) -> list[Any]:
    """List the tensors of answers, in order.

    >>> parts_of({"mask": [1, 2], "depth": 3.0})
    [[1, 2], 3.0]
    """
    if isinstance(answers, Mapping):
        return list(answers.values())
    return list(answers) if isinstance(answers, tuple) else [answers]


def names_of(answers: Any) -> tuple[str, ...]:
    """Name the tensors of answers: a dict's keys, the numbers of a tuple, nothing for just one.

    >>> names_of((1.0, 2.0)), names_of({"mask": 1.0}), names_of(1.0)
    (('0', '1'), ('mask',), ())
    """
    if isinstance(answers, Mapping):
        return tuple(answers)
    return tuple(map(str, range(len(answers)))) if isinstance(answers, tuple) else ()


def named(names: Sequence[str], parts: Sequence[Any]) -> Any:
    """Put tensors together again under the names that :func:`names_of` gave.

    >>> named((), [1.0]), named(("0", "1"), [1.0, 2.0]), named(("mask",), [1.0])
    (1.0, (1.0, 2.0), {'mask': 1.0})
    """
    if not names:
        return parts[0]
    if list(names) == [str(number) for number in range(len(names))]:
        return tuple(parts)
    return dict(zip(names, parts, strict=True))


def each(function: Callable[..., Any], *answers: Any) -> Any:
    """Apply a function to every tensor of answers, or to those of several answers together.

    >>> each(len, {"a": [1, 2], "b": [3]})
    {'a': 2, 'b': 1}
    """
    columns = zip(*map(parts_of, answers), strict=True)
    return named(names_of(answers[0]), [function(*column) for column in columns])


def as_answers(value: Any) -> Any:
    """Take a list, as a ``DataLoader`` gives several labels, for a tuple."""
    return tuple(value) if isinstance(value, list) else value
