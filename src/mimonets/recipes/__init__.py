"""Named experiments: one YAML file each, and what reads them."""

from mimonets.recipes.loader import (
    Recipe,
    load_recipe,
    model_config,
    recipe_names,
    recipe_summaries,
)

__all__ = ["Recipe", "load_recipe", "model_config", "recipe_names", "recipe_summaries"]
