"""Find recipes and turn their YAML into typed configs, with kind errors.

A file in this folder is a family of recipes: a comment that says what it is, the settings that all
share, and variants that say what differs. The recipe ``mnist-mimoconv-n16`` is the variant
``mimoconv-n16`` of ``mnist.yaml``. Only what differs from the defaults is written down; new files
and variants are found by themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from mimonets.models import MODELS, read_config

SECTIONS = ("model",)


@dataclass(frozen=True)
class Recipe:
    """One experiment: its name, what its family is about, and the configs in it."""

    name: str
    summary: str
    kind: str
    model: Any

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data, all settings spelt out."""
        return {
            "name": self.name,
            "summary": self.summary,
            "model": {"kind": self.kind, **asdict(self.model)},
        }

    def as_yaml(self) -> str:
        """Show the recipe as a file of its own, all settings spelt out, with how to use it."""
        settings = {section: self.as_dict()[section] for section in SECTIONS}
        for name, value in settings["model"].items():
            settings["model"][name] = list(value) if isinstance(value, tuple) else value
        return (
            f"# {self.summary}\n"
            f"#   cost    mimonets cost {self.name}\n"
            f"#   speed   mimonets bench {self.name}\n"
            f"#   expect  not yet measured\n"
        ) + yaml.safe_dump(settings, sort_keys=False)


def recipe_names() -> list[str]:
    """List the names of all recipes, family by family, as their files list them."""
    return list(recipe_summaries())


def recipe_summaries() -> dict[str, str]:
    """Say what each recipe is about, without checking its settings."""
    return {
        name: _families()[family][name][0]
        for family in sorted(_families())
        for name in _families()[family]
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
            f"There is no recipe and no folder {name!r}{_suggestion(name, recipe_names())}. "
            f"`mimonets recipes` lists the recipes."
        )
    summary, settings = family[name]
    settings = {section: dict(values) for section, values in settings.items()}
    problems = _apply_overrides(settings, overrides)
    problems += _unknown("section", settings, SECTIONS)
    kind = settings["model"].pop("kind", None)
    if kind not in MODELS:
        problems.append(f"model.kind={kind!r} is not known: choose from {', '.join(MODELS)}")
    else:
        problems += _setting_problems(MODELS[kind].config_class, settings["model"])
    if problems:
        raise ValueError(f"{name}: {'; '.join(problems)}.")
    return Recipe(name, summary, kind, _typed(MODELS[kind].config_class, settings["model"]))


def model_config(recipe_or_folder: str, overrides: Sequence[str] = ()) -> Any:
    """Get the model config of a recipe, or of a folder that :func:`mimonets.save` wrote."""
    if Path(recipe_or_folder).is_dir():
        if overrides:
            raise ValueError(
                f"{recipe_or_folder} holds a model as it was saved: --set works with recipes only."
            )
        return read_config(recipe_or_folder)
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
        families[stem] = {
            f"{stem}-{variant}": (text.partition("\n")[0].lstrip("# "), _merge(shared, changes))
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


def _setting_problems(config_class: type[Any], settings: dict[str, Any]) -> list[str]:
    known = [field.name for field in fields(config_class)]
    problems = _unknown("setting", settings, known, prefix="model.")
    parser, good = _parser(config_class), {}
    for name in sorted(settings.keys() & set(known)):
        try:
            parser.parse_object({"model": {name: settings[name]}})
            good[name] = settings[name]
        except ArgumentError as error:
            # jsonargparse says: Parser key "model.width":\n  Expected a <class 'int'>. Got ...
            reason = str(error).partition("\n")[2].strip() or str(error)
            for clutter in ("typing.", "<class '", "'>"):
                reason = reason.replace(clutter, "")
            reason = " ".join(reason.split())
            problems.append(f"model.{name}: {reason[0].lower()}{reason[1:].rstrip('.')}")
    try:
        _typed(config_class, good)
    except ValueError as error:
        problems.append(str(error).partition(": ")[2].rstrip("."))
    return problems


def _typed(config_class: type[Any], settings: dict[str, Any]) -> Any:
    parser = _parser(config_class)
    return parser.instantiate(parser.parse_object({"model": settings})).model


def _parser(config_class: type[Any]) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(config_class, "model")
    return parser


def _unknown(
    what: str, settings: Iterable[str], known: Sequence[str], prefix: str = ""
) -> list[str]:
    return [
        f"unknown {what} {prefix + name!r}{_suggestion(name, known, prefix)}"
        for name in settings
        if name not in known
    ]


def _suggestion(name: str, known: Sequence[str], prefix: str = "") -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""
