"""Save and load weights together with the config that describes them. Never a pickle.

A checkpoint is a folder with ``model.safetensors`` and ``config.json``:

.. code-block:: json

    {"format_version": 1, "mimonets_version": "0.1.0", "model": "mimoconv", "config": {"depth": 28}}
"""

import json
import os
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mimonets._files import write_atomically
from mimonets.models.base import Model
from mimonets.models.registry import MODELS

FORMAT_VERSION = 1
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save(model: Model, folder: str | os.PathLike[str]) -> Path:
    """Write a model's weights and config into ``folder``, which is made if it is not there.

    Each file is written beside its place and moved there when complete: a crash leaves the old file
    or the new one, never half of one.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a checkpoint is a folder, choose another name.")
    folder.mkdir(parents=True, exist_ok=True)
    description = {
        "format_version": FORMAT_VERSION,
        "mimonets_version": version("mimonets"),
        "model": model.kind,
        "config": asdict(model.config),
    }
    text = json.dumps(description, indent=2) + "\n"
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    # The weights carry a copy of the description, so that files of two models are never mixed. One
    # entry only: safetensors writes several in any order, and equal models should be equal files.
    metadata = {"mimonets": json.dumps(description["config"])}
    write_atomically(
        folder / WEIGHTS_FILE, lambda path: save_file(weights, path, metadata=metadata)
    )
    write_atomically(folder / CONFIG_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    return folder


def load(folder: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Model:
    """Read the model that :func:`save` wrote, in evaluation mode.

    Anything that does not fit raises a ``ValueError`` of one sentence before a model is made.
    """
    folder = Path(folder)
    description = _read_description(folder)
    model_class = MODELS[description["model"]]
    try:
        config = model_class.config_class(**description["config"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG_FILE} does not describe a model: {error}") from None
    with torch.device("meta"):  # shapes only: no memory, and no draw from the random generator
        model = model_class(config)
    defaults = {field.name: field.default for field in fields(config)}
    weights = _read_weights(folder / WEIGHTS_FILE, asdict(config), defaults, str(device))
    _check_weights(folder, model.state_dict(), weights)
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.load_state_dict(weights, assign=True)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable[name])
    return model.eval()


def read_config(folder: str | os.PathLike[str]) -> Any:
    """Read only the config of a checkpoint, without its weights."""
    description = _read_description(Path(folder))
    return MODELS[description["model"]].config_class(**description["config"])


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{folder} holds no {CONFIG_FILE}: is it a folder that mimonets saved?")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON ({error}): it was cut short or edited.") from None
    if not isinstance(description, dict) or not isinstance(description.get("config"), dict):
        raise ValueError(f"{path} was not written by mimonets: it has no 'config' in it.")
    found = description.get("format_version")
    if not isinstance(found, int) or found > FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {found}, and this mimonets {version('mimonets')} reads up "
            f"to {FORMAT_VERSION}: install a newer mimonets."
        )
    if description.get("model") not in MODELS:
        raise ValueError(
            f"{path} is of model {description.get('model')!r}: "
            f"this mimonets knows {', '.join(MODELS)}."
        )
    return description


def _read_weights(
    path: Path, config: dict[str, Any], defaults: dict[str, Any], device: str
) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"{path.parent} holds no {path.name}: the weights are missing.")
    try:
        with safe_open(str(path), framework="pt", device=device) as file:
            saved_with = json.loads((file.metadata() or {}).get("mimonets", "null"))
            # Cloned: where a tensor starts in the file decides how products with it are rounded.
            weights = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read ({error}): it is damaged or was cut short, fetch it again."
        ) from None
    config = json.loads(json.dumps(config))  # as the metadata went through JSON
    if isinstance(saved_with, dict):  # settings younger than the file have their defaults in it
        saved_with = {**json.loads(json.dumps(defaults)), **saved_with}
    if saved_with not in (None, config):
        differing = sorted(
            key for key in {*saved_with, *config} if saved_with.get(key) != config.get(key)
        )
        raise ValueError(
            f"{path} belongs to another model than the {CONFIG_FILE} beside it: "
            f"they differ in {', '.join(differing)}."
        )
    return weights


def _check_weights(folder: Path, wanted: dict[str, Tensor], found: dict[str, Tensor]) -> None:
    problems = [
        f"{what} {_listing(names)}"
        for what, names in (
            ("missing", sorted(wanted.keys() - found.keys())),
            ("surplus", sorted(found.keys() - wanted.keys())),
            (
                "of another shape",
                [
                    f"{name} ({tuple(found[name].shape)} instead of {tuple(wanted[name].shape)})"
                    for name in sorted(wanted.keys() & found.keys())
                    if wanted[name].shape != found[name].shape
                ],
            ),
        )
        if names
    ]
    if problems:
        raise ValueError(
            f"The weights in {folder} do not fit their {CONFIG_FILE}: {'; '.join(problems)}."
        )


def _listing(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
