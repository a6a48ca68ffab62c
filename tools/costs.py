"""Count what the networks of our recipes cost and what training them needs: writes recipes/*.json.

With --missing training is counted where the file lacks it. Plans that need a GPU come first.
"""

import json
import sys
from pathlib import Path

import mimonets.recipes
from mimonets.evaluation import count_points
from mimonets.experiments.plan import load_plan, plan_names
from mimonets.recipes import load_recipe, recipe_names
from mimonets.recipes.costs import model_digest
from mimonets.recipes.families import find_recipe
from mimonets.recipes.needs import count_step, counted, digest, step_key, total_steps

FOLDER = Path(mimonets.recipes.__file__).parent


def count_costs(recipe):
    """Count what the network of a recipe costs at its usual operating points."""
    return [cost.as_dict() for cost in count_points(load_recipe(recipe).model)]


def write_costs(path):
    """Count the networks of all recipes and write them down."""
    recipes = {model_digest(name): name for name in recipe_names()}
    table = {key: count_costs(name) for key, name in recipes.items()}
    lines = [f"{json.dumps(key)}: {json.dumps(rows)}" for key, rows in sorted(table.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_needs(path, recipes, *, anew):
    """Count a training step of these recipes and write them down, one after the other."""
    steps = {} if anew else dict(counted()["steps"])
    named = {}
    for recipe in recipes:
        key = step_key(recipe)
        if key not in steps:
            steps[key] = count_step(recipe)
        if recipe.name in recipe_names() and step_key(load_recipe(recipe.name)) == key:
            entry = {"step": key, "steps": total_steps(load_recipe(recipe.name))}
            named[digest(find_recipe(recipe.name)[2])] = entry
        parts = []
        for title, table in (("steps", steps), ("recipes", named)):
            rows = [
                f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(table.items())
            ]
            parts.append(f'"{title}": {{\n' + ",\n".join(rows) + "\n }")
        path.write_text("{\n " + ",\n ".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_costs(FOLDER / "costs.json")
    plans = sorted(map(load_plan, plan_names()), key=lambda plan: (not plan.needs_gpu, plan.order))
    trials = [trial.load(0) for plan in plans for trial in plan.trials if not trial.removed]
    everything = [*trials, *map(load_recipe, recipe_names())]
    write_needs(FOLDER / "needs.json", everything, anew="--missing" not in sys.argv)
