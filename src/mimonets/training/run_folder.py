"""A run's folder: what was asked for, where it ran, what came out, and how to go on.

recipe.yaml            every setting, spelt out
environment.json       command, versions and machine
metrics.jsonl          one line per epoch
checkpoints/last.pt    everything needed to go on
best/                  the model with the best validation accuracy, for mimonets.load
model/                 the final model, for mimonets.load
result.json            what the final model can do
tensorboard/           the metrics as curves, if tensorboardX is installed
"""

import json
import os
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from mimonets._files import write_safely, write_text
from mimonets.evaluation.provenance import environment
from mimonets.models import Model, save
from mimonets.training.config import TrainConfig

FORMAT_VERSION = 1

# Settings that change how a run goes on, not what comes out of it.
FREE_SETTINGS = {"threads", "checkpoint_every", "checkpoint_seconds"}


class RunFolder:
    """The folder of one training run. Only the process of rank 0 writes."""

    def __init__(self, folder: str | os.PathLike[str], *, writes: bool = True) -> None:
        self.folder = Path(folder)
        self.writes = writes
        self._curves: Any = None

    @property
    def checkpoint(self) -> Path:
        """Where the state of the run is kept."""
        return self.folder / "checkpoints" / "last.pt"

    def open(self, recipe: dict[str, Any], *, resume: bool) -> None:
        """Start a new run, or check that the one in the folder is the one to go on with."""
        path = self.folder / "recipe.yaml"
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file: a run is a folder, choose another name.")
        if path.exists():
            if not resume:
                raise ValueError(
                    f"{self.folder} already holds a run: go on with it (resume=True, --resume), "
                    f"or choose another folder."
                )
            self._check_recipe(path, recipe)
        elif resume and self.checkpoint.exists():
            raise ValueError(f"{self.folder} holds a checkpoint but no {path.name}: not a run.")
        if not self.writes:
            return
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_text(self.folder / "environment.json", json.dumps(environment(), indent=2) + "\n")
            text = yaml.safe_dump(recipe, sort_keys=False)
            write_text(path, text)

    def _check_recipe(self, path: Path, wanted: dict[str, Any]) -> None:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        differing = [
            name for name in _differences(found, wanted) if name.split(".")[-1] not in FREE_SETTINGS
        ]
        if differing:
            more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
            raise ValueError(
                f"The run in {self.folder} was started with another recipe: it differs in "
                f"{', '.join(differing[:4])}{more}. Use the same settings, or another folder."
            )

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint by a newer one; whatever happens, one of the two is whole."""
        if self.writes:
            state = {"format_version": FORMAT_VERSION, **state}
            write_safely(self.checkpoint, lambda path: torch.save(state, path))

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Read the checkpoint; None if the run has not come that far."""
        if not self.checkpoint.exists():
            return None
        try:
            state = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(
                f"{self.checkpoint} cannot be read ({type(error).__name__}): it is damaged. Start "
                f"again in another folder."
            ) from error
        if not isinstance(state, dict) or state.get("format_version") != FORMAT_VERSION:
            found = state.get("format_version") if isinstance(state, dict) else None
            raise ValueError(
                f"{self.checkpoint} is of format version {found}, and this mimonets goes on with "
                f"{FORMAT_VERSION}: finish the run with the version that started it."
            )
        return state

    def history(self) -> list[dict[str, Any]]:
        """Read the metrics that were written so far; a line that was cut short is left out."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def rewind(self, step: int) -> list[dict[str, Any]]:
        """Drop metrics of later steps than the checkpoint's: they are about to be made again."""
        rows = [row for row in self.history() if row["step"] <= step]
        if self.writes:
            text = "".join(json.dumps(row) + "\n" for row in rows)
            write_text(self.folder / "metrics.jsonl", text)
        return rows

    def log(self, row: dict[str, Any]) -> None:
        """Write one line of metrics, and the numbers in it as curves."""
        if not self.writes:
            return
        with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if self._curves is None:
            self._curves = _make_curves(self.folder / "tensorboard", row["step"])
        if self._curves:
            for name, value in _numbers(row):
                self._curves.add_scalar(name, value, row["step"])

    def save_model(self, model: Model, name: str) -> Path:
        """Write the model beside the metrics, as mimonets.load reads it."""
        return save(model, self.folder / name) if self.writes else self.folder / name

    def finish(self, result: dict[str, Any]) -> None:
        """Write down what came out."""
        if self.writes:
            write_text(self.folder / "result.json", json.dumps(result, indent=2) + "\n")

    def close(self) -> None:
        """Write out what waits in memory."""
        if self._curves:
            self._curves.close()
        self._curves = None


def resolved_recipe(
    model: Model, config: TrainConfig, recipe: dict[str, Any] | None
) -> dict[str, Any]:
    """Spell out everything that decides a run as plain data."""
    full = {
        **(recipe or {}),
        "model": {"kind": model.kind, **asdict(model.config)},
        "train": asdict(config),
    }
    return json.loads(json.dumps(full))  # tuples become lists, as in the file


def _differences(found: Any, wanted: Any, prefix: str = "") -> list[str]:
    """Name the settings that differ, such as train.lr."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return [
            name
            for key in sorted({*found, *wanted}, key=str)
            for name in _differences(found.get(key), wanted.get(key), f"{prefix}{key}.")
        ]
    return [] if found == wanted else [prefix.rstrip(".")]


def _make_curves(folder: Path, step: int) -> Any:
    """Open TensorBoard's file; False if tensorboardX is not installed."""
    try:
        writer = import_module("tensorboardX").SummaryWriter
    except ImportError:
        return False
    # What a killed run wrote after its checkpoint is hidden from here on.
    return writer(str(folder), purge_step=step)


def _numbers(row: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in row.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
    return found
