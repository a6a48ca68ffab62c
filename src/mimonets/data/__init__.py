"""Data: loaders, generators, and batches that depend on the seed, epoch and step alone.

Knows no models. What is read or fetched stays as it was published; what is derived is cached.
"""

from mimonets.data.batches import ImageBatches, SequenceBatches, evaluation_batches
from mimonets.data.config import DataConfig, DataSet
from mimonets.data.images.augment import AugmentConfig
from mimonets.data.interface import IGNORED, Batches, from_loader
from mimonets.data.registry import DATASETS, load_data, split_batches
from mimonets.data.sets import ImageSet, SequenceSet, Splits

__all__ = [
    "DATASETS",
    "IGNORED",
    "AugmentConfig",
    "Batches",
    "DataConfig",
    "DataSet",
    "ImageBatches",
    "ImageSet",
    "SequenceBatches",
    "SequenceSet",
    "Splits",
    "evaluation_batches",
    "from_loader",
    "load_data",
    "split_batches",
]
