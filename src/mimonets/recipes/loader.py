"""Find recipes and turn their YAML into typed configs, with kind errors.

A file in this folder is a family of recipes: a comment that says what it is, the settings that all
share, and variants that say what differs. The recipe ``mnist-mimoconv-n16`` is the variant
``mimoconv-n16`` of ``mnist.yaml``. Only what differs from the defaults is written down; new files
and variants are found by themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from mimonets._config import did_you_mean
from mimonets.data import AugmentConfig, DataConfig
from mimonets.models import MODELS, read_config
from mimonets.training.config import TrainConfig

SECTIONS: dict[str, type[Any] | None] = {
    "model": None,  # by its kind
    "data": DataConfig,
    "augment": AugmentConfig,  # images only
    "train": TrainConfig,
}


@dataclass(frozen=True)
class Recipe:
    """One experiment: its name, what it is about, and the configs in it."""

    name: str
    summary: str
    kind: str
    model: Any
    data: DataConfig
    augment: AugmentConfig | None
    train: TrainConfig

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data, all settings spelt out."""
        sections = {
            "model": {"kind": self.kind, **asdict(self.model)},
            "data": asdict(self.data),
            "augment": None if self.augment is None else asdict(self.augment),
            "train": asdict(self.train),
        }
        return {"name": self.name, "summary": self.summary, **_plain(sections)}

    def as_yaml(self) -> str:
        """Show the recipe as a file of its own, all settings spelt out, with how to use it."""
        everything = self.as_dict()
        settings = {name: everything[name] for name in SECTIONS if everything[name] is not None}
        return (
            f"# {self.summary}\n"
            f"#   run     mimonets train {self.name}\n"
            f"#   taste   mimonets train {self.name} --taste\n"
            f"#   cost    mimonets cost {self.name}\n"
            f"#   speed   mimonets bench {self.name}\n"
            f"#   expect  docs/results.md, for what has been run\n"
        ) + yaml.safe_dump(settings, sort_keys=False)

    def with_seed(self, seed: int) -> "Recipe":
        """Give the same experiment with another seed for weights and batches."""
        return replace(self, train=replace(self.train, seed=seed))


def recipe_names() -> list[str]:
    """List the names of all recipes, family by family, as their files list them."""
    return list(recipe_summaries())


