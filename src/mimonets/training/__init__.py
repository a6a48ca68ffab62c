"""Train models: the loop, its settings and the record of a run."""

from mimonets.training.config import TrainConfig
from mimonets.training.loop import train
from mimonets.training.progress import TrainingInterrupted
from mimonets.training.run_folder import TrainResult
from mimonets.training.stability import TrainingDivergedError

__all__ = ["TrainConfig", "TrainResult", "TrainingDivergedError", "TrainingInterrupted", "train"]
