"""Now ``operating_points``; its names work here for one version."""

from mimonets._renamed import renamed

_NEW = "mimonets.serving.operating_points"
_NAMES = {"ServiceTime": "ServiceTime", "useful_modes": "useful_points"}
__getattr__ = renamed(__name__, {old: f"{_NEW}.{new}" for old, new in _NAMES.items()})
