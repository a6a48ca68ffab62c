"""Old names of this package that still work, with a warning, for one version."""

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that finds old names at their new places.

    Args:
        module: the module's ``__name__``.
        names: old name -> new dotted name.

    >>> renamed("mimonets.old", {"isqrt": "math.isqrt"}).__name__
    '__getattr__'
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        new = names[name]
        warnings.warn(
            f"{module}.{name} is now {new}; the old name goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        room, _, attribute = new.rpartition(".")
        return getattr(import_module(room), attribute)

    return __getattr__
