"""Count what training our recipes and the trials of our plans needs: writes recipes/needs.json."""

from pathlib import Path

import mimonets.recipes
from mimonets.experiments.plan import load_plan, plan_names
from mimonets.recipes.needs import write_needs

if __name__ == "__main__":
    trials = [trial for name in plan_names() for trial in load_plan(name).trials]
    write_needs(
        Path(mimonets.recipes.__file__).with_name("needs.json"),
        [trial.load(0) for trial in trials if not trial.removed],
    )
