"""Find and open the networks that a command line names, in one way for all commands.

A network is named by a recipe, by the folder of a run, a saved model or an export, or by the name
of one that ships with the package. An export alone is opened without PyTorch.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mimonets._messages import did_you_mean

IN_A_NETWORK = ("recipe.yaml", "config.json", "manifest.json")  # one is in every such folder


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
    if Path(text).exists() or "/" in name:  # a folder whose name has = in it
        found = ""
    if found and not name:
        raise ValueError(f"{text!r} names a model without a name: write NAME{text}, or {rest}.")
    folders = [find_weights(part) for part in (rest if found else text).split(",")]
    if not found:
        whole = folders[0].resolve()
        name = whole.parent.name if whole.name == "model" else whole.name
    return name, folders


def find_network(text: str) -> Path | str:
    """Find what a text names: a folder with weights, or a recipe by its name."""
    folder = Path(text)
    if any((folder / name).exists() for name in IN_A_NETWORK):
        return folder
    recipes = _recipe_names(text)
    if text in recipes:
        return text
    if folder.exists() or len(folder.parts) != 1:  # what is wrong with it is said when it is read
        return folder
    from mimonets.checkpoints.shipped import pretrained_folder, pretrained_names

    shipped = pretrained_names()
    if text in shipped:
        return pretrained_folder(text)
    raise ValueError(
        f"There is no recipe, no folder and no shipped network {text!r}"
        f"{did_you_mean(text, [*shipped, *recipes])}: `mimonets recipes` lists the recipes, and "
        f"{', '.join(shipped)} ship with mimonets."
    )


def _recipe_names(text: str) -> list[str]:
    """List the recipes, with this one if it is a former name; none where PyYAML is missing."""
    try:
        from mimonets.recipes.families import current_name, recipe_names
    except ModuleNotFoundError:
        return []
    names = recipe_names()
    return [*names, text] if current_name(text) in names else names


def find_weights(text: str) -> Path:
    """Find the folder with the weights of a network; those of a recipe are in runs/RECIPE."""
    found = find_network(text)
    if isinstance(found, Path):
        return found
    run = Path("runs") / text
    if not (run / "recipe.yaml").exists():
        raise ValueError(
            f"{text} is a recipe, and there are no weights of it in {run}: train it (mimonets "
            f"train {text}), or name a run, a saved model, an export or a shipped network."
        )
    return run


def load_network(text: str) -> Any:
    """Load the trained network that a text names, in PyTorch."""
    return _load(find_weights(text))


def find_config(text: str, overrides: Sequence[str] = ()) -> Any:
    """Read the model config of a network, trained or not; a third-party network is loaded."""
    from mimonets.checkpoints import load, read_config
    from mimonets.models import SuperposedConfig
    from mimonets.recipes import load_recipe

    found = find_network(text)
    if isinstance(found, str):
        return load_recipe(found, overrides).model
    if overrides:
        raise ValueError(f"{text} holds a model as it was saved: --set works with recipes only.")
    weights = weights_in(found)
    config = read_config(weights)
    return load(weights) if isinstance(config, SuperposedConfig) else config


def find_recipe(text: str, overrides: Sequence[str] = ()) -> Any:
    """Read the recipe of a network: its own, its run's, or the one that its card or export names.

    Raises a ValueError that says so if it is not known.
    """
    from mimonets.checkpoints.shipped import card_recipe
    from mimonets.recipes.execute import read_run
    from mimonets.recipes.loader import SECTIONS, load_recipe, make_recipe

    found = find_network(text)
    if isinstance(found, str):
        return load_recipe(found, overrides)
    run_folder = found if (found / "recipe.yaml").exists() else run_folder_of(found)
    if run_folder is not None:
        return read_run(run_folder, overrides)
    if (found / "manifest.json").exists():
        from mimonets.inference import read_manifest

        kept = read_manifest(found).recipe
        if kept is not None:
            settings = {name: kept[name] for name in SECTIONS if kept.get(name) is not None}
            return make_recipe(kept["name"], kept["summary"], settings, overrides)
    named = card_recipe(found)
    if named is not None:
        name, changes = named
        return load_recipe(name, [*changes, *overrides])
    if not found.exists():
        raise ValueError(f"{text} does not exist: name a recipe, a folder or a shipped network.")
    raise ValueError(
        f"{text} does not say which recipe and data it was trained with: pass the run's folder, or "
        f"name the recipe with --recipe where the command has it."
    )


def labelled_batches(
    recipe: Any, split: str, spec: Any = None, device: Any = "cpu"
) -> tuple[Any, str]:
    """Make batches of a recipe's data, and name it; scikit-learn's digits stand in for MNIST.

    They do so where the test set of MNIST is not there and no folder was named.
    """
    import torch

    from mimonets.data import evaluation_batches, split_batches
    from mimonets.data.images.digits import digits_like_mnist

    try:
        batches = split_batches(recipe.data, split, spec=spec, device=device)
        return batches, f"{recipe.data.name} {split} data"
    except ValueError as error:
        if (recipe.data.name, recipe.data.dir, split) != ("mnist", None, "test"):
            raise
        print(
            f"{error} Until then scikit-learn's digits stand in: other scans, enlarged from 8x8 "
            f"pixels, which the network was not trained on.",
            file=sys.stderr,
        )
    digits = digits_like_mnist(recipe.data.crop)
    statistics = spec and (torch.tensor(spec.mean), torch.tensor(spec.deviation))
    batches = evaluation_batches(digits, statistics=statistics, device=device)
    return batches, "scikit-learn's digits, enlarged, not MNIST's"


def open_network(
    name: str,
    folders: Sequence[Path],
    backend: str,
    threads: int,
    *,
    cascade: float | None = None,
    device: str = "auto",
) -> Any:
    """Open what is to be served as one model.

    Args:
        name: of the model.
        folders: one network, at all its operating points, or several to switch between.
        backend: what runs them.
        threads: CPU threads of each.
        cascade: a confidence in place of those that were calibrated at export.
        device: where they run; by default on a CUDA device if there is one.
    """
    make = partial(_make_engine, backend=backend, threads=threads, device=device)
    from mimonets.serving.networks import superposed, switched

    if len(folders) == 1 and _has_own_points(folders[0]):
        return _at_own_points(name, folders[0], make)
    opened = [_open(folder, make) for folder in folders]
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


def _make_engine(source: Any, *, backend: str, threads: int, device: str) -> Any:
    """Run an export, or a network in PyTorch, which moves to the device."""
    from mimonets.inference import Engine

    if isinstance(source, Path):
        return Engine(source, backend, threads, device=device)
    from mimonets._device import choose_device

    place = str(choose_device(None if device == "auto" else device))
    return Engine(source, "torch" if backend == "auto" else backend, threads, device=place)


def _open(folder: Path, make: Callable[[Any], Any]) -> Opened:
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: pass a run, a saved model or an export.")
    if (folder / "manifest.json").exists():
        engine = make(folder)
        engine.check()  # before a server swaps it for one that answers
        return _described_by_manifest(engine)

    from mimonets.layers.stream_norm import untrained_modes

    model = _load(folder)
    engine = make(model)
    accuracies = _accuracies(weights_in(folder))
    trained = [mode for mode in engine.modes if mode not in set(untrained_modes(model))]
    known = [mode for mode in trained if mode in accuracies]
    return Opened(engine, known or trained or list(engine.modes), accuracies)


def _has_own_points(folder: Path) -> bool:
    """Tell whether a saved model has other operating points than numbers of active streams."""
    if (folder / "manifest.json").exists():
        from mimonets.inference.manifest import read_manifest

        if read_manifest(folder).argument is None:
            return False  # active streams: such an export is opened without PyTorch
    weights = weights_in(folder)
    if not (weights / "config.json").exists():
        return False
    from mimonets.checkpoints import read_config
    from mimonets.models import operating_points

    return "active_streams" not in operating_points(read_config(weights))[0].options


def _at_own_points(name: str, folder: Path, make: Callable[[Any], Any]) -> Any:
    """Open a network once for each operating point; all share its weights."""
    from mimonets.models import fixed_at, operating_points
    from mimonets.serving.networks import switched

    model = _load(folder)
    points = {point.name: fixed_at(model, point) for point in operating_points(model)}
    return switched(name, {one: make(fixed) for one, fixed in points.items()})


def _load(folder: Path) -> Any:
    """Load a run's or a saved model, and find out what it takes."""
    import mimonets as mn

    exported = any(folder.glob("mode-*")) or (folder / "openvino").is_dir()
    if exported and not (folder / "manifest.json").exists():
        raise ValueError(f"{folder} is an export without its manifest.json: export it again.")
    return mn.load(weights_in(folder))


