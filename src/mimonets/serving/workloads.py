"""Moved to :mod:`mimonets.loadtest.workloads`; its names work here for one version."""

from mimonets._renamed import renamed

_NAMES = ("WORKLOADS", "diurnal", "mmpp", "poisson", "read_trace", "step")
__getattr__ = renamed(__name__, {name: f"mimonets.loadtest.workloads.{name}" for name in _NAMES})
