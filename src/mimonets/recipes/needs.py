"""What training a recipe needs on a GPU: hours of an A100 and memory, in float32 and bf16.

``needs.json`` holds what a step takes, counted once by :mod:`mimonets.training.footprint`, so that
``mimonets cost`` and ``mimonets reproduce`` need not count again. ``make costs`` writes the file.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from mimonets.recipes.costs import digest
from mimonets.recipes.families import find_recipe

if TYPE_CHECKING:
    from mimonets.recipes.loader import Recipe

PRECISIONS: tuple[Literal["32", "bf16"], ...] = ("32", "bf16")
# Training items of data sets whose recipes count epochs; of the small ones about so many.
ITEMS = {
    **{"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "mnist": 60_000},
    **{"fashion-mnist": 60_000, "recall": 5_000, "induction": 5_000},
    **{"digits": 1_500, "digits-writers": 1_200},
}
# What changes neither a step nor its memory.
OTHERWISE = (
    *("epochs", "steps", "seed", "lr", "lr_ends", "warmup", "label_smoothing", "weight_decay"),
    *("schedule", "momentum", "cycle_momentum", "betas", "epsilon", "decay_all", "grad_filter"),
    *("grad_clip", "accelerator", "devices", "threads", "compile", "keep", "evaluate_every"),
    *("recalibrate_batches", "temperature", "distill", "teacher", "precision"),
    *("retrieval", "exact", "solo", "curriculum"),
)


@dataclass(frozen=True)
class Needs:
    """What one run needs, by precision: seconds of a step on an A100, bytes of memory."""

    steps: int | None  # of the whole training; None: not known before the data is read
    seconds: Mapping[str, float]
    peak: Mapping[str, float]

    def hours(self, precision: str = "32") -> float | None:
        """Estimate the GPU-hours of the run."""
        return None if self.steps is None else self.steps * self.seconds[precision] / 3600

    def as_dict(self) -> dict[str, Any]:
        """Give the estimates as plain data."""
        return {
            "steps": self.steps,
            "a100_hours": {name: self.hours(name) for name in PRECISIONS},
            "peak_bytes": dict(self.peak),
        }


def known_needs(recipe: str) -> Needs | None:
    """Look up what a recipe needs as it stands, without PyTorch; None if it was not counted.

    >>> needs = known_needs("cifar100-mimoconv-n4")
    >>> needs.steps
    468000
    """
    entry = counted()["recipes"].get(digest(find_recipe(recipe)[2]))
    return None if entry is None else _needs(entry["step"], entry["steps"])


def needs_of(recipe: "Recipe", *, count: bool = True) -> Needs | None:
    """Say what a recipe needs; what is not in the table is counted, or None without ``count``."""
    key = step_key(recipe)
    if key not in counted()["steps"]:
        if not count:
            return None
        counted()["steps"][key] = count_step(recipe)
    return _needs(key, total_steps(recipe))


def needs_line(recipe: "Recipe", memory: float | None = None) -> str:
    """Say what a run needs, and if that is more than a device's memory, what to set."""
    from mimonets.recipes.execute import make_model
    from mimonets.training.footprint import gigabytes, less_memory

    needs, precision = needs_of(recipe), recipe.train.precision
    assert needs is not None
    hours, peak = needs.hours(precision), needs.peak[precision]
    time = "" if hours is None else f"about {show_hours(hours)} on an A100 and "
    line = f"{recipe.name} needs {time}{gigabytes(peak)} of GPU memory, by estimate."
    if memory is None or peak <= memory or recipe.train.accumulate == "auto":
        return line
    advice = less_memory(make_model(recipe), recipe.train)
    return f"{line} This device has {gigabytes(memory)}: set {advice}."


def show_hours(hours: float) -> str:
    """Write a time with as many digits as an estimate has.

    >>> [show_hours(hours) for hours in (634.2, 11.46, 0.25, 0.001)]
    ['634 h', '11 h', '0.25 h', 'under 0.01 h']
    """
    return (
        f"{hours:.2g} h"
        if 0.01 <= hours < 100
        else f"{hours:.0f} h"
        if hours > 1
        else "under 0.01 h"
    )


def total_steps(recipe: "Recipe") -> int | None:
    """Count the steps of a recipe's training without reading its data, where that is known."""
    from mimonets.data.registry import DATASETS

    train, data = recipe.train, recipe.data
    if train.steps is not None:
        return train.steps
    if data.name not in ITEMS:
        return None
    held_out = DATASETS[data.name].held_out if data.validation is None else data.validation
    items = ITEMS[data.name] - held_out if data.sizes is None else data.sizes[0]
    items = min(items, data.limit or items)
    streams = getattr(recipe.model, "num_streams", 1) if train.per_stream else 1
    inputs = items * streams  # an epoch shows every item once per stream
    return train.total_steps(max(1, inputs // (train.batch_size * streams)))


def step_key(recipe: "Recipe") -> str:
    """Name everything that decides what a step takes; the number of classes hardly does."""
    train = {name: value for name, value in asdict(recipe.train).items() if name not in OTHERWISE}
    model = {"kind": recipe.kind, **asdict(recipe.model), "num_classes": None}
    return digest({"model": model, "train": train})


def count_step(recipe: "Recipe") -> list[list[float]]:
    """Count a step in every precision: FLOPs, bytes moved, peak bytes."""
    from mimonets.training.footprint import step_footprint

    found = []
    for precision in PRECISIONS:
        train = replace(recipe.train, precision=precision)
        step = step_footprint(recipe.model, train)
        found.append([float(f"{value:.4g}") for value in (step.flops, step.moved, step.peak)])
    return found


def _needs(key: str, steps: int | None) -> Needs:
    found = dict(zip(PRECISIONS, counted()["steps"][key], strict=True))
    return Needs(
        steps,
        {name: step_seconds(found[name][0], found[name][1], name) for name in PRECISIONS},
        {name: found[name][2] for name in PRECISIONS},
    )


# What a step reaches of an A100: half of its peak (TF32, bf16), and 1.7 of its 2.0 TB/s. With these
# a CIFAR run and Text's Performer take about as long as the paper says.
FLOPS = {"32": 0.5 * 156e12, "bf16": 0.5 * 312e12}
BYTES = 1.7e12


def step_seconds(flops: float, moved: float, precision: str) -> float:
    """Estimate how long a step takes on an A100.

    >>> round(step_seconds(4.68e12, 45e9, "32"), 3)
    0.086
    """
    return flops / FLOPS[precision] + moved / BYTES


@cache
def counted() -> dict[str, dict[str, Any]]:
    """Read what was counted: of steps, and which step belongs to a recipe."""
    found: dict[str, dict[str, Any]] = json.loads(
        (files("mimonets.recipes") / "needs.json").read_text(encoding="utf-8")
    )
    return found
