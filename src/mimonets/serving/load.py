"""Moved to :mod:`mimonets.loadtest.load`; its names work here for one version."""

from mimonets._renamed import renamed

_NAMES = ("LoadResult", "Samples", "send")
__getattr__ = renamed(__name__, {name: f"mimonets.loadtest.load.{name}" for name in _NAMES})
