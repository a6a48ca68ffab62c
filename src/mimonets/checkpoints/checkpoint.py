"""Save and load weights together with what describes them. Never a pickle.

A checkpoint is a folder with ``model.safetensors`` and ``config.json``:

.. code-block:: json

    {"format_version": 2, "mimonets_version": "0.2.0", "model": "mimoconv",
     "config": {"depth": 28}, "inputs": {"kind": "image", "shape": [3, 32, 32]}}

A network that :func:`mimonets.superpose` made (``superposed``) has an
``example``, the shape and type of its inputs, for the probe when it is built again.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from mimonets import __version__
from mimonets._files import what_it_is, write_safely
from mimonets._inputs import InputSpec
from mimonets._messages import first_line, short
from mimonets.checkpoints.weights_file import WeightsFile, listing
from mimonets.models.base import Model
from mimonets.models.builders import build, describe_example, make_example
from mimonets.models.registry import MODELS
from mimonets.models.superposed import Superposed, superpose
from mimonets.models.surgery import SuperposedConfig

Network = nn.Module | tuple[nn.Module, nn.Module, nn.Module]  # or stem, trunk and head
FORMAT_VERSION = 2
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
KINDS: dict[str, Any] = {**MODELS, Superposed.kind: Superposed}
MAX_CONFIG_BYTES = 100_000_000  # a vocabulary of millions of words fits


def save(
    model: Model | Superposed, folder: str | os.PathLike[str], *, stored: str | None = None
) -> Path:
    """Write a model's weights, config and ``input_spec`` into ``folder``, which is made if needed.

    ``stored="float16"`` halves the file: weights are rounded, and :func:`load` gives float32 again.
    Of a model that ``torch.compile`` wrapped, the model itself is saved.

    Both files are written beside their places and moved there when complete: a crash leaves the
    old ones or the new ones, never half of one, and so does a full disk (``OSError``).
    """
    if not os.fspath(folder):
        raise ValueError("A checkpoint is a folder, and its name is empty: choose a name.")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a checkpoint is a folder, choose another name.")
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, Model | Superposed):
        raise ValueError(
            f"A {type(model).__name__} cannot be saved: save takes models of mimonets and what "
            f"mimonets.superpose() gives; for others there is torch.save."
        )
    _check_inputs("input_spec", model, model.input_spec)
    description = {
        "format_version": FORMAT_VERSION,
        "mimonets_version": __version__,
        "model": model.kind,
        "config": asdict(model.config),
        "inputs": None if model.input_spec is None else model.input_spec.as_dict(),
    }
    weights = _apart(model.state_dict())
    if stored is not None:
        weights = _rounded(weights, stored)
        description["stored"] = stored
    if isinstance(model, Superposed):
        description["example"] = describe_example(model._example)
    text = json.dumps(description, indent=2) + "\n"
    # The weights carry a copy of the config, so that files of two models are never mixed. One
    # entry only: safetensors writes several in any order, and equal models should be equal files.
    metadata = {"mimonets": json.dumps(description["config"])}
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_safely(
            {
                folder / WEIGHTS_FILE: lambda path: write_weights(path, weights, metadata),
                folder / CONFIG_FILE: lambda path: path.write_text(text, encoding="utf-8"),
            }
        )
    except BaseException:
        if is_new:
            with suppress(OSError):  # somebody else put something there meanwhile
                folder.rmdir()
        raise
    return folder


def write_weights(
    path: Path, weights: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file; raises OSError if there is no room for it."""
    try:
        save_file(weights, path, metadata=metadata)
    except SafetensorError as error:
        full = "No space" in str(error) or "too large" in str(error)
        raise OSError(ENOSPC if full else EIO, str(error)) from error


def load(
    folder: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    network: Network | None = None,
) -> Any:
    """Read the model that :func:`save` wrote, in evaluation mode.

    Anything that does not fit raises a ``ValueError`` of one sentence that names the file, before
    memory is taken for a model.

    Args:
        network: for a third-party network that was superposed, the same network as it was before
            :func:`mimonets.superpose`; it is changed in place, and its weights are replaced. Not
            needed if it was saved with a ``builder`` that is registered in this process.
    """
    folder = Path(folder)
    _check_device(folder, device)
    path = folder / CONFIG_FILE
    description = _read_description(folder)
    config = _read_config(path, description)
    inputs = _read_inputs(path, description)
    file = WeightsFile(folder / WEIGHTS_FILE)
    file.check_config(asdict(config), _saved_with(file.metadata, description))
    file.check_sizes(config)
    model = _rebuild(path, description, config, network)
    given = "their config.json" if network is None else "the network= that was given"
    file.check_shapes(model.state_dict(), given)
    weights = file.read(model.state_dict(), str(device))
    if "stored" in description:  # rounded for a smaller file
        weights = {n: v.float() if v.is_floating_point() else v for n, v in weights.items()}
    if isinstance(model, Superposed):
        types = {value.dtype for value in weights.values() if value.is_floating_point()}
        model.to(device, types.pop() if len(types) == 1 else None)
        model.load_state_dict(weights)  # copied: weights that are shared stay so
    else:
        trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        model.load_state_dict(weights, assign=True)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trainable[name])
    _check_inputs(str(path), model, inputs)
    model.input_spec = inputs
    return model.eval()


