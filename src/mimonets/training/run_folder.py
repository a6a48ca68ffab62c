"""A run's folder: what was asked for, where it ran, what came out, and how to resume.

recipe.yaml            every setting, spelt out
environment.json       command, versions and machine
metrics.jsonl          one line per epoch
checkpoints/last.pt    everything needed to resume; previous.pt is the one before
best/                  the model with the best validation accuracy, if there is validation data
model/                 the model after the last step
result.json            what came out, and which of the two models to use
tensorboard/           the metrics as curves, if tensorboardX is installed
"""

import json
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from mimonets._files import not_written, what_it_is, write_json, write_safely, write_text
from mimonets.checkpoints import save
from mimonets.checkpoints.checkpoint import upgrade_settings, write_weights
from mimonets.evaluation.provenance import environment
from mimonets.models import Model, Superposed
from mimonets.training.config import TrainConfig, drop_removed
from mimonets.training.identity import Identity
from mimonets.training.lock import OURS, FolderLock

FORMAT_VERSION = 1
WEIGHTS_FILE = "model.safetensors"
MODELS = {"best": "best", "last": "model"}  # which of a run's models -> its folder
Row = dict[str, Any]


@dataclass(frozen=True)
class TrainResult:
    """What came out of a run."""

    history: list[Row]  # one row per epoch, as in metrics.jsonl
    final: dict[int, Row]  # the kept model on the validation data, by active streams; or empty
    keep: str  # which model to use and to measure: best, on the validation data, or last
    steps: int
    skipped: int  # batches left out by the gradient filter
    not_finite: int  # those of them whose gradient was not finite
    seconds: float | None  # of training; None for runs of version 0.1.0
    slopes: dict[str, float]  # of parametric ReLUs in the kept model: the mean, layer by layer
    run_dir: Path
    rank: int = 0  # of this process; with several devices only 0 should print

    @property
    def model_dir(self) -> Path:
        """The model that is kept, for mimonets.load."""
        return self.run_dir / MODELS[self.keep]

    @property
    def training(self) -> Row:
        """Loss and accuracy on the training data in the last epoch."""
        last = self.history[-1] if self.history else {}
        return {name: last.get(name) for name in ("loss", "accuracy")}

    def as_dict(self) -> Row:
        """Give what is not in other files of the run folder as plain data for JSON."""
        names = ("final", "training", "keep", "steps", "skipped", "not_finite", "seconds", "slopes")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_dict(cls, found: Row, run_dir: Path, history: list[Row]) -> Self:
        """Read what :meth:`as_dict` gave."""
        keep = found.get("keep", "last")
        if keep not in MODELS:
            raise ValueError(f"keep={keep!r}")
        return cls(
            history=history,
            final={int(mode): dict(row) for mode, row in found["final"].items()},
            keep=keep,
            steps=int(found["steps"]),
            skipped=int(found["skipped"]),
            not_finite=int(found["not_finite"]),
            seconds=found.get("seconds"),
            slopes=dict(found.get("slopes", {})),
            run_dir=run_dir,
        )


