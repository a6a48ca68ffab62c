"""Run a recipe: its data, its model, its training, in one call."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mimonets._device import choose_device
from mimonets._files import write_text
from mimonets._inputs import InputSpec
from mimonets._memory import free_memory
from mimonets._operating_point import OperatingPoint
from mimonets.checkpoints import load
from mimonets.data import ImageBatches, SequenceBatches, Splits, evaluation_batches, load_data
from mimonets.data.registry import split_batches, training_statistics
from mimonets.data.sets import ImageSet
from mimonets.evaluation.accuracy import PointAccuracy, evaluate
from mimonets.evaluation.macs import count_macs
from mimonets.models import Model, Superposed, find_point, usual_points
from mimonets.models.registry import model_class_for
from mimonets.recipes.loader import SECTIONS, Recipe, make_recipe
from mimonets.recipes.needs import needs_line
from mimonets.training import TrainingDivergedError, TrainResult, train
from mimonets.training.run_folder import choose_model, find_finished, read_recipe

DIVERGED = "diverged.json"  # in a run's folder: why it ended


def run_recipe(recipe: Recipe, run_dir: str | Path, *, resume: bool = False) -> TrainResult:
    """Load the data, make the model and train it into ``run_dir``.

    The validation split, where there is one, is measured while training. The test split is not
    touched: :func:`measure_run` reads it, once, at the end. A finished run is not trained again:
    with ``resume`` its result comes back, if it is the result of this recipe.
    """
    model = make_model(recipe)
    sections = {
        "name": recipe.name,
        "summary": recipe.summary,
        "data": recipe.data,
        "augment": recipe.augment,
    }
    finished = find_finished(run_dir, model, recipe.train, sections, resume=resume)
    if finished is not None:
        return finished
    if torch.cuda.is_available() and recipe.train.accelerator != "cpu" and not is_worker():
        memory = torch.cuda.get_device_properties(0).total_memory
        print(needs_line(recipe, memory), file=sys.stderr, flush=True)
    splits = load_data(recipe.data)
    train_batches = make_train_batches(recipe, splits)
    model.input_spec = describe_inputs(recipe, train_batches)
    marker = Path(run_dir) / DIVERGED
    try:
        result = train(
            model,
            train_batches,
            recipe.train,
            run_dir=run_dir,
            validation=None
            if splits.validation is None
            else make_batches(splits.validation, train_batches),
            resume=resume,
            recipe=sections,
        )
    except TrainingDivergedError as error:
        write_text(marker, json.dumps({"reason": str(error)}) + "\n")
        raise
    marker.unlink(missing_ok=True)  # of an earlier attempt
    return result


def is_worker() -> bool:
    """Tell whether this is one of several processes of a training, and not the first."""
    return os.environ.get("LOCAL_RANK", "0") != "0"


def describe_inputs(recipe: Recipe, batches: ImageBatches | SequenceBatches) -> InputSpec:
    """Say what the model takes and how raw data becomes it, for whoever gets its weights."""
    if isinstance(batches, SequenceBatches) != hasattr(recipe.model, "vocab_size"):
        takes, has = ("token ids", "images")
        if isinstance(batches, SequenceBatches):
            takes, has = has, takes
        raise ValueError(
            f"{recipe.kind} takes {takes}, and {recipe.data.name} has {has}: choose other data, or "
            f"a recipe for them."
        )
    if isinstance(batches, SequenceBatches):
        pair = (2,) if batches.data.is_pairs else ()
        shape = (*pair, recipe.model.max_length)
        labels, size = batches.data.class_names, recipe.model.vocab_size
        return InputSpec(kind="tokens", shape=shape, labels=labels, vocab_size=size)
    return image_spec(batches, crop=recipe.data.crop)


def image_spec(batches: ImageBatches, **more: Any) -> InputSpec:
    """Say how an image becomes what these batches hold, and what its classes are called."""
    mean, deviation = (tuple(value.tolist()) for value in batches.statistics)
    original = batches.data.original or batches.data.shape[1:]
    more |= {"mean": mean, "deviation": deviation, "labels": batches.data.class_names}
    return InputSpec(kind="image", shape=batches.data.shape, original=original, **more)


def make_model(recipe: Recipe) -> Model:
    """Make the model of a recipe, with the weights that its seed gives; refuse a too large one."""
    with torch.random.fork_rng(), torch.device("meta"):
        weights = model_class_for(recipe.model)(recipe.model).state_dict().values()
    needed, free = sum(one.numel() * one.element_size() for one in weights), free_memory()
    if free is not None and needed > free:
        raise ValueError(
            f"The weights of this {recipe.kind} take {needed / 2**30:,.1f} GB, and "
            f"{free / 2**30:,.1f} GB of memory are free: choose a smaller network."
        )
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
        options["statistics"] = training_statistics(recipe.data, splits.train)
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
    found = read_recipe(Path(folder))
    settings = {section: found[section] for section in SECTIONS if found.get(section) is not None}
    wrong = [section for section, values in settings.items() if not isinstance(values, dict)]
    if wrong:
        raise ValueError(
            f"{Path(folder) / 'recipe.yaml'} has no settings under {', '.join(wrong)}: it was "
            f"damaged or edited."
        )
    if settings.get("model", {}).get("kind") == Superposed.kind:
        raise ValueError(
            f"{folder} is a run of a third-party network, and its recipe does not know its data: "
            f"measure it from Python, and export or serve {Path(folder) / 'model'}."
        )
    name, summary = (str(found.get(key, "")) for key in ("name", "summary"))
    return make_recipe(name or str(folder), summary, settings, overrides)


def measure_run(
    folder: str | Path,
    split: str,
    points: Sequence[int | None] | None = None,
    data_dir: str | Path | None = None,
    *,
    which: str | None = None,
    device: str | torch.device | None = None,
) -> list[tuple[OperatingPoint, PointAccuracy, float]]:
    """Measure a run's model: accuracy and MACs per input, by operating point.

    Args:
        points: their numbers; by default the usual ones.
        data_dir: where the files of the data set are, if not where the run found them.
        which: best or last; by default the one that the run kept, see :func:`choose_model`.
        device: by default a CUDA device if there is one.
    """
    return measure_points(*open_run(folder, split, data_dir, which, device), points)


def measure_points(
    model: Any,
    batches: ImageBatches | SequenceBatches,
    points: Sequence[int | None] | None = None,
) -> list[tuple[OperatingPoint, PointAccuracy, float]]:
    """Measure accuracy and MACs per input at operating points, by default the usual ones."""
    chosen = [find_point(model, number) for number in points or ()] or usual_points(model)
    found = evaluate(model, batches, [point.number for point in chosen])
    return [(p, found[p.number], count_macs(model, p.number).paper) for p in chosen]


def open_run(
    folder: str | Path,
    split: str,
    data_dir: str | Path | None = None,
    which: str | None = None,
    device: str | torch.device | None = None,
) -> tuple[Any, ImageBatches | SequenceBatches]:
    """Load a run's model and make batches of one split of its data."""
    chosen_device = choose_device(device)
    recipe = read_run(folder).with_data_dir(data_dir)
    _, path = choose_model(folder, which)
    model = load(path, device=chosen_device)
    return model, split_batches(recipe.data, split, spec=model.input_spec, device=chosen_device)
