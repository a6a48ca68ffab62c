"""What a model costs and how fast it is."""

from mimonets.evaluation.macs import Cost, PartCost, count_macs, count_modes
from mimonets.evaluation.throughput import (
    BenchResult,
    BenchSettings,
    Contender,
    Timing,
    bench,
    race,
    time_shares,
)

__all__ = [
    "BenchResult",
    "BenchSettings",
    "Contender",
    "Cost",
    "PartCost",
    "Timing",
    "bench",
    "count_macs",
    "count_modes",
    "race",
    "time_shares",
]
