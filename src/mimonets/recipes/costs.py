"""What the networks of our recipes cost, counted once: `mimonets cost` then waits for no PyTorch.

``costs.json`` holds MACs per input by a digest of the settings of a recipe's model, so that a
recipe that changes is counted anew. ``make costs`` writes the file; a slow test counts all of it.
"""

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from mimonets.recipes.families import find_recipe, recipe_names

Rows = list[dict[str, Any]]  # an operating point each, as Cost.as_dict gives them


def known_costs(recipe: str) -> Rows | None:
    """Look up the cost of a recipe's network at its usual points; None if it was not counted.

    >>> rows = known_costs("digits-mimoconv-n4")
    >>> [row["active_streams"] for row in rows]
    [1, 2, 3, 4]
    """
    table = json.loads((files("mimonets.recipes") / "costs.json").read_text(encoding="utf-8"))
    rows: Rows | None = table.get(settings_digest(recipe))
    return rows


def settings_digest(recipe: str) -> str:
    """Name the settings of a recipe's model."""
    settings = json.dumps(find_recipe(recipe)[2].get("model"), sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def count_costs(recipe: str) -> Rows:
    """Count what the network of a recipe costs at its usual operating points."""
    from mimonets.evaluation import count_points
    from mimonets.recipes.loader import load_recipe

    return [cost.as_dict() for cost in count_points(load_recipe(recipe).model)]


def write_costs(path: Path) -> None:
    """Count the networks of all recipes and write them down."""
    recipes = {settings_digest(name): name for name in recipe_names()}
    table = {digest: count_costs(name) for digest, name in recipes.items()}
    lines = [f"{json.dumps(digest)}: {json.dumps(rows)}" for digest, rows in sorted(table.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_costs(Path(__file__).with_name("costs.json"))
