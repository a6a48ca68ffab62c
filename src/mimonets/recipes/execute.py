"""Run a recipe: its data, its model, its training, in one call."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml

from mimonets.data import ImageBatches, SequenceBatches, Splits, evaluation_batches, load_data
from mimonets.data.sets import ImageSet
from mimonets.evaluation.accuracy import ModeAccuracy, evaluate
from mimonets.evaluation.bench import default_modes
from mimonets.evaluation.macs import count_macs
from mimonets.models import Model, load
from mimonets.models.registry import model_class_for
from mimonets.recipes.loader import SECTIONS, Recipe, make_recipe
from mimonets.training import TrainResult, train
from mimonets.vsa import check_active_streams


def run_recipe(recipe: Recipe, run_dir: str | Path, *, resume: bool = False) -> TrainResult:
    """Load the data, make the model and train it into ``run_dir``.

    The validation split is measured while training; where there is none, the test split.
    """
    splits = load_data(recipe.data)
    train_batches = make_train_batches(recipe, splits)
    held_out = splits.validation if splits.validation is not None else splits.test
    return train(
        make_model(recipe),
        train_batches,
        recipe.train,
        run_dir=run_dir,
        validation=make_batches(held_out, train_batches),
        resume=resume,
        recipe=recipe.as_dict(),
    )


def make_model(recipe: Recipe) -> Model:
    """Make the model of a recipe, with the weights that its seed gives."""
    with torch.random.fork_rng():
        torch.manual_seed(recipe.train.seed)
        return model_class_for(recipe.model)(recipe.model)


def make_train_batches(recipe: Recipe, splits: Splits[Any]) -> ImageBatches | SequenceBatches:
    """Make the batches to train on: shuffled, augmented, N times over the data per epoch."""
    streams = getattr(recipe.model, "num_streams", 1) if recipe.train.per_stream else 1
    options: dict[str, Any] = {
        "batch_size": recipe.train.batch_size * streams,
        "shuffle": True,
        "repeats": streams,
        "seed": recipe.train.seed,
        "drop_last": len(splits.train) >= recipe.train.batch_size,
    }
    if isinstance(splits.train, ImageSet):
        if not recipe.data.standardise:
            channels = splits.train.images.shape[1]
            options["statistics"] = torch.zeros(channels), torch.full((channels,), 255.0)
        return ImageBatches(splits.train, augment=recipe.augment, **options)
    return SequenceBatches(splits.train, **options)


def make_batches(
    data: Any, train_batches: ImageBatches | SequenceBatches
) -> ImageBatches | SequenceBatches:
    """Make batches to evaluate on: in order, standardised like the training data."""
    return evaluation_batches(data, statistics=getattr(train_batches, "statistics", None))


def taste(recipe: Recipe) -> Recipe:
    """Shrink a recipe to about a minute: little data, a small network, few steps."""
    small = {
        name: min(getattr(recipe.model, name), value)
        for name, value in (("width", 1), ("depth", 10 if hasattr(recipe.model, "width") else 1))
        if hasattr(recipe.model, name)
    }
    return replace(
        recipe,
        model=replace(recipe.model, **small),
        data=replace(recipe.data, limit=min(recipe.data.limit or 2000, 2000)),
        train=replace(
            recipe.train, epochs=1, steps=20, batch_size=min(recipe.train.batch_size, 16)
        ),
    )


def read_run(folder: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read the recipe that a run was made with."""
    path = Path(folder) / "recipe.yaml"
    if not path.is_file():
        raise ValueError(f"{folder} holds no recipe.yaml: is it the folder of a run?")
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    settings = {section: found[section] for section in SECTIONS if found.get(section) is not None}
    return make_recipe(found["name"], found["summary"], settings, overrides)


def split_batches(recipe: Recipe, split: str) -> ImageBatches | SequenceBatches:
    """Make batches to evaluate one split of a recipe's data."""
    splits = load_data(recipe.data)
    data = getattr(splits, split)
    if data is None:
        raise ValueError(f"{recipe.data.name} has no {split} data: choose another --split.")
    return make_batches(data, make_train_batches(recipe, splits))


def measure_run(
    folder: str | Path,
    split: str,
    modes: Sequence[int | None] | None = None,
    overrides: Sequence[str] = (),
) -> list[tuple[int, ModeAccuracy, float]]:
    """Measure a run's final model: active streams, accuracy and MACs per input, mode by mode."""
    recipe = read_run(folder, overrides)
    model = load(Path(folder) / "model")
    wanted = modes or default_modes(model.num_streams)
    chosen = [check_active_streams(mode, model.num_streams) for mode in wanted]
    found = evaluate(model, split_batches(recipe, split), chosen)
    return [(mode, found[mode], count_macs(model, mode).paper) for mode in chosen]