def recipe_summaries() -> dict[str, str]:
    """Say what each recipe is about, without checking its settings."""
    return {
        name: summary
        for family in sorted(_families())
        for name, (summary, _) in _families()[family].items()
    }


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides such as ``model.width=1``.

    Every mistake is reported at once, a misspelt setting with the one that was probably meant.

    >>> load_recipe("mnist-mimoconv-n16", ["model.num_streams=8"]).model.num_streams
    8
    """
    family = next((family for family in _families().values() if name in family), None)
    if family is None:
        raise ValueError(
            f"There is no recipe and no folder {name!r}{did_you_mean(name, recipe_names())}. "
            f"`mimonets recipes` lists the recipes."
        )
    summary, settings = family[name]
    return make_recipe(name, summary, settings, overrides)


def make_recipe(
    name: str, summary: str, settings: dict[str, Any], overrides: Sequence[str] = ()
) -> Recipe:
    """Turn settings by section into a recipe of typed configs."""
    settings = {section: dict(values) for section, values in settings.items() if values is not None}
    problems = _apply_overrides(settings, overrides)
    problems += _unknown("section", settings, list(SECTIONS))
    kind = settings["model"].pop("kind", None)
    classes = dict(SECTIONS)
    if kind in MODELS:
        classes["model"] = MODELS[kind].config_class
    else:
        problems.append(f"model.kind={kind!r} is not known: choose from {', '.join(MODELS)}")
    configs: dict[str, Any] = {}
    for section, config_class in classes.items():
        if config_class is None or (section == "augment" and section not in settings):
            continue
        values = settings.get(section, {})
        try:
            configs[section] = _typed(section, config_class, values)
        except (ArgumentError, ValueError):
            problems += _setting_problems(section, config_class, values)
    if problems:
        raise ValueError(f"{name}: {'; '.join(problems)}.")
    return Recipe(name, summary, kind, **{"augment": None, **configs})


def model_config(recipe_or_folder: str, overrides: Sequence[str] = ()) -> Any:
    """Get the model config of a recipe, or of a folder that :func:`mimonets.save` wrote."""
    folder = Path(recipe_or_folder)
    if folder.is_dir():
        if overrides:
            raise ValueError(
                f"{recipe_or_folder} holds a model as it was saved: --set works with recipes only."
            )
        inner = folder / "model"  # a run keeps its final model there
        return read_config(inner if inner.is_dir() else folder)
    return load_recipe(recipe_or_folder, overrides).model


@cache
def _families() -> dict[str, dict[str, tuple[str, dict[str, Any]]]]:
    """Read all files: family -> recipe -> summary and settings."""
    families = {}
    for file in files("mimonets.recipes").iterdir():
        stem, _, ending = file.name.rpartition(".")
        if ending != "yaml":
            continue
        text = file.read_text(encoding="utf-8")
        shared = yaml.safe_load(text)
        variants = shared.pop("variants")
        heading = text.partition("\n")[0].lstrip("# ")
        families[stem] = {
            f"{stem}-{variant}": (changes.pop("summary", heading), _merge(shared, changes))
            for variant, changes in variants.items()
        }
    return families


def _merge(shared: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    sections = [*shared, *(section for section in changes if section not in shared)]
    return {
        section: {**shared.get(section, {}), **changes.get(section, {})} for section in sections
    }


def _apply_overrides(settings: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    problems = []
    for override in overrides:
        path, equals, value = override.partition("=")
        section, dot, name = path.partition(".")
        if not equals or not dot or not name:
            problems.append(
                f"cannot read {override!r}: write section.setting=value, as in model.width=1"
            )
            continue
        settings.setdefault(section, {})[name] = yaml.safe_load(value)
    return problems


def _setting_problems(section: str, config_class: type[Any], settings: dict[str, Any]) -> list[str]:
    """Say everything that is wrong with a section, setting by setting."""
    known = [field.name for field in fields(config_class)]
    problems = _unknown("setting", settings, known, prefix=f"{section}.")
    good = {}
    for name in sorted(settings.keys() & set(known)):
        try:
            _parser(section, config_class).parse_object({section: {name: settings[name]}})
            good[name] = settings[name]
        except ArgumentError as error:
            # jsonargparse says: Parser key "model.width":\n  Expected a <class 'int'>. Got ...
            reason = str(error).partition("\n")[2].strip() or str(error)
            for clutter in ("typing.", "<class '", "'>"):
                reason = reason.replace(clutter, "")
            reason = " ".join(reason.split())
            problems.append(f"{section}.{name}: {reason[0].lower()}{reason[1:].rstrip('.')}")
    try:
        _typed(section, config_class, good)
    except ValueError as error:
        problems.append(str(error).partition(": ")[2].rstrip("."))
    return problems


def _typed(section: str, config_class: type[Any], settings: dict[str, Any]) -> Any:
    """Let jsonargparse turn what YAML read into the types of the fields."""
    parsed = _parser(section, config_class).parse_object({section: settings})[section]
    return config_class(**{name: parsed[name] for name in settings})


def _parser(section: str, config_class: type[Any]) -> ArgumentParser:
    if config_class not in _PARSERS:
        _PARSERS[config_class] = ArgumentParser(exit_on_error=False)
        _PARSERS[config_class].add_class_arguments(config_class, section)
    return _PARSERS[config_class]


_PARSERS: dict[type[Any], ArgumentParser] = {}


def _unknown(
    what: str, settings: Iterable[str], known: Sequence[str], prefix: str = ""
) -> list[str]:
    return [
        f"unknown {what} {prefix + name!r}{did_you_mean(name, known, prefix)}"
        for name in settings
        if name not in known
    ]


def _plain(value: Any) -> Any:
    """Turn tuples into lists, as JSON and YAML have them."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
