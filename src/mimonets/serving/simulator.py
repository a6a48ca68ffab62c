"""Moved to :mod:`mimonets.loadtest.simulator`; its names work here for one version."""

from mimonets._renamed import renamed

_NAMES = ("Outcome", "simulate")
__getattr__ = renamed(__name__, {name: f"mimonets.loadtest.simulator.{name}" for name in _NAMES})
