"""How inputs share one pass: bound to keys and added up, or side by side as tiles."""

from mimonets._renamed import renamed
from mimonets.bindings.binding import (
    Binding,
    BindingSettings,
    Boundary,
    KeyName,
    ReadoutName,
    SlowName,
    ViewName,
)
from mimonets.bindings.keys import HadamardBinding, HRRBinding, MatrixBinding, PositionBinding
from mimonets.bindings.registry import (
    BINDINGS,
    binding_problems,
    current_name,
    make_binding,
    name_problems,
)
from mimonets.bindings.tiles import ShrunkTiles, Tiles

__all__ = [
    "BINDINGS",
    "Binding",
    "BindingSettings",
    "Boundary",
    "HRRBinding",
    "HadamardBinding",
    "KeyName",
    "MatrixBinding",
    "PositionBinding",
    "ReadoutName",
    "ShrunkTiles",
    "SlowName",
    "Tiles",
    "ViewName",
    "binding_problems",
    "current_name",
    "make_binding",
    "name_problems",
]

__getattr__ = renamed(__name__)
