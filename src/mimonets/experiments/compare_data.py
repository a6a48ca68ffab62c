"""What ``compare`` trains and tests its candidates on, and what decides between them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mimonets._inputs import InputSpec
from mimonets.data import DataConfig, ImageBatches
from mimonets.data.interface import Batches, as_batches
from mimonets.data.registry import load_data
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.metrics import Measure, has_classes
from mimonets.recipes.execute import image_spec

BATCH_SIZE = 64  # of images that are trained on from a folder or a .npz


@dataclass(frozen=True)
class CompareData:
    """Batches to train and to test on, alike for all candidates."""

    train: Batches
    test: Batches
    batch_size: int
    spec: InputSpec | None = None
    loss: str | Measure = "cross_entropy"

    @cached_property  # a loader may start processes for it
    def first(self) -> tuple[Any, ...]:
        """The first batch of the test data."""
        return next(iter(self.test.epoch(0)))

    @property
    def example(self) -> Tensor:
        """Two inputs."""
        example: Tensor = self.first[0][:2]
        return example

    @property
    def judged_by(self) -> str:
        """What decides: "accuracy", or the "loss" where inputs have no class."""
        labels = self.first[-1]
        is_class = has_classes(labels) and labels.ndim == 1 and self.loss != "binary"
        return "accuracy" if is_class else "loss"

    def shuffled(self, seed: int) -> Batches:
        """Give the training batches in the order of a seed."""
        batches = copy.copy(self.train)
        if hasattr(batches, "seed"):
            vars(batches).update(seed=seed)
        return batches

    def some_tests(self, most: int) -> list[tuple[Any, ...]]:
        """Give test batches of at most so many inputs in all, one at least."""
        found: list[tuple[Any, ...]] = []
        for batch in self.test.epoch(0):
            if found and sum(len(one[0]) for one in found) + len(batch[0]) > most:
                break
            found.append(batch)
        return found

    def score(self, model: Any, points: Sequence[int]) -> dict[int, dict[str, float | None]]:
        """Measure on the test data: mean accuracy, or mean loss and its deviation over inputs."""
        options: dict[str, Any] = {"loss": self.loss} if self.judged_by == "loss" else {}
        return {
            number: {
                "mean": getattr(one, self.judged_by),
                "deviation": one.loss_deviation,
                "total": one.total,
            }
            for number, one in evaluate(model, self.test, points, **options).items()
        }


def answer(model: Any, batch: tuple[Any, ...]) -> Any:
    """Answer the inputs of a batch, with their mask if it has one."""
    inputs, *mask, _ = batch
    return model(inputs, **({"mask": mask[0]} if mask else {}))


def read_data(
    data: Any, loss: str | Measure | None = None, known: InputSpec | None = None
) -> CompareData:
    """Take a folder with a sub-folder per class, a .npz, or (train, test) of batches or loaders.

    Images are standardised as a network that was trained before says, ``known``.
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        size = getattr(data[0], "batch_size", None)
        if size is None:
            raise ValueError("data=(train, test) needs two DataLoaders with a batch_size.")
        batches, test = map(as_batches, data)
        if not len(batches) or not len(test):
            raise ValueError("data=(train, test): one of the two DataLoaders has no batch.")
        labels = next(iter(test.epoch(0)))[-1]
        usual = "cross_entropy" if has_classes(labels) else "squared_error"
        return CompareData(batches, test, size, loss=loss or usual)
    if not isinstance(data, str | Path):
        raise ValueError(
            f"data={type(data).__name__} is not known: pass a folder with one sub-folder per "
            f"class, a .npz, or (train, test), two DataLoaders."
        )
    kind = "npz" if str(data).endswith(".npz") else "folder"
    splits = load_data(DataConfig(name=kind, dir=str(data), validation=0)).read()
    counts = torch.bincount(splits.train.labels, minlength=splits.train.num_classes)
    if int(counts.min()) < 2 or len(splits.test) < 10:
        raise ValueError(
            f"data={data}: the smallest class has {int(counts.min())} images to train on, and "
            f"{len(splits.test)} are left to test: collect at least 2 per class and 10 for the "
            f"test."
        )
    size = min(BATCH_SIZE, len(splits.train))
    options: dict[str, Any] = {"shuffle": True, "drop_last": True}
    if known is not None and known.mean and len(known.mean) == splits.train.shape[0]:
        options["statistics"] = torch.tensor(known.mean), torch.tensor(known.deviation)
    batches = ImageBatches(splits.train, size, **options)
    test = ImageBatches(splits.test, 128, statistics=batches.statistics)
    return CompareData(batches, test, size, image_spec(batches), loss or "cross_entropy")
