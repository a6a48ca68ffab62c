"""Find recipes and turn their YAML into typed configs, with kind errors.

A recipe is one file in this folder: a comment that says what it is and how to run it, then only the
settings that differ from the defaults. New files are found by themselves.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from mimonets.models import MODELS, read_config

SECTIONS = ("model",)


@dataclass(frozen=True)
class Recipe:
    """One experiment: its name, what its file says, and the configs in it."""

    name: str
    text: str
    model: Any

    @property
    def summary(self) -> str:
        """The first line of the file's comment."""
        return self.text.splitlines()[0].lstrip("# ")


def recipe_names() -> list[str]:
    """List the names of all recipes, in alphabetical order with numbers as numbers."""
    names = [file.name.removesuffix(".yaml") for file in _recipe_files()]
    return sorted(names, key=lambda name: [_numeric(word) for word in name.split("-")])


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply overrides such as ``model.width=1``.

    Every mistake is reported at once, a misspelt setting with the one that was probably meant.

    >>> load_recipe("mnist-mimoconv-n16", ["model.num_streams=8"]).model.num_streams
    8
    """
    file = next((file for file in _recipe_files() if file.name == f"{name}.yaml"), None)
    if file is None:
        raise ValueError(
            f"There is no recipe and no folder {name!r}{_suggestion(name, recipe_names())}. "
            f"`mimonets recipes` lists the recipes."
        )
    text = file.read_text(encoding="utf-8")
    settings = yaml.safe_load(text)
    problems = _apply_overrides(settings, overrides)
    problems += _unknown("section", settings, SECTIONS)
    kind = settings["model"].pop("kind", None)
    if kind not in MODELS:
        problems.append(f"model.kind={kind!r} is not known: choose from {', '.join(MODELS)}")
    else:
        problems += _setting_problems(MODELS[kind].config_class, settings["model"])
    if problems:
        raise ValueError(f"{name}: {'; '.join(problems)}.")
    return Recipe(name, text, _typed(MODELS[kind].config_class, settings["model"]))


def model_config(recipe_or_folder: str, overrides: Sequence[str] = ()) -> Any:
    """Get the model config of a recipe, or of a folder that :func:`mimonets.save` wrote."""
    if Path(recipe_or_folder).is_dir():
        if overrides:
            raise ValueError(
                f"{recipe_or_folder} holds a model as it was saved: --set works with recipes only."
            )
        return read_config(recipe_or_folder)
    return load_recipe(recipe_or_folder, overrides).model


def _recipe_files() -> Iterable[Traversable]:
    folder = files("mimonets.recipes")
    return [file for file in folder.iterdir() if file.name.endswith(".yaml")]


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
    good = {}
    for name in settings.keys() & set(known):
        try:
            _parser(config_class).parse_object({"model": {name: settings[name]}})
            good[name] = settings[name]
        except ArgumentError as error:
            # jsonargparse says: Parser key "model.width":\n  Expected a <class 'int'>. Got ...
            reason = str(error).partition("\n")[2].strip() or str(error)
            for clutter in ("typing.", "<class '", "'>"):
                reason = reason.replace(clutter, "")
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


def _numeric(word: str) -> tuple[str, int]:
    letters = word.rstrip("0123456789")
    return letters, int(word[len(letters) :] or 0)
