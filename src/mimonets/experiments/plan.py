"""Experiments that train: which recipes, with which seeds, and what the paper got.

A file in ``plans/`` is one experiment. Its ``trials`` are recipes with changes, their ``paper``
values accuracies in percent, a mean or ``[mean, deviation]`` by number of active streams.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from mimonets.recipes import load_recipe
from mimonets.recipes.loader import Recipe


@dataclass(frozen=True)
class Trial:
    """One recipe, with changes, to be trained with several seeds."""

    name: str  # of its folder: the recipe's, and the changes if there are any
    title: str  # as in the paper
    recipe: str
    settings: tuple[str, ...]  # such as train.epochs=10
    seeds: tuple[int, ...]
    only_modes: tuple[int, ...] | None  # numbers of active streams to test; None: all streams busy
    paper: Mapping[int, tuple[float, float | None]]  # accuracy and deviation, by mode
    group: str  # the line it belongs to in a plot
    scaled_down: bool
    note: str

    @property
    def modes(self) -> tuple[int, ...]:
        """Numbers of active streams to test."""
        return self.only_modes or (getattr(self.load(0).model, "num_streams", 1),)

    def load(self, seed: int, more: tuple[str, ...] = ()) -> Recipe:
        """Read the recipe, with the changes and the seed."""
        return load_recipe(self.recipe, [*self.settings, *more]).with_seed(seed)

    def command(self) -> str:
        """Say how to train it by hand."""
        changes = "".join(f" --set {setting}" for setting in self.settings)
        seeds = f" --seeds {len(self.seeds)}" if len(self.seeds) > 1 else ""
        return f"mimonets train {self.recipe}{changes}{seeds}"


@dataclass(frozen=True)
class Plan:
    """All trials of one experiment, and how to show them."""

    name: str
    source: str
    title: str
    effort: str
    needs_gpu: bool
    axis: str  # what accuracy is drawn against: streams, macs or trials
    trials: tuple[Trial, ...]


@cache
def load_plan(name: str) -> Plan:
    """Read a plan by its name."""
    text = (files("mimonets.experiments") / "plans" / f"{name}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    shared = content.pop("shared", {})
    return Plan(
        name=name,
        source=content["source"],
        title=content["title"],
        effort=content["effort"],
        needs_gpu=content.get("needs_gpu", False),
        axis=content.get("axis", "trials"),
        trials=tuple(_trial({**shared, **trial}) for trial in content["trials"]),
    )


def plan_names() -> list[str]:
    """List the plans there are."""
    folder = files("mimonets.experiments") / "plans"
    return sorted(
        file.name.removesuffix(".yaml") for file in folder.iterdir() if ".yaml" in file.name
    )


def _trial(content: Mapping[str, Any]) -> Trial:
    settings = tuple(f"{name}={_written(value)}" for name, value in content.get("set", {}).items())
    changes = "".join(f",{setting.partition('.')[2]}" for setting in settings)
    paper = {
        int(mode): (value[0], value[1]) if isinstance(value, list) else (value, None)
        for mode, value in content.get("paper", {}).items()
    }
    return Trial(
        name=content["recipe"] + changes,
        title=content["title"],
        recipe=content["recipe"],
        settings=settings,
        seeds=tuple(range(content.get("seeds", 1))),
        only_modes=tuple(content["modes"]) if "modes" in content else None,
        paper=paper,
        group=content.get("group", ""),
        scaled_down=content.get("scaled_down", False),
        note=content.get("note", ""),
    )


def _written(value: object) -> str:
    """Write a setting as the command line takes it."""
    return yaml.safe_dump(value, default_flow_style=True).replace("\n...", "").strip()
