"""Find recipes in their YAML files, without checking what they say: quick, and without PyTorch.

A file in this folder is a family of recipes: a comment that says what it is, the settings that all
share, and variants that say what differs. The recipe ``mnist-mimoconv-n16`` is the variant
``mimoconv-n16`` of ``mnist.yaml``. Only what differs from the defaults is written down; new files
and variants are found by themselves. ``aliases`` keep names that variants had before, by how they
begin: with ``mimoformer-n2: mimoformer-2x2``, ``mimoformer-n2-mlp`` is ``mimoformer-2x2-mlp``.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from mimonets._messages import did_you_mean

Settings = dict[str, dict[str, Any]]  # section -> setting -> value


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


def find_recipe(name: str) -> tuple[str, str, Settings]:
    """Find a recipe by its name or a former one: its name, what it is about and its settings.

    >>> find_recipe("recall-mimoformer-n2")[0]
    'recall-mimoformer-2x2'
    """
    name = current_name(name)
    family = next((family for family in _families().values() if name in family), None)
    if family is None:
        raise ValueError(
            f"There is no recipe and no folder {name!r}{did_you_mean(name, recipe_names())}. "
            f"`mimonets recipes` lists the recipes."
        )
    return name, *family[name]


def current_name(name: str) -> str:
    """Give the name that a recipe has now; any other text stays as it is."""
    for old, new in _aliases().items():
        if name == old or name.startswith(f"{old}-"):
            return new + name.removeprefix(old)
    return name


def former_names(name: str) -> list[str]:
    """List the names that a recipe had before.

    >>> former_names("recall-mimoformer-2x2-dpfp")
    ['recall-mimoformer-n2-dpfp']
    """
    return [
        old + name.removeprefix(new)
        for old, new in _aliases().items()
        if name == new or name.startswith(f"{new}-")
    ]


@cache
def _families() -> dict[str, dict[str, tuple[str, Settings]]]:
    """Read all families: family -> recipe -> summary and settings."""
    families = {}
    for stem, (heading, content) in _files().items():
        shared = {name: content[name] for name in content if name not in ("variants", "aliases")}
        families[stem] = {
            f"{stem}-{variant}": (changes.get("summary", heading), _merge(shared, changes))
            for variant, changes in content["variants"].items()
        }
    return families


@cache
def _aliases() -> dict[str, str]:
    """Read all former beginnings of names -> present ones."""
    return {
        f"{stem}-{old}": f"{stem}-{new}"
        for stem, (_, content) in _files().items()
        for old, new in content.get("aliases", {}).items()
    }


@cache
def _files() -> dict[str, tuple[str, dict[str, Any]]]:
    """Read all files: family -> heading and content."""
    found = {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
    for file in files("mimonets.recipes").iterdir():
        stem, _, ending = file.name.rpartition(".")
        if ending == "yaml":
            text = file.read_text(encoding="utf-8")
            found[stem] = text.partition("\n")[0].lstrip("# "), yaml.load(text, Loader=loader)
    return found


def _merge(shared: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    sections = dict.fromkeys(name for name in (*shared, *changes) if name != "summary")
    return {
        section: {**shared.get(section, {}), **changes.get(section, {})} for section in sections
    }