class RunFolder:
    """The folder of one training run. Only the process of rank 0 writes.

    Args:
        logger: what gets the metrics as curves, such as those of Lightning Fabric; TensorBoard's
            files in the folder without it.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, writes: bool = True, logger: Any = None
    ) -> None:
        self.folder = Path(folder)
        self.writes = writes
        self._logger = logger
        self._finished = False
        self._writer = ThreadPoolExecutor(1, "checkpoint")  # starts no thread before it is used
        self._writing: Future[None] | None = None
        self._lock = FolderLock(self.folder)
        self._identity: Identity | None = None  # until the run has begun
        self._made = False

    @property
    def checkpoint(self) -> Path:
        """Where the state of the run is kept."""
        return self.folder / "checkpoints" / "last.pt"

    @property
    def previous_checkpoint(self) -> Path:
        """Where the one before is kept."""
        return self.checkpoint.with_name("previous.pt")

    @property
    def _recipe(self) -> Path:
        return self.folder / "recipe.yaml"

    def open(self, identity: Identity, *, resume: bool) -> None:
        """Take the folder for a new run, or for the one in it if that is the one to resume.

        Nothing is written yet: :meth:`begin` does that after the first step.
        """
        if not self.writes:
            return
        self._refuse_file()
        self._made = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._identity = identity
        self._lock.acquire()  # first, so that nobody else writes after the check
        self.check(identity, resume=resume)

    def check(self, identity: Identity, *, resume: bool) -> None:
        """Refuse a folder that holds another run, or something that is no run."""
        self._refuse_file()
        if not self.folder.exists():
            return
        if self._recipe.exists():
            if not resume:
                raise ValueError(
                    f"{self.folder} already holds a run: resume it (resume=True, --resume), "
                    f"or choose another folder."
                )
            identity.check(read_recipe(self.folder), self.folder)
            return
        if self.checkpoint.exists():
            raise ValueError(f"{self.folder} holds a checkpoint but no recipe.yaml: not a run.")
        others = sorted({path.name for path in self.folder.iterdir()} - OURS)
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            raise ValueError(
                f"{self.folder} is no run and holds {', '.join(others[:3])}{more}: choose another "
                f"folder, or an empty one."
            )

    def _refuse_file(self) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"{self.folder} is a file: a run is a folder, choose another name.")

    def begin(self) -> None:
        """Write down what is trained, once it is known to work: after the first step."""
        if not self.writes or self._identity is None:
            return
        import yaml

        write_text(self._recipe, yaml.safe_dump(self._identity.settings, sort_keys=False))
        self._identity = None
        self.checkpoint.parent.mkdir(exist_ok=True)
        where = self.folder / "environment.json"
        if not where.exists():
            write_json(where, environment())

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Copy the state and write it in the background; the last two checkpoints are kept.

        Whatever happens, one of them is whole. If the write before this one failed, its error is
        raised here, or by :meth:`flush`.
        """
        if self.writes:
            self.flush()
            state = tree_map(_copied, {"format_version": FORMAT_VERSION, **state})
            self._writing = self._writer.submit(self._write_checkpoint, state)

    def _write_checkpoint(self, state: dict[str, Any]) -> None:
        new = self.checkpoint.with_name("next.pt")
        write_safely({new: lambda path: torch.save(state, path)})
        if self.checkpoint.exists():  # killed after this, a run resumes from the one before
            os.replace(self.checkpoint, self.previous_checkpoint)
        os.replace(new, self.checkpoint)

    def flush(self) -> None:
        """Wait until the checkpoint is on disk; raises an OSError if it could not be written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Read the checkpoint; None if the run has not come that far."""
        path, before = self.checkpoint, self.previous_checkpoint
        path = path if path.exists() else before
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:
            older = path != before and before.exists()
            raise ValueError(
                f"{path} cannot be read ({type(error).__name__}): it is damaged. "
                f"{'Remove it to resume from' if older else 'Start again in another folder'}"
                f"{f' the one before, {before.name}' if older else ''}."
            ) from error
        if not isinstance(state, dict) or state.get("format_version") != FORMAT_VERSION:
            found = state.get("format_version") if isinstance(state, dict) else None
            raise ValueError(
                f"{path} is of format version {found}, and this mimonets resumes "
                f"{FORMAT_VERSION}: finish the run with the version that started it."
            )
        return state

    def history(self) -> list[dict[str, Any]]:
        """Read the metrics that were written so far; a last line that was cut short is left out."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        lines = _read_text(path).splitlines()
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not isinstance(row.get("step"), int):
                    raise ValueError("no step in it")
            except (ValueError, RecursionError) as error:
                if number == len(lines) and isinstance(error, json.JSONDecodeError):
                    break
                raise ValueError(
                    f"{path}, line {number} is no row of metrics: the file was damaged or edited."
                ) from None
            rows.append(row)
        return rows

    def rewind(self, step: int) -> list[dict[str, Any]]:
        """Drop metrics of later steps than the checkpoint's: they are about to be made again."""
        written = self.history()
        rows = [row for row in written if row["step"] <= step]
        if self.writes and (self.folder / "metrics.jsonl").exists():
            text = "".join(json.dumps(row) + "\n" for row in rows)
            write_text(self.folder / "metrics.jsonl", text)
        return rows

    def log(self, row: dict[str, Any], **more: Any) -> None:
        """Write one line of metrics; its numbers, and ``more``, go to the logger as curves."""
        if not self.writes:
            return
        path = self.folder / "metrics.jsonl"
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise not_written(path, error) from error
        if self._logger is None:
            self._logger = _tensorboard(self.folder, row["step"])
        if self._logger:
            # A full disk, which Fabric's loggers call a ValueError: the numbers are in the line.
            with suppress(OSError, ValueError):
                self._logger.log_metrics(dict(_numbers({**row, **more})), row["step"])

    def save_model(self, model: nn.Module, name: str) -> None:
        """Write a model beside the metrics, as mimonets.load reads it; of others, the weights."""
        if not self.writes:
            return
        if isinstance(model, Model | Superposed):
            save(model, self.folder / name)
            return
        (self.folder / name).mkdir(exist_ok=True)
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        write_safely({self.folder / name / WEIGHTS_FILE: lambda path: write_weights(path, weights)})

    def load_weights(self, name: str) -> dict[str, Tensor]:
        """Read the weights that :meth:`save_model` wrote."""
        return load_file(self.folder / name / WEIGHTS_FILE)

    def finish(self, result: TrainResult) -> None:
        """Write down what came out."""
        self.flush()
        self._finished = True
        if self.writes:
            write_json(self.folder / "result.json", result.as_dict())

    def result(self) -> TrainResult | None:
        """Read what came out of the run; None if it has not finished."""
        path = self.folder / "result.json"
        if not path.exists():
            return None
        try:
            return TrainResult.from_dict(json.loads(_read_text(path)), self.folder, self.history())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ValueError(
                f"{path} is not the result of a run: it was damaged or edited. Remove it and "
                f"resume the run to have it written again."
            ) from None

    def close(self) -> None:
        """Write out what waits in memory, unlock the folder; leave nothing if no run began."""
        if self._logger and self.writes:
            with suppress(OSError):
                self._logger.finalize("success" if self._finished else "aborted")
        try:
            self.flush()
        finally:
            self._writer.shutdown()
            began = self._identity is None
            self._lock.release(remove=not began and not self._recipe.exists())
            if self._made and not began and not any(self.folder.iterdir()):
                self.folder.rmdir()
                self._made = False


