"""``mimonets train``: train a recipe.

Train a recipe into a run folder: settings, environment, metrics, checkpoints and the trained model.
Ctrl-C saves; --resume continues to the same weights.

mimonets recipes RECIPE prints every setting; "Every setting" in docs/training.md explains them.

Examples:
  mimonets train digits-mimoconv-dynamic --set train.epochs=2 --out runs/digits
  mimonets train digits-mimoconv-dynamic --set train.epochs=2 --out runs/digits --resume
  mimonets train mnist-mimoconv-n4 --data-dir data --taste
"""

import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from mimonets._seeds import mean_and_deviation
from mimonets._show import make_console, print_json
from mimonets.cli._options import NETWORK_HELP, Parser, positive


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument("recipe", metavar="NETWORK", help=f"whose recipe to train: {NETWORK_HELP}")
    parser.add_set()
    parser.add_argument("--out", metavar="DIR", help="the run's folder (runs/RECIPE)")
    parser.add_argument("--resume", action="store_true", help="resume the run in the folder")
    parser.add_default("--seeds", 1, "train K times", type=positive, metavar="K")
    parser.add_argument(
        "--devices", type=positive, metavar="K", help="processes that share every batch"
    )
    parser.add_argument(
        "--multiply-batch",
        choices=["keep", "linear", "sqrt"],
        metavar="RULE",
        help="another recipe: the batch times --devices, and the learning rate kept (keep), "
        "multiplied too (linear) or by the square root (sqrt)",
    )
    parser.add_argument(
        "--taste", action="store_true", help="a minute's worth of it, to try it out"
    )
    parser.add_data()
    parser.add_json()


def run(args: Namespace) -> None:
    """Train a recipe, once or with several seeds."""
    from mimonets.cli.open_models import find_recipe
    from mimonets.recipes.execute import run_recipe, taste
    from mimonets.training import TrainingDivergedError

    overrides = [*args.set]
    if args.devices:
        overrides.append(f"train.devices={args.devices}")
    recipe = find_recipe(args.recipe, overrides).with_data_dir(args.data_dir)
    if args.multiply_batch:
        recipe = _multiplied(recipe, args.devices or 1, args.multiply_batch)
    if args.taste:
        recipe = taste(recipe)
    folder = Path(args.out or f"runs/{recipe.name}{'-taste' if args.taste else ''}")
    results = []
    for number in range(args.seeds):
        seeded = recipe.with_seed(recipe.train.seed + number)
        run_dir = folder if args.seeds == 1 else folder / f"seed-{seeded.train.seed}"
        if args.resume and not run_dir.exists():
            print(f"nothing to resume in {run_dir}: starting a new run there", file=sys.stderr)
        try:
            results.append(run_recipe(seeded, run_dir, resume=args.resume))
        except TrainingDivergedError as error:
            raise ValueError(str(error)) from error
    if any(result.rank for result in results):  # one of several processes: the first one speaks
        return
    if args.json:
        print_json(
            {
                "recipe": recipe.name,
                "folder": str(folder),
                "training": [result.training for result in results],
                "modes": _summarise_seeds(results),
            }
        )
        return
    console = make_console()
    if results[0].final:
        from mimonets.cli.report import seeds_table

        console.print(seeds_table(recipe.name, _summarise_seeds(results)))
    else:
        for result in results:
            last = ", ".join(
                f"{name} {value:.3f}"
                for name, value in result.training.items()
                if isinstance(value, int | float)
            )
            print(
                f"{recipe.name}: {last or 'nothing was kept'} on the training data in the last "
                f"epoch. Nothing else was measured: there is no validation data."
            )
    first = results[0]
    print(f"The model is in {first.model_dir}. Next: mimonets evaluate {quote(str(first.run_dir))}")


def _multiplied(recipe: Any, devices: int, rule: Any) -> Any:
    """Multiply the batch by the number of devices, and say so."""
    before, config = recipe.train, recipe.train.multiplied(devices, rule)
    print(
        f"another recipe: train.batch_size {before.batch_size} -> {config.batch_size}, "
        f"train.lr {before.lr:g} -> {config.lr:g}",
        file=sys.stderr,
    )
    return replace(recipe, train=config)


def _summarise_seeds(results: list[Any]) -> list[dict[str, Any]]:
    """Mean and spread of the validation accuracy of each mode over the seeds."""
    summary = []
    for mode in results[0].final:
        accuracies = [result.final[mode]["accuracy"] for result in results]
        mean, deviation = mean_and_deviation(accuracies)
        summary.append(
            {
                "active_streams": mode,
                "accuracies": accuracies,
                "mean": mean,
                "deviation": deviation,
            }
        )
    return summary
