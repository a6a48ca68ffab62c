"""How right a model is and how sure of it, what it costs, and how fast it is."""

from mimonets.evaluation.bench import BenchResult, BenchSettings, bench
from mimonets.evaluation.macs import Cost, PartCost, count_macs, count_points
from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.throughput import Contender, Timing, race, time_shares

__all__ = [
    "BenchResult",
    "BenchSettings",
    "Contender",
    "Cost",
    "PartCost",
    "Timing",
    "bench",
    "count_macs",
    "count_points",
    "peak_memory",
    "race",
    "time_shares",
]