def find_finished(
    folder: str | os.PathLike[str],
    model: nn.Module,
    config: TrainConfig,
    recipe: Mapping[str, Any] | None,
    *,
    resume: bool,
) -> TrainResult | None:
    """Give the result of this training if it has finished in the folder and is to be resumed.

    Refuses a folder that this training may not use, before anybody loads the data.
    """
    run = RunFolder(folder, writes=False)
    run.check(Identity.of(model, config, recipe), resume=resume)
    result = run.result() if resume else None
    if result is not None and config.keep not in (None, result.keep):
        raise ValueError(
            f"The run in {folder} has finished and kept its {result.keep} model: "
            f"`mimonets evaluate --which {config.keep}` measures the other one."
        )
    return result


def choose_model(folder: str | os.PathLike[str], which: str | None = None) -> tuple[str, Path]:
    """Find the model of a run to measure: best on the validation data, or last.

    By default the one that the run kept (``train.keep``): the best where there was validation data
    to choose by. Returns its name, best or last, and its folder.
    """
    folder = Path(folder)
    models = {name: folder / inside for name, inside in MODELS.items()}
    if which not in (None, *models):
        raise ValueError(f"A run has no model {which!r}: choose best or last.")
    read_recipe(folder)
    result = RunFolder(folder, writes=False).result()
    if which != "best" and not models["last"].is_dir():
        so_far = (
            "or measure the best model so far with --which best"
            if models["best"].is_dir()
            else "it has no model yet"
        )
        raise ValueError(f"The run in {folder} has not finished: resume it (--resume), {so_far}.")
    chosen = which or ("last" if result is None else result.keep)
    if not models[chosen].is_dir():
        raise ValueError(
            f"The run in {folder} kept no best model, as it had no validation data: choose last."
        )
    return chosen, models[chosen]


def read_recipe(folder: Path) -> dict[str, Any]:
    """Read the settings that a run was started with, as plain data, in the names of today.

    Settings that are gone are left out, or refused if they changed its training.
    """
    path = folder / "recipe.yaml"
    if not path.is_file():
        raise ValueError(f"{folder} {what_it_is(folder, path.name)}")
    import yaml

    try:
        found = yaml.safe_load(_read_text(path))
    except (yaml.YAMLError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(found.get(section), dict) for section in ("model", "train")
    ):
        raise ValueError(
            f"{path} is not the recipe of a run, with the sections model and train: it was damaged "
            f"or edited."
        )
    try:
        return {
            **found,
            "model": upgrade_settings(found["model"]),
            "train": drop_removed(found["train"]),
        }
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text: it was damaged.") from None


def _copied(value: Any) -> Any:
    """Copy a tensor to the CPU, so that training may change the original."""
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


def _tensorboard(folder: Path, step: int) -> Any:
    """Make Fabric's logger for TensorBoard; False if tensorboardX is not installed."""
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    try:
        # What a killed run wrote after its checkpoint is hidden from here on.
        logger = TensorBoardLogger(folder, "tensorboard", "", purge_step=step)
        return logger if logger.experiment else False  # this is where it opens its file
    except ImportError:
        return False


def _numbers(row: dict[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found = []
    for name, value in row.items():
        if isinstance(value, dict):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
    return found
