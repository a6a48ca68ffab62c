"""The paper's tables and figures, each as one experiment that can be run again."""

from mimonets.experiments.experiment import Experiment, RunOptions
from mimonets.experiments.registry import earlier_runs, experiments, find_experiment
from mimonets.experiments.verdict import Row

__all__ = [
    "Experiment",
    "Row",
    "RunOptions",
    "earlier_runs",
    "experiments",
    "find_experiment",
]
