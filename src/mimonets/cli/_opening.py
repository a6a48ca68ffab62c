"""Open what ``mimonets serve`` is told to serve: runs, saved models, exports, shipped models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimonets.models.pretrained import card_accuracy, find_folder


@dataclass(frozen=True)
class Opened:
    """An engine, and what is known about its modes."""

    engine: Any
    modes: list[int]  # numbers of active streams that are worth serving
    accuracies: dict[int, float]
    confidences: dict[int, float] = field(default_factory=dict)  # cascade: calibrated thresholds


def name_and_folders(text: str) -> tuple[str, list[Path]]:
    """Read NAME=DIR,DIR; without a name it is the folder's.

    >>> name_and_folders("a=runs/x,runs/y")
    ('a', [PosixPath('runs/x'), PosixPath('runs/y')])
    >>> name_and_folders("runs/digits/model")[0]
    'digits'
    """
    name, found, rest = text.partition("=")
    folders = [find_folder(part) for part in (rest if found else text).split(",")]
    if not found:
        whole = folders[0].resolve()
        name = whole.parent.name if whole.name == "model" else whole.name
    return name, folders


def open_network(
    name: str,
    folders: Sequence[Path],
    backend: str,
    threads: int,
    *,
    cascade: float | None = None,
    shrinks: Sequence[int] = (),
) -> Any:
    """Open what is to be served as one model.

    Args:
        name: of the model.
        folders: one network, or several to switch between.
        backend: what runs them.
        threads: CPU threads of each.
        cascade: a confidence in place of those that were calibrated at export.
        shrinks: serve one plain network at these fractions of its resolution, as in (1, 2).
    """
    from mimonets.serving.networks import at_resolutions, superposed, switched

    opened = [_open(folder, backend, threads) for folder in folders]
    if shrinks:
        if len(opened) > 1 or opened[0].engine.num_streams > 1:
            raise ValueError("--shrink serves one network without streams at several resolutions.")
        known = {1: opened[0].accuracies[1]} if 1 in opened[0].accuracies else {}
        return at_resolutions(name, opened[0].engine, shrinks, known)
    if len(opened) == 1:
        (one,) = opened
        confidences = one.confidences if cascade is None else dict.fromkeys(one.modes, cascade)
        return superposed(name, one.engine, one.accuracies, confidences, one.modes)
    labels = [f"{number}: {folder.name}" for number, folder in enumerate(folders)]
    found = dict(zip(labels, opened, strict=True))
    return switched(
        name,
        {label: one.engine for label, one in found.items()},
        {label: one.accuracies[1] for label, one in found.items() if 1 in one.accuracies},
    )


def _open(folder: Path, backend: str, threads: int) -> Opened:
    from mimonets.inference import Engine

    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: pass a run, a saved model or an export.")
    if (folder / "manifest.json").exists():
        return _described_by_manifest(Engine(folder, backend, threads))

    import mimonets as mn
    from mimonets.layers.stream_norm import untrained_modes

    weights = weights_in(folder)
    model = mn.load(weights)
    if model.input_spec is None:
        model.input_spec = _described(weights)
    engine = Engine(model, "torch" if backend == "auto" else backend, threads)
    accuracies = _accuracies(weights)
    trained = [mode for mode in engine.modes if mode not in set(untrained_modes(model))]
    known = [mode for mode in trained if mode in accuracies]
    return Opened(engine, known or trained or list(engine.modes), accuracies)


def _described_by_manifest(engine: Any) -> Opened:
    precision = engine.backend if "int8" in engine.backend else "float32"
    accuracies, confidences = {}, {}
    for mode in engine.manifest.modes:
        if mode.accuracy:
            found = mode.accuracy.get(precision, next(iter(mode.accuracy.values())))
            accuracies[mode.active_streams] = found
        if mode.confidence is not None:
            confidences[mode.active_streams] = mode.confidence
    known = [mode for mode in engine.modes if mode in accuracies]
    return Opened(engine, known or list(engine.modes), accuracies, confidences)


def weights_in(folder: Path) -> Path:
    """Find the saved model in a run's folder; any other folder is one itself."""
    return folder / "model" if (folder / "model" / "config.json").exists() else folder


def run_folder_of(weights: Path) -> Path | None:
    """Find the run that a saved model belongs to."""
    folder = weights.resolve().parent
    return folder if (folder / "recipe.yaml").exists() else None


def _described(weights: Path) -> Any:
    """Describe the inputs of a model that was saved before models did so themselves."""
    run_folder = run_folder_of(weights)
    if run_folder is None:
        return None
    from mimonets.recipes.execute import describe_inputs, read_run, split_batches

    recipe = read_run(run_folder)
    return describe_inputs(recipe, split_batches(recipe, "train"))


def _accuracies(weights: Path) -> dict[int, float]:
    run_folder = run_folder_of(weights)
    if run_folder is None or not (run_folder / "result.json").exists():
        return card_accuracy(weights) or {}
    result = json.loads((run_folder / "result.json").read_text(encoding="utf-8"))
    found = result.get("final") or {}
    return {int(mode): entry["accuracy"] for mode, entry in found.items()}