def _rebuild(
    path: Path, description: dict[str, Any], config: Any, network: Network | None
) -> Model | Superposed:
    """Build the network again; its weights come afterwards."""
    superposed = isinstance(config, SuperposedConfig)
    if network is not None and not superposed:
        kind = KINDS[description["model"]].__name__
        raise ValueError(f"{path.parent} holds a {kind}, which needs no network=: leave it out.")
    if superposed and network is None and not config.builder:
        raise ValueError(
            f"{path.parent} holds a superposed network without a builder: load it from Python and "
            f"pass network=, the network as it was before superpose(); for the command line, "
            f"mimonets.export it from there, or save it with builder=."
        )
    try:
        if not superposed:
            with torch.device("meta"):  # shapes only: no memory, and no draw from the generator
                model: Model = KINDS[description["model"]](config)
            return model
        if network is None:
            network = build(config.builder, config.builder_settings)
        example = make_example(description.get("example"))
        return superpose(network, example=example, **vars(config))
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{path} describes no model that can be built: {first_line(error)}"
        ) from None


def _rounded(weights: dict[str, Tensor], stored: str) -> dict[str, Tensor]:
    """Round float32 weights for a smaller file; refuse what would become infinite."""
    if stored != "float16":
        raise ValueError(f"stored={stored!r} is not known: choose 'float16', or leave it out.")
    rounded = {n: v.half() if v.is_floating_point() else v for n, v in weights.items()}
    broken = sorted(n for n, v in rounded.items() if v.is_floating_point() and v.isinf().any())
    if broken:
        raise ValueError(f"{listing(broken)} is too large for float16: leave stored= out.")
    return rounded


def _apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy weights that share memory, which safetensors does not write."""
    seen: set[int] = set()
    apart = {}
    for name, value in weights.items():
        shared = value.untyped_storage().data_ptr()
        whole = torch.contiguous_format
        apart[name] = value.clone(memory_format=whole) if shared in seen else value.contiguous()
        seen.add(shared)
    return apart


def read_config(folder: str | os.PathLike[str]) -> Any:
    """Read only the config of a checkpoint, without its weights."""
    return _read_config(Path(folder) / CONFIG_FILE, _read_description(Path(folder)))


def upgrade_settings(model: dict[str, Any]) -> dict[str, Any]:
    """Give the settings of a model, with its ``kind``, in a file of any age their names of today.

    >>> upgrade_settings({"kind": "mimoconv", "binding": "mbat"})
    {'kind': 'mimoconv', 'binding': 'matrix'}
    """
    known = KINDS.get(str(model.get("kind")))
    return model if known is None else known.upgrade_config(model)


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ValueError(f"{folder} {what_it_is(folder, CONFIG_FILE)}")
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"{path} is too large for a description of a model.")
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ValueError(f"{path} was not written by mimonets: it is nested too deeply.") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise ValueError(
            f"{path} is not JSON ({first_line(error)}): it was cut short or edited."
        ) from None
    if not isinstance(description, dict) or not isinstance(description.get("config"), dict):
        raise ValueError(f"{path} was not written by mimonets: it has no 'config' in it.")
    found = description.get("format_version")
    if type(found) is int and found == 1:
        raise ValueError(f"{path} is of version 0.1: load and save it again with mimonets 0.2.0.")
    if type(found) is not int or found != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {short(found)}, and this mimonets {__version__} reads up "
            f"to {FORMAT_VERSION}: install a newer mimonets."
        )
    model = description.get("model")
    if not isinstance(model, str) or model not in KINDS:
        raise ValueError(
            f"{path} is of model {short(model)}: this mimonets knows {', '.join(KINDS)}."
        )
    return description


def _read_config(path: Path, description: dict[str, Any]) -> Any:
    model_class = KINDS[description["model"]]
    try:
        return model_class.config_class(**model_class.upgrade_config(description["config"]))
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path} does not describe a model: {first_line(error)}") from None


def _read_inputs(path: Path, description: dict[str, Any]) -> InputSpec | None:
    if description.get("inputs") is None:
        return None
    try:
        return InputSpec.from_dict(description["inputs"])
    except ValueError as error:
        raise ValueError(f"{path} does not describe its inputs: {first_line(error)}") from None


def _check_inputs(where: str, model: Model | Superposed, inputs: InputSpec | None) -> None:
    wanted = model.default_input_spec()
    if inputs is None or wanted is None:
        return
    channels = inputs.kind == "image" and inputs.shape[0] != wanted.shape[0]
    if inputs.kind != wanted.kind or len(inputs.shape) != len(wanted.shape) or channels:
        raise ValueError(
            f"{where} describes inputs of another model: {inputs.kind} of shape {inputs.shape}, "
            f"but {type(model).__name__} takes {wanted.kind} such as {wanted.shape}."
        )


def _saved_with(metadata: Any, description: dict[str, Any]) -> dict[str, Any] | None:
    """Read the config in the weights file like the one beside it: absent settings mean the same."""
    if metadata is None:
        return None
    try:
        return asdict(_read_config(Path(WEIGHTS_FILE), {**description, "config": metadata}))
    except ValueError:
        return metadata


def _check_device(folder: Path, device: str | torch.device) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise ValueError(
            f"{folder} cannot be loaded to device {short(str(device))}: {first_line(error)}"
        ) from None
