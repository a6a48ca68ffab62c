"""Old names of this package that still work, with a warning, for one version."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

_SLIMMABLE = {
    "GearedWideResNet": "mimonets.models.SlimmableWideResNet",
    "GearedWideResNetConfig": "mimonets.models.SlimmableWideResNetConfig",
}
_BINDINGS = ("HRRBinding", "HadamardBinding", "PositionBinding", "ShrunkTiles", "Tiles")
_MATRIX = {"MBATBinding": "mimonets.bindings.MatrixBinding"}
_CHECKPOINTS = ("ModelCard", "load", "read_config", "save")
RENAMED: dict[str, dict[str, str]] = {  # module -> old name -> where it is now
    "mimonets": _SLIMMABLE,
    "mimonets.inference.manifest": {"Mode": "mimonets.inference.manifest.PointRecord"},
    "mimonets.bindings": _MATRIX,
    "mimonets.layers": {
        **{name: f"mimonets.bindings.{name}" for name in _BINDINGS},
        **_MATRIX,
    },
    "mimonets.models": {
        **_SLIMMABLE,
        **{name: f"mimonets.checkpoints.{name}" for name in _CHECKPOINTS},
    },
    "mimonets.theory": {
        "Estimate": "mimonets.experiments.bounds_simulation.Estimate",
        "plot_bounds": "mimonets.experiments.bounds_plots.plot_bounds",
        "plot_relu_kernel": "mimonets.experiments.bounds_plots.plot_relu_kernel",
        "theory_report": "mimonets.experiments.bounds_report.theory_report",
    },
}


def renamed(module: str) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a module that finds old names at their new places."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        new = RENAMED[module].get(name)
        if new is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now {new}; the old name goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        room, _, attribute = new.rpartition(".")
        return getattr(import_module(room), attribute)

    return __getattr__
