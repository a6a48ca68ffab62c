"""Every binding by its name in configs, recipes and checkpoints."""

import warnings
from dataclasses import fields
from typing import Any

from mimonets._messages import short
from mimonets.bindings.binding import Binding, BindingSettings
from mimonets.bindings.keys import HadamardBinding, HRRBinding, MatrixBinding
from mimonets.bindings.tiles import Tiles

BINDINGS: dict[str, type[Binding]] = {
    "hrr": HRRBinding,
    "matrix": MatrixBinding,
    "hadamard": HadamardBinding,
    "tiles": Tiles,
}
OLD_NAMES = {"mbat": "matrix"}
REMOVED = {"tied": "0.2.0"}  # and the last version that had it


def make_binding(name: str, settings: BindingSettings, generator: Any = None) -> Binding:
    """Make a binding by its name.

    >>> make_binding("tiles", BindingSettings(num_streams=4))
    Tiles(2x2, align=1, slow='views', views='copies')
    """
    return BINDINGS[name].make(settings, generator)


def current_name(name: Any) -> Any:
    """Give a binding's name of today, with a warning if an older one was given."""
    if not isinstance(name, str) or name not in OLD_NAMES:
        return name
    new = OLD_NAMES[name]
    warnings.warn(
        f"binding={name!r} is now binding={new!r}; the old name goes with the next version.",
        DeprecationWarning,
        stacklevel=4,  # where the config is made
    )
    return new


def name_problems(name: Any) -> list[str]:
    """Say why there is no binding of this name, in a sentence; nothing if there is one."""
    if isinstance(name, str) and name in REMOVED:
        last = REMOVED[name]
        return [f"binding={name!r} was removed: mimonets {last} is the last version that loads it."]
    if not isinstance(name, str) or name not in BINDINGS:
        return [f"binding={short(name)} is not known: choose from {', '.join(BINDINGS)}."]
    return []


def binding_problems(config: Any) -> list[str]:
    """List settings of a network that do not fit its binding, one sentence each."""
    name = config.binding
    kind = BINDINGS[name]
    found = []
    for field in fields(config):
        value = getattr(config, field.name)
        others = [other for other, one in BINDINGS.items() if field.name in one.uses]
        if value != field.default and others and field.name not in kind.uses:
            found.append(
                f"{field.name}={value!r} is for {_listed(others)}: leave it out with "
                f"binding={name!r}."
            )
    keys = getattr(config, "stream_keys", None)
    if not found and kind.key_names and keys is not None and keys not in kind.key_names:
        others = [other for other, one in BINDINGS.items() if keys in one.key_names]
        found.append(
            f"stream_keys={keys!r} do not fit binding={name!r}: choose from "
            f"{', '.join(kind.key_names)}, or set {_listed(others, ' or ')} with them."
        )
    return found or kind.setting_problems(BindingSettings.of(config))


def _listed(names: list[str], last: str = " and ") -> str:
    """Write names as settings.

    >>> _listed(["hrr", "matrix", "hadamard"])
    "binding='hrr', 'matrix' and 'hadamard'"
    """
    *first, end = (repr(name) for name in names)
    return "binding=" + (", ".join(first) + last if first else "") + end
