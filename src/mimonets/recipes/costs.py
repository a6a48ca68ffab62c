"""What the networks of our recipes cost, counted once: `mimonets cost` then waits for no PyTorch.

``costs.json`` holds MACs per input by a digest of the settings of a recipe's model, so that a
recipe that changes is counted anew. ``make costs`` writes the file; a slow test counts all of it.
"""

import hashlib
import json
from importlib.resources import files
from typing import Any

from mimonets.recipes.families import find_recipe

Rows = list[dict[str, Any]]  # an operating point each, as Cost.as_dict gives them


def known_costs(recipe: str) -> Rows | None:
    """Look up the cost of a recipe's network at its usual points; None if it was not counted.

    >>> rows = known_costs("digits-mimoconv-n4")
    >>> [row["active_streams"] for row in rows]
    [1, 2, 3, 4]
    """
    table = json.loads((files("mimonets.recipes") / "costs.json").read_text(encoding="utf-8"))
    rows: Rows | None = table.get(model_digest(recipe))
    return rows


def model_digest(recipe: str) -> str:
    """Name the settings of a recipe's model."""
    return digest(find_recipe(recipe)[2].get("model"))


def digest(settings: Any) -> str:
    """Name settings by their content."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
