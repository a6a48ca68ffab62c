"""Models as folders: weights and config, model cards, the Hugging Face Hub, what ships with us."""

from mimonets.checkpoints.card import ModelCard
from mimonets.checkpoints.checkpoint import load, read_config, save

__all__ = ["ModelCard", "load", "read_config", "save"]