def _described_by_manifest(engine: Any) -> Opened:
    accuracies = {
        point.number: point.accuracy
        for point in engine.operating_points
        if point.accuracy is not None
    }
    confidences = {
        mode.active_streams: mode.confidence
        for mode in engine.manifest.modes
        if mode.confidence is not None
    }
    known = [mode for mode in engine.modes if mode in accuracies]
    return Opened(engine, known or list(engine.modes), accuracies, confidences)


def weights_in(folder: Path) -> Path:
    """Find the model that a run kept, its best or its last; any other folder is one itself."""
    if (folder / "recipe.yaml").exists():
        from mimonets.training.run_folder import choose_model

        return choose_model(folder)[1]
    inner = folder / "model"  # of an export
    return inner if (inner / "config.json").exists() else folder


def run_folder_of(weights: Path) -> Path | None:
    """Find the run that a saved model belongs to."""
    folder = weights.resolve().parent
    return folder if (folder / "recipe.yaml").exists() else None


def _accuracies(weights: Path) -> dict[int, float]:
    from mimonets.checkpoints.shipped import card_accuracy

    run_folder = run_folder_of(weights)
    if run_folder is None or not (run_folder / "result.json").exists():
        return card_accuracy(weights) or {}
    found = json.loads((run_folder / "result.json").read_text(encoding="utf-8")).get("final") or {}
    return {int(mode): entry["accuracy"] for mode, entry in found.items()}
