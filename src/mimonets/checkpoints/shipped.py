"""Trained models that ship with the package: folders of ``weights/``, ready without a download.

Each is a checkpoint with a model card beside it: ``config.json``, ``model.safetensors`` and
``README.md``.
"""

import os
import re
import shlex
from itertools import pairwise
from pathlib import Path

from mimonets._messages import did_you_mean
from mimonets.checkpoints.card import ModelCard
from mimonets.checkpoints.checkpoint import CONFIG_FILE

CARD_FILE = "README.md"
WEIGHTS = Path(__file__).parent / "weights"


def pretrained_names() -> list[str]:
    """List the models that ship with trained weights."""
    return sorted(path.parent.name for path in WEIGHTS.glob(f"*/{CONFIG_FILE}"))


def pretrained_folder(name: str) -> Path:
    """Find the folder of a model that ships with the package."""
    if name not in pretrained_names():
        hint = did_you_mean(name, pretrained_names())
        raise ValueError(
            f"No folder and no trained weights that ship with mimonets are called {name!r}{hint}: "
            f"there are {', '.join(pretrained_names()) or 'none'}."
        )
    return WEIGHTS / name


def find_folder(name: str | os.PathLike[str]) -> Path:
    """Find a folder by its path, or by the name of a model that ships with the package."""
    is_path = Path(name).exists() or len(Path(name).parts) != 1
    return Path(name) if is_path else pretrained_folder(str(name))


def card_accuracy(folder: Path) -> dict[int, float] | None:
    """Read from the model card in a folder how accurate every mode is; None if it does not say."""
    card = folder / CARD_FILE
    if not card.is_file():
        return None
    return ModelCard.read_accuracy(card.read_text(encoding="utf-8")) or None


def card_recipe(folder: Path) -> tuple[str, list[str]] | None:
    """Read from the model card in a folder which recipe trained it, and what was set otherwise."""
    card = folder / CARD_FILE
    named = card.is_file() and re.search(
        r"^\* Recipe: `mimonets train ([^`]+)`", card.read_text(encoding="utf-8"), re.MULTILINE
    )
    if not named:
        return None
    name, *words = shlex.split(named.group(1))
    return name, [value for word, value in pairwise(words) if word == "--set"]
