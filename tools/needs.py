"""Count what training our recipes and the trials of our plans needs: writes recipes/needs.json.

With --missing only what the file lacks. Plans that need a GPU come first.
"""

import sys
from pathlib import Path

import mimonets.recipes
from mimonets.experiments.plan import load_plan, plan_names
from mimonets.recipes import load_recipe, recipe_names
from mimonets.recipes.needs import write_needs

if __name__ == "__main__":
    plans = sorted(map(load_plan, plan_names()), key=lambda plan: (not plan.needs_gpu, plan.order))
    trials = [trial.load(0) for plan in plans for trial in plan.trials if not trial.removed]
    write_needs(
        Path(mimonets.recipes.__file__).with_name("needs.json"),
        [*trials, *map(load_recipe, recipe_names())],
        anew="--missing" not in sys.argv,
    )
