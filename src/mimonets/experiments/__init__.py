"""The paper's tables and figures, each as one experiment that can be run again."""

from mimonets.experiments.experiment import Experiment, Row, Workplace
from mimonets.experiments.registry import experiments, find_experiment

__all__ = ["Experiment", "Row", "Workplace", "experiments", "find_experiment"]
