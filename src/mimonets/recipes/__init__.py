"""Named experiments: families in YAML, what reads them and what runs them.

The names load on first use, so that listing recipes need not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mimonets.recipes.families import recipe_names, recipe_summaries
    from mimonets.recipes.loader import Recipe, load_recipe, make_recipe

__all__ = [
    "Recipe",
    "load_recipe",
    "make_recipe",
    "recipe_names",
    "recipe_summaries",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'mimonets.recipes' has no attribute {name!r}")
    file = "families" if name in ("recipe_names", "recipe_summaries") else "loader"
    return getattr(import_module(f"mimonets.recipes.{file}"), name)
