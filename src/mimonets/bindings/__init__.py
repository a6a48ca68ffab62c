"""How inputs share one pass: bound to keys and added up, or side by side as tiles."""

from mimonets.bindings.keys import (
    HadamardBinding,
    HRRBinding,
    MBATBinding,
    PositionBinding,
)
from mimonets.bindings.tiles import (
    ShrunkTiles,
    SlowName,
    Tiles,
    ViewName,
    each_alone,
    full_problems,
    make_views,
)

__all__ = [
    "HRRBinding",
    "HadamardBinding",
    "MBATBinding",
    "PositionBinding",
    "ShrunkTiles",
    "SlowName",
    "Tiles",
    "ViewName",
    "each_alone",
    "full_problems",
    "make_views",
]
