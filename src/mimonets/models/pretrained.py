"""Trained models that ship with the package: folders of ``weights/``, ready without a download.

Each is a checkpoint with a model card beside it: ``config.json``, ``model.safetensors`` and
``README.md``.
"""

from pathlib import Path

import torch

from mimonets._messages import did_you_mean
from mimonets.models.base import Model
from mimonets.models.checkpoint import CONFIG_FILE, WEIGHTS_FILE, load

WEIGHTS = Path(__file__).parent / "weights"


def pretrained_names() -> list[str]:
    """List the models that ship with trained weights."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{CONFIG_FILE}"))


def pretrained_folder(name: str) -> Path:
    """Find the folder of a model that ships with the package."""
    if name not in pretrained_names():
        hint = did_you_mean(name, pretrained_names())
        raise ValueError(
            f"No trained weights of {name!r} ship with mimonets{hint}: "
            f"there are {', '.join(pretrained_names()) or 'none'}."
        )
    return WEIGHTS / name


def load_pretrained(name: str, *, device: str | torch.device = "cpu") -> Model:
    """Load a model that ships with the package, in evaluation mode."""
    return load(pretrained_folder(name), device=device)


def read_card(name: str) -> str:
    """Read the model card of a model that ships with the package."""
    return (pretrained_folder(name) / "README.md").read_text(encoding="utf-8")


FILES = (CONFIG_FILE, WEIGHTS_FILE, "README.md")  # what each folder holds
