"""What makes a run the run it is: the settings that decide what comes out of it."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Self

from torch import nn

from mimonets.data.registry import DATASETS
from mimonets.training.config import TrainConfig

# Settings that change how a run resumes or what it is called, not what comes out of it.
FREE = frozenset(
    {
        "name",
        "summary",
        "data.dir",
        "data.download",
        "train.threads",
        "train.compile",
        "train.recompute",
        "train.accelerator",
        "train.devices",
        "train.keep",
    }
)

# What runs did before there was a setting for it, where that is not today's default.
BEFORE = {"train": {"slow_inputs": "per-stream"}}


@dataclass(frozen=True)
class Identity:
    """All settings of a run as plain data, their defaults, and which may change on the way."""

    settings: dict[str, Any]
    defaults: dict[str, Any]
    free: frozenset[str] = FREE

    @classmethod
    def of(cls, model: nn.Module, config: TrainConfig, recipe: Mapping[str, Any] | None) -> Self:
        """Spell out everything that decides a run; a recipe's sections may be configs."""
        settings = {name: _plain(section) for name, section in (recipe or {}).items()}
        defaults = {name: _defaults(section) for name, section in (recipe or {}).items()}
        described = getattr(model, "config", None)
        kind = getattr(model, "kind", type(model).__name__)
        settings["model"] = {"kind": kind, **(_plain(described) or {})}
        settings["train"] = _plain(config)
        defaults |= {"model": _defaults(described), "train": _defaults(config)}
        matters = config.cuts_batches(getattr(model, "num_streams", 1))
        free = FREE if matters else FREE | {"train.slow_inputs"}
        data = DATASETS.get((settings.get("data") or {}).get("name", ""))
        if data is not None and data.needs_dir:  # there the folder is the data
            free -= {"data.dir"}
        return cls(json.loads(json.dumps(settings)), json.loads(json.dumps(defaults)), free)

    def check(self, found: dict[str, Any], folder: Path) -> None:
        """Refuse to resume a run that was started with other settings, and name them.

        Settings that did not exist when it was started count as what was done then.
        """
        then = {
            name: {**self.defaults.get(name, {}), **BEFORE.get(name, {}), **section}
            if isinstance(section, dict)
            else section
            for name, section in found.items()
        }
        differing = [name for name in _differences(then, self.settings) if name not in self.free]
        teachers = [section.get("train", {}).get("teacher") for section in (then, self.settings)]
        if _same_folder(*teachers):
            differing = [name for name in differing if name != "train.teacher"]
        if differing:
            more = f" and {len(differing) - 4} more" if len(differing) > 4 else ""
            raise ValueError(
                f"The run in {folder} was started with another recipe: it differs in "
                f"{', '.join(differing[:4])}{more}. Use the same settings, or another folder."
            )


def _same_folder(one: Any, two: Any) -> bool:
    """Tell whether two paths, such as a relative and an absolute one, lead to one place."""
    paths = isinstance(one, str) and isinstance(two, str)
    return paths and Path(one).resolve() == Path(two).resolve()


def _plain(section: Any) -> Any:
    return asdict(section) if is_dataclass(section) and not isinstance(section, type) else section


def _defaults(section: Any) -> dict[str, Any]:
    if not is_dataclass(section):
        return {}
    return {field.name: field.default for field in fields(section) if field.default is not MISSING}


def _differences(found: Any, wanted: Any, prefix: str = "") -> list[str]:
    """Name the settings that differ, such as train.lr."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return [
            name
            for key in sorted({*found, *wanted}, key=str)
            for name in _differences(found.get(key), wanted.get(key), f"{prefix}{key}.")
        ]
    return [] if found == wanted else [prefix.rstrip(".")]
