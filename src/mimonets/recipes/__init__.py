"""Named experiments: families in YAML, what reads them and what runs them."""

from mimonets.recipes.loader import (
    Recipe,
    load_recipe,
    make_recipe,
    model_config,
    recipe_names,
    recipe_summaries,
)

__all__ = [
    "Recipe",
    "load_recipe",
    "make_recipe",
    "model_config",
    "recipe_names",
    "recipe_summaries",
]
