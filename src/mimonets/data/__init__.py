"""Data: loaders, generators, and batches that depend on the seed, epoch and step alone.

Knows no models. What is read or fetched stays as it was published; what is derived is cached.
"""

from mimonets.data.batches import ImageBatches, SequenceBatches, evaluation_batches
from mimonets.data.config import DataConfig
from mimonets.data.images.augment import AugmentConfig
from mimonets.data.registry import DATASETS, load_data
from mimonets.data.sets import IGNORED, ImageSet, SequenceSet, Splits

__all__ = [
    "DATASETS",
    "IGNORED",
    "AugmentConfig",
    "DataConfig",
    "ImageBatches",
    "ImageSet",
    "SequenceBatches",
    "SequenceSet",
    "Splits",
    "evaluation_batches",
    "load_data",
]
